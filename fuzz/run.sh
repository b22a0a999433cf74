#!/bin/sh
# Fuzzes one target for a bounded time: fuzz/run.sh TARGET [SECONDS]
# Builds with the coverage instrumentation of libFuzzer on the stable toolchain. Exits with a failure when an input crashes the
# target; that input then lies in fuzz/artifacts/TARGET.
set -eu

target=${1:?usage: fuzz/run.sh TARGET [SECONDS]}
seconds=${2:-60}
cd "$(dirname "$0")"
host=$(rustc -vV | sed -n 's/^host: //p')

# Passes and arguments of LLVM are stable options, so this needs no nightly toolchain.
flags="--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4"
flags="$flags -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table"
flags="$flags -Cllvm-args=-sanitizer-coverage-trace-compares -Ccodegen-units=1"
RUSTFLAGS="$flags" cargo build --release --bin "$target" --target "$host"

mkdir -p "corpus/$target" "artifacts/$target"
built=${CARGO_TARGET_DIR:-target}/$host/release/$target
# Twice the time is the outer bound, for a target that hangs in one input.
exec timeout -k 10 "$((seconds * 2 + 30))" "$built" -max_total_time="$seconds" -timeout=10 -max_len=4096 \
    -artifact_prefix="artifacts/$target/" "corpus/$target" "seeds/$target"
