#!/usr/bin/env bash
# Checks what `make build` needs and, as root on Debian or Ubuntu, installs what is missing. Asks nothing.
set -euo pipefail

python="${PYTHON:-python3}"

# apt PACKAGE...: installs, where that is possible without a question.
apt() {
    if [[ "$(id -u)" == 0 ]] && command -v apt-get >/dev/null; then
        apt-get update -qq </dev/null
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" </dev/null
    fi
}

fail() {
    echo "make build: $1" >&2
    exit 1
}

command -v cc >/dev/null || apt gcc libc6-dev
command -v cc >/dev/null || fail "no C compiler (cc); install gcc or clang"

command -v cargo >/dev/null || fail "no cargo; install Rust 1.88 or newer with rustup"
rust_minor="$(rustc --version | sed -E 's/^rustc 1\.([0-9]+).*/\1/')"
((rust_minor >= 88)) || fail "$(rustc --version) is too old; install Rust 1.88 or newer"

command -v "$python" >/dev/null || apt python3 python3-venv
command -v "$python" >/dev/null || fail "no $python; install Python 3.11 or newer, or say PYTHON=/path/to/python3"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    fail "$("$python" --version) is too old; install Python 3.11 or newer, or say PYTHON=/path/to/python3"
"$python" -c 'import ensurepip, venv' 2>/dev/null || apt python3-venv
"$python" -c 'import ensurepip, venv' 2>/dev/null || fail "$python has no venv module; install python3-venv"

# What Mooncake's wheel links to. Without it everything but mooncake:// works, so that nothing fails here.
missing=()
for library in libibverbs.so.1:libibverbs1 librdmacm.so.1:librdmacm1 libnuma.so.1:libnuma1 libcurl.so.4:libcurl4; do
    ldconfig -p 2>/dev/null | grep -q "${library%%:*}" || missing+=("${library##*:}")
done
if ((${#missing[@]})); then
    apt "${missing[@]}" || true
    echo "make build: mooncake:// needs ${missing[*]}; its tests are skipped where these can't be installed"
fi
