#!/usr/bin/env bash
# The tests of every crate that touches raw memory, under AddressSanitizer. Where the toolchain refuses, the run is skipped
# with the reason; in CI (CI=true) a skip is a failure.
set -euo pipefail

target_dir="${CARGO_TARGET_DIR:-target}/asan"
triple="$(rustc -vV | sed -n 's/^host: //p')"
export RUSTC_BOOTSTRAP=1
export RUSTFLAGS="-Zsanitizer=address -Cdebuginfo=1"
# A mapping that a test leaves to the process's end is no leak of ours, and leak detection needs ptrace, which containers refuse.
# A test asks for more memory than there can be, and for a null pointer in return.
export ASAN_OPTIONS="detect_leaks=0:allocator_may_return_null=1:${ASAN_OPTIONS:-}"

skip() {
    echo "asan: skipped: $1"
    [[ "${CI:-}" == true ]] && exit 1
    exit 0
}

probe="$(mktemp -d)"
trap 'rm -rf "$probe"' EXIT
echo 'fn main() {}' >"$probe/main.rs"
# shellcheck disable=SC2086 # The flags are several words on purpose.
if ! rustc $RUSTFLAGS --target "$triple" -o "$probe/main" "$probe/main.rs" 2>"$probe/log" || ! "$probe/main" 2>>"$probe/log"; then
    skip "the toolchain does not build or run sanitised programs: $(head -n 1 "$probe/log")"
fi

# A transport that writes late writes quarantined, and so poisoned, memory on purpose: tests that have one are left to the
# ordinary run. That such a write is caught is shown by the poison tests of the memory crate.
cargo test --quiet --no-fail-fast --target "$triple" --target-dir "$target_dir" --lib --tests \
    -p tensorlease-memory -p tensorlease-engine -p tensorlease \
    --features tensorlease-memory/poison,tensorlease-engine/conformance \
    -- --skip quarantine:: --skip memory_that_may_still_be_written_is_never_handed_out
