#!/usr/bin/env bash
# Runs every example, Rust and Python; the first that fails ends the run.
set -euo pipefail

python="${PYTHON:-python3}"
ran=0
for example in $(find crates/client/examples examples/rust -name '*.rs' 2>/dev/null | sort); do
    echo "example: $example"
    cargo run --quiet -p tensorlease --example "$(basename "$example" .rs)" >/dev/null
    ran=$((ran + 1))
done
# What needs TransferQueue is run by `make test-transfer-queue`.
for example in $(find examples -name '*.py' -not -path 'examples/transfer_queue/*' | sort); do
    echo "example: $example"
    "$python" "$example" >/dev/null
    ran=$((ran + 1))
done
((ran > 0)) || { echo "examples: none found" >&2; exit 1; }
echo "examples: $ran ran"
"$python" scripts/doc_examples.py
