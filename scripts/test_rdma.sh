#!/usr/bin/env bash
# Runs tests/rdma in a virtual machine that has a software RDMA device (soft-RoCE, the kernel's rdma_rxe): real verbs without a network card.
# Exits with the tests' status, and fails where there is no RDMA: it never passes without. Arguments go to pytest. docs/rdma.md says more.
#
# The machine is qemu's, without KVM, with Debian's stock kernel and this machine's file system, read-only under an overlay. Nothing is installed
# here: packages that are missing are unpacked to target/rdma-vm, which later runs use again.
set -euo pipefail
cd "$(dirname "$0")/.."

kit="${CARGO_TARGET_DIR:-target}/rdma-vm"
python="${PYTHON:-.venv/bin/python}"
guest_seconds="${RDMA_SECONDS:-900}"
guest_mib=1536
apt_seconds=300
modules=(virtio_pci 9pnet_virtio 9p overlay dummy crc32_generic ib_uverbs rdma_ucm rdma_rxe)

fail() {
    echo "test-rdma: $1" >&2
    exit 1
}

[[ "$(uname -sm)" == "Linux x86_64" ]] || fail "needs Linux on x86-64, this is $(uname -sm)"
command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null || fail "needs Debian, for its kernel and its packages (apt-get, dpkg-deb)"
[[ -x "$python" ]] || fail "there is no $python; run make build, or say PYTHON=/path/to/python"
mkdir -p "$kit"
kit="$(cd "$kit" && pwd)"
python="$(cd "$(dirname "$python")" && pwd)/$(basename "$python")"
exec {lock}>"$kit/lock"
flock --nonblock "$lock" || fail "another run is using $kit; wait for it, or set CARGO_TARGET_DIR"

apt() { timeout --kill-after=5 "$apt_seconds" apt-get -qq -o APT::Sandbox::User="$(id -un)" "$@" </dev/null; }

# Package lists, where there are none yet. Only root may fetch them.
know_packages() {
    apt-cache show linux-image-amd64 >/dev/null 2>&1 && return
    [[ "$(id -u)" == 0 ]] || fail "apt knows no package linux-image-amd64; run apt-get update as root, and this again"
    apt update || fail "apt-get update failed: no network, or no package source"
    apt-cache show linux-image-amd64 >/dev/null 2>&1 || fail "apt knows no package linux-image-amd64; this needs Debian's package sources"
}

# download PACKAGE...: to $kit/debs. Lists that are too old name files that are gone.
download() {
    rm -rf "$kit/debs"
    mkdir "$kit/debs"
    (cd "$kit/debs" && apt download "$@") && return
    [[ "$(id -u)" == 0 ]] && apt update && (cd "$kit/debs" && apt download "$@") && return
    fail "apt-get download $* failed: no network, or package lists too old (apt-get update)"
}

# tool NAME: this machine's, or the unpacked one.
tool() {
    local path
    for path in "$(command -v "$1")" "$kit/packages/usr/bin/$1" "$kit/packages/usr/sbin/$1"; do
        [[ -x "$path" ]] && echo "$path" && return
    done
    return 1
}

# What the rig needs that is neither on this machine nor unpacked.
missing_packages() {
    tool qemu-system-x86_64 >/dev/null || echo qemu-system-x86
    tool cpio >/dev/null || echo cpio
    tool rdma >/dev/null || echo iproute2
    [[ -e /etc/libibverbs.d/rxe.driver || -e "$kit/packages/etc/libibverbs.d/rxe.driver" ]] || echo ibverbs-providers
    # Not this machine's: the guest starts it before it has any library.
    [[ -x "$kit/packages/usr/bin/busybox" ]] || echo busybox-static
}

# unpack_packages PACKAGE...: with what they depend on and this machine lacks.
unpack_packages() {
    local listing names name deb folder new="$kit/packages.new"
    know_packages
    # One line a package: 'address' file size checksum.
    listing="$(apt install --print-uris --no-install-recommends "$@")" || fail "apt finds no way to install $*"
    mapfile -t names < <(awk '{ sub(/_.*/, "", $2); print $2 }' <<<"$listing")
    for name in "$@"; do
        [[ " ${names[*]} " == *" $name "* ]] || names+=("$name")
    done
    download "${names[@]}"
    rm -rf "$new"
    mkdir -p "$new"
    for deb in "$kit"/debs/*.deb; do
        dpkg-deb --extract "$deb" "$new"
    done
    # As on a machine whose /bin, /sbin and /lib are links.
    for folder in bin sbin lib lib64; do
        [[ -d "$new/$folder" ]] || continue
        mkdir -p "$new/usr/$folder"
        cp -a "$new/$folder/." "$new/usr/$folder/"
        rm -r "${new:?}/$folder"
    done
    rm -rf "$kit/packages" "$kit/debs"
    mv "$new" "$kit/packages"
}

# Kernel and modules out of the package that linux-image-amd64 depends on. The cloud kernel has neither rdma_rxe nor 9p.
unpack_kernel() {
    local package part parts=()
    know_packages
    package="$(apt-cache depends linux-image-amd64 | awk '/Depends: linux-image/ { print $2; exit }')"
    [[ -n "$package" ]] || fail "linux-image-amd64 names no kernel package"
    download "$package"
    for part in drivers/infiniband drivers/virtio drivers/net net fs lib crypto arch/x86/crypto; do
        parts+=("*/lib/modules/*/kernel/$part/*")
    done
    rm -rf "$kit/kernel" "$kit/modules"
    mkdir "$kit/kernel"
    # A folder that this kernel does not have is no reason to stop; a module that is missing is.
    dpkg-deb --fsys-tarfile "$kit"/debs/*.deb |
        tar --extract --directory "$kit/kernel" --wildcards '*/boot/vmlinuz-*' '*/modules.builtin' "${parts[@]}" || true
    "$python" tests/rdma/kernel_modules.py "$kit/kernel" "$kit/modules" "${modules[@]}" || fail "no RDMA with $package"
    mv "$kit"/kernel/boot/vmlinuz-* "$kit/vmlinuz" || fail "$package holds no kernel"
    rm -rf "$kit/kernel" "$kit/debs"
}

