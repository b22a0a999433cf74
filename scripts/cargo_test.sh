#!/usr/bin/env bash
# Unit and integration tests with the given cargo arguments: through cargo-nextest where it is installed, else cargo test.
set -euo pipefail

if cargo nextest --version >/dev/null 2>&1; then
    # Many tests wait: two for each core keep it busy. Which ones run alone stands in .config/nextest.toml.
    exec cargo nextest run --cargo-quiet --no-fail-fast --status-level fail --final-status-level slow \
        --test-threads "${TEST_THREADS:-$((2 * $(nproc)))}" "$@"
fi
exec cargo test --quiet --no-fail-fast --lib --bins --tests "$@"
