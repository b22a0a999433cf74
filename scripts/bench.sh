#!/usr/bin/env bash
# Every figure that this project promises, measured on this machine, which should have nothing else to do. Takes about 25 minutes, and 40 more
# where Mooncake can be imported: clusters are started on free loopback ports, and stopped.
# Usage: scripts/bench.sh PYTHON OUT [embedded|mooncake]. Exit status 1 when a promised figure was missed; all of them are measured first.
set -uo pipefail

python="$1"
out="$2"
part="${3:-all}"
pinned='embedded://?registration=pinned'
mkdir -p "$out"
missed=0
measure() {
    echo "== $*"
    "$@" || missed=1
}

embedded() {
    measure "$python" -m bench reads --engine "$pinned" --check --json "$out/reads-pinned.json" --plot "$out/reads-pinned.png"
    measure "$python" -m bench reads --modes register-per-call,leased --shapes 64x16MiB,1024x1MiB,16384x64KiB --check --json "$out/reads.json"
    measure "$python" -m bench stack --check --json "$out/stack.json"
    measure "$python" -m bench keys --max-bytes 2GiB --check --json "$out/keys.json"
    measure "$python" -m bench pairs --engine "$pinned" --check --json "$out/pairs-pinned.json"
    measure "$python" -m bench writes --engine "$pinned" --check --json "$out/writes-pinned.json"
    measure cargo bench -p tensorlease-arena
}

# Counts first, since they need no quiet machine; then all ways of reading from one store, with both shares; then the rest.
mooncake() {
    local reads=(reads --engine mooncake --check)
    local four=64x16MiB,1024x1MiB,4096x1MiB,16384x64KiB
    measure "$python" -m bench rounds --check --json "$out/rounds.json"
    measure "$python" -m bench "${reads[@]}" --modes register-per-call,store-pool,leased,batch \
        --json "$out/mooncake-reads.json" --plot "$out/mooncake-reads.png"
    measure "$python" -m bench "${reads[@]}" --modes register-per-call,store-pool --share quarter --shapes "$four" \
        --json "$out/mooncake-reads-quarter.json"
    measure "$python" -m bench "${reads[@]}" --modes register-per-call,store-pool,leased --owner other --reps 5 \
        --json "$out/mooncake-reads-other.json"
    measure "$python" -m bench "${reads[@]}" --modes register-per-call,copied,leased,batch --shapes 64x16MiB,1024x1MiB,16384x64KiB,ragged \
        --json "$out/mooncake-reads-plain.json"
    measure "$python" -m bench "${reads[@]}" --modes register-per-call,store-pool,leased --readers 1 --shapes 1024x1MiB,16384x64KiB \
        --json "$out/mooncake-reads-one-reader.json"
    measure "$python" -m bench sweep --check --json "$out/mooncake-sweep.json"
    measure "$python" -m bench writes --engine mooncake --check --json "$out/mooncake-writes.json"
}

case "$part" in all | embedded | mooncake) ;; *)
    echo "bench.sh: $part is no part; give embedded, mooncake, or nothing for both" >&2
    exit 2
    ;;
esac
if [ "$part" != mooncake ]; then embedded; fi
if [ "$part" != embedded ]; then
    if why=$("$python" -c 'import mooncake.store' 2>&1); then
        mooncake
    else
        echo "bench.sh: Mooncake can't be imported, so nothing of it is measured: ${why##*$'\n'}"
        [ "$part" = all ] || missed=1
    fi
fi
exit "$missed"
