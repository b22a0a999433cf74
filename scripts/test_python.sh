#!/usr/bin/env bash
# The Python tests in three runs: those that wait for other processes side by side, those that freeze processes a few at a time,
# those that measure one after the other. Arguments go to each run. What a run took is printed at the end.
#
#   TEST_WORKERS=N     how many run side by side: 6, or as many as there are cores
#   FREEZE_WORKERS=N   how many of those that freeze processes
set -euo pipefail
cd "$(dirname "$0")/../python"

python="${PYTHON:-../.venv/bin/python}"
cores="$(nproc)"
workers="${TEST_WORKERS:-$((cores < 6 ? 6 : cores > 16 ? 16 : cores))}"
freezing="${FREEZE_WORKERS:-3}"
failed=0
took=""

# run WHAT ARGUMENT...: one run of pytest. The others go on when it fails, unless it was interrupted.
run() {
    local what="$1" begin=$SECONDS status=0
    shift
    echo "== $what"
    "$python" -m pytest "$@" || status=$?
    took+="$(printf '%6d s  %s' "$((SECONDS - begin))" "$what")"$'\n'
    # No test at all is what arguments like -k may leave of a run.
    ((status == 0 || status == 5)) || failed=1
    ((status != 2)) || exit 2
}
trap 'printf "== test-python took\n%s" "$took"' EXIT

run "side by side, $workers at a time" -n "$workers" --dist worksteal -m 'not alone and not freezes' "$@"
run "freeze processes, $freezing at a time" -n "$freezing" --dist worksteal -m freezes "$@"
run "alone" -p no:xdist -m alone "$@"
exit "$failed"
