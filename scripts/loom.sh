#!/usr/bin/env bash
# Every interleaving of the lock-free parts, with loom. Release build: loom explores, so speed counts.
set -euo pipefail

export RUSTFLAGS="--cfg loom ${RUSTFLAGS:-}"
cargo test --quiet --release --target-dir "${CARGO_TARGET_DIR:-target}/loom" -p tensorlease-memory --test loom
