#!/usr/bin/env bash
# This project beside the TransferQueue client as released and beside the reference's design: three processes each with the segment in the same
# process and in another one, then one report and one chart of each. Wants a quiet machine; takes about 40 minutes.
#
# Usage: scripts/bench_compare.sh PYTHON OUT. Exit status 1 when a promised figure was missed; all of them are measured first.
set -uo pipefail
cd "$(dirname "$0")/.."

python="$1"
out="$2"
processes="${COMPARE_PROCESSES:-3}"
export PYTHONPATH="$PWD"
mkdir -p "$out/compare"
missed=0

for owner in same other; do
    reports=()
    for ((process = 1; process <= processes; process++)); do
        report="$out/compare/$owner-$process.json"
        echo "== segment in the $owner process, process $process of $processes"
        "$python" -m bench.compare.run --owner "$owner" --seed "$process" --json "$report" || exit 1
        reports+=("$report")
    done
    "$python" -m bench.compare.merge --check --json "$out/compare-$owner.json" --plot "$out/compare-$owner.png" "${reports[@]}" || missed=1
done
exit "$missed"
