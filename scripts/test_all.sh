#!/usr/bin/env bash
# scripts/test_all.sh TARGET...: makes one target after the other, and prints what each took. The first that fails ends it.
set -euo pipefail

took=""
trap 'printf "== make test took\n%s%6d s  all\n" "$took" "$SECONDS"' EXIT
for target in "$@"; do
    begin=$SECONDS
    status=0
    "${MAKE:-make}" --no-print-directory "$target" || status=$?
    took+="$(printf '%6d s  %s' "$((SECONDS - begin))" "$target")"$'\n'
    ((status == 0)) || exit "$status"
done
