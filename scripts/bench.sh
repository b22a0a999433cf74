#!/usr/bin/env bash
# Every figure that this project promises, measured on this machine. Takes about 25 minutes and wants the machine to itself.
# Usage: scripts/bench.sh TENSORLEASE OUT. Exit status 1 when a promised figure was missed; all of them are measured first.
set -uo pipefail

tensorlease="$1"
out="$2"
pinned='embedded://?registration=pinned'
mkdir -p "$out"
missed=0
measure() {
    echo "== $*"
    "$@" || missed=1
}

measure "$tensorlease" bench reads --engine "$pinned" --check --json "$out/reads-pinned.json" --plot "$out/reads-pinned.png"
measure "$tensorlease" bench reads --modes register-per-call,leased --shapes 64x16MiB,1024x1MiB,16384x64KiB --check --json "$out/reads.json"
measure "$tensorlease" bench stack --check --json "$out/stack.json"
measure "$tensorlease" bench keys --max-bytes 2GiB --check --json "$out/keys.json"
measure "$tensorlease" bench pairs --engine "$pinned" --check --json "$out/pairs-pinned.json"
measure cargo bench -p tensorlease-arena
exit "$missed"