# The guest's first files, packed anew each time: they are the project's own.
pack_init() {
    local root="$kit/init"
    rm -rf "$root"
    mkdir -p "$root"/{bin,proc,sys,dev,host,packages,overlay}
    cp "$kit/packages/usr/bin/busybox" "$root/bin/busybox"
    cp -r "$kit/modules" "$root/modules"
    install -m 755 tests/rdma/guest_init.sh "$root/init"
    (cd "$root" && find . | "$(tool cpio)" --create --format=newc --quiet | gzip -1) >"$kit/init.img"
}

# What the guest runs: pytest, with the one plugin that it needs.
write_tests() {
    rm -rf "$kit/shared"
    mkdir "$kit/shared"
    {
        echo 'export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root CI=true'
        echo 'export PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 PYTEST_DISABLE_PLUGIN_AUTOLOAD=1'
        printf 'cd %q\n' "$PWD"
        printf '%q ' "$python" -m pytest --config-file=tests/rdma/pytest.ini --rootdir=tests/rdma "$@" tests/rdma
        # Through a pipe, so that pytest writes lines and not a screen.
        echo '| cat'
        echo 'exit "${PIPESTATUS[0]}"'
    } >"$kit/shared/tests.sh"
}

guest=
stop() {
    local status=$?
    [[ -z "$guest" ]] || kill "$guest" 2>/dev/null || true
    exit "$status"
}
trap stop EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# Shares this machine's files, the unpacked packages, and the folder that brings the status back. Returns qemu's status; 124: it took too long.
run_guest() {
    local share=security_model=none,multidevs=remap status=0
    LD_LIBRARY_PATH="$kit/packages/usr/lib/x86_64-linux-gnu" timeout --foreground --kill-after=5 "$guest_seconds" \
        "$(tool qemu-system-x86_64)" -M q35 -accel tcg,thread=multi -cpu max -smp 2 -m "$guest_mib" \
        -L "$kit/packages/usr/share/qemu" -L "$kit/packages/usr/share/seabios" \
        -nodefaults -display none -no-reboot -serial "file:$kit/console.log" -serial stdio \
        -kernel "$kit/vmlinuz" -initrd "$kit/init.img" \
        -append 'console=ttyS0 quiet panic=-1 mitigations=off nokaslr tsc=unstable random.trust_cpu=on' \
        -virtfs "local,path=/,mount_tag=host,readonly=on,$share" \
        -virtfs "local,path=$kit/packages,mount_tag=packages,readonly=on,$share" \
        -virtfs "local,path=$kit/shared,mount_tag=shared,$share" </dev/null &
    guest=$!
    wait "$guest" || status=$?
    guest=
    return "$status"
}

mapfile -t missing < <(missing_packages)
if ((${#missing[@]})); then
    echo "test-rdma: unpacking ${missing[*]} to $kit"
    unpack_packages "${missing[@]}"
    mapfile -t missing < <(missing_packages)
    ((${#missing[@]} == 0)) || fail "${missing[*]}: unpacked, and still not there; remove $kit and try again"
fi
if [[ ! -e "$kit/vmlinuz" ]]; then
    echo "test-rdma: unpacking Debian's kernel to $kit"
    unpack_kernel
fi
pack_init
write_tests "$@"
begin=$SECONDS
qemu_status=0
run_guest || qemu_status=$?
seconds=$((SECONDS - begin))
if [[ ! -s "$kit/shared/status" ]]; then
    tail -n 15 "$kit/console.log" >&2 || true
    ((qemu_status != 124)) || fail "the guest was not done after $guest_seconds s (RDMA_SECONDS)"
    fail "the guest never reported, after $seconds s (qemu's status is $qemu_status); above is the end of its console, $kit/console.log"
fi
status="$(<"$kit/shared/status")"
echo "test-rdma: $seconds s with the guest's start and end, exit status $status"
exit "$status"
