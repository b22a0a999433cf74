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
for target in "${targets[@]}"; do
    name="$(basename "$target" .rs)"
    echo "fuzz: $name for $seconds s"
    log="$(mktemp)"
    if ! fuzz/run.sh "$name" "$seconds" >"$log" 2>&1; then
        cat "$log"
        echo "fuzz: $name failed; the input lies in fuzz/artifacts/$name"
        exit 1
    fi
    tail -n 1 "$log"
    rm -f "$log"
done
