#!/usr/bin/env bash
# What the host's shared arena is worth: its speed beside one memcpy, beside Ray's object store and TransferQueue's SimpleStorage, the memory that eight
# readers take, and a hundred processes that open at once. Wants a quiet machine with 12 GiB of free memory; takes about 8 minutes.
#
# Usage: scripts/bench_host.sh PYTHON OUT. Exit status 1 when a promised figure was missed; all of them are measured first.
set -uo pipefail
cd "$(dirname "$0")/.."

python="$1"
out="$2"
export PYTHONPATH="$PWD"
mkdir -p "$out"
missed=0
measure() {
    echo "== $1"
    "$python" -m "bench.host.$1" --check --json "$out/host-$1.json" || missed=1
}

for part in speed rivals memory opens; do
    measure "$part"
done
"$python" -m bench.host.chart "$out/host-speed.json" "$out/host-rivals.json" "$out/host.png" || missed=1
exit "$missed"
