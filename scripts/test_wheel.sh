#!/usr/bin/env bash
# Checks the wheel in dist/, then installs it into new environments, with no Rust on the PATH, and runs README.md's lines and the doctor there.
# With `[numpy]` pip installs all of it from the index; torch, which is gigabytes with CUDA, is linked from the environment that $PYTHON is of.
set -euo pipefail

python="${PYTHON:-python3}"
shopt -s nullglob
wheels=(dist/*.whl)
((${#wheels[@]} == 1)) || { echo "test-wheel: dist/ has ${#wheels[@]} wheels, and should have one (make wheel)" >&2; exit 1; }

"$python" scripts/wheel_check.py "${wheels[0]}"

path=""
IFS=: read -ra folders <<<"$PATH"
for folder in "${folders[@]}"; do
    [[ -x $folder/cargo || -x $folder/rustc ]] || path+="${path:+:}$folder"
done
PATH="$path" "$python" scripts/first_contact.py --wheel "${wheels[0]}" numpy torch
