#!/usr/bin/env bash
# Fuzzes every target; FUZZ_SECONDS is shared by them. The fuzzer itself is C++: without a compiler for it the run is skipped
# with the reason; in CI (CI=true) a skip is a failure.
set -euo pipefail

if ! command -v c++ >/dev/null && [[ "$(id -u)" == 0 ]] && command -v apt-get >/dev/null; then
    apt-get update -qq </dev/null
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends g++ </dev/null
fi
if ! command -v c++ >/dev/null; then
    echo "fuzz: skipped: no C++ compiler (c++) to build libFuzzer with"
    [[ "${CI:-}" == true ]] && exit 1
    exit 0
fi

export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-$PWD/target}/fuzz"
targets=(fuzz/fuzz_targets/*.rs)
seconds=$((${FUZZ_SECONDS:-10} / ${#targets[@]}))
logs="$(mktemp -d)"
trap 'rm -rf "$logs"' EXIT

fuzz() {
    local name="$1"
    if fuzz/run.sh "$name" "$seconds" >"$logs/$name" 2>&1; then
        echo "fuzz: $name for $seconds s: $(tail -n 1 "$logs/$name")"
        return
    fi
    cat "$logs/$name"
    echo "fuzz: $name failed; the input lies in fuzz/artifacts/$name"
    return 1
}

# Each fuzzer is one thread, so as many run as there are cores. Each has a process group, so that an interrupt ends all of it.
set -m
running=()
status=0
trap 'for job in "${running[@]}"; do kill -- "-$job" 2>/dev/null || true; done; exit 130' INT TERM
for target in "${targets[@]}"; do
    fuzz "$(basename "$target" .rs)" &
    running+=($!)
    if ((${#running[@]} >= $(nproc))); then
        wait "${running[0]}" || status=1
        running=("${running[@]:1}")
    fi
done
for job in "${running[@]}"; do
    wait "$job" || status=1
done
exit "$status"
