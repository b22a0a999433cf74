#!/usr/bin/env bash
# The fault campaign: thousands of random programs over engines that fail, each checked against a model (what each part is for:
# crates/client/tests/faults/main.rs). Fast code, but with every assertion and overflow check in it.
#
#   scripts/faults.sh                                   at least 5,000 programs, at most 10 minutes
#   scripts/faults.sh --replay SEED [--times N]         one program again, as often as it takes
#   scripts/faults.sh --programs N --seconds S --seed X
#   scripts/faults.sh --show SEED                       what the program of a seed is
set -euo pipefail

export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-$PWD/target}/faults"
# Whole-program optimisation takes longer than it saves here.
export CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16
export CARGO_PROFILE_RELEASE_DEBUG_ASSERTIONS=true CARGO_PROFILE_RELEASE_OVERFLOW_CHECKS=true

if [[ $# == 0 ]]; then
    # Seeds that nobody has tried, unless FAULTS_SEED names them.
    set -- --programs "${FAULTS_PROGRAMS:-6000}" --seconds "${FAULTS_SECONDS:-450}" --at-least "${FAULTS_AT_LEAST:-5000}" \
        --seed "${FAULTS_SEED:-$((RANDOM * 32768 + RANDOM))}"
fi
exec cargo test --quiet --release -p tensorlease --test faults -- "$@"
