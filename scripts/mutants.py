#!/usr/bin/env python3
"""Breaks the code on purpose, one patch at a time, and demands that the tests named in the patch notice.

A patch in mutants/ starts with a header and is a unified diff below it:

    Mutant: what a user would lose
    Tests: cargo test -p tensorlease-arena --lib allocator

`Tests` is one shell command, run in a copy of the tree. A mutant that survives, does not apply or does not compile
fails the run. Usage: scripts/mutants.py [NAME...], where a name is any part of a patch's file name.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# A mutant may well hang: that counts as noticed, but it must end.
SECONDS_MAX = 120
# The first run of a test also builds everything below it.
BASELINE_SECONDS_MAX = 600
# A test failed (cargo test, nextest, pytest), or the program was ended by a failed assertion of its own.
FAILED_TEST = re.compile(r"test result: FAILED|\bFAIL \[|\d+ failed|panicked at|SIGABRT|SIGSEGV|AddressSanitizer")
NOT_COMPILED = re.compile(r"error: could not compile|error\[E\d+\]|error: no test target|error: package ID|SyntaxError")
RAN_NO_TEST = re.compile(r"running [1-9]\d* tests?|\d+ passed|\d+ failed|Starting [1-9]\d* tests?")


@dataclass(frozen=True)
class Mutant:
    path: Path
    description: str
    tests: str

    @property
    def name(self) -> str:
        return self.path.stem

    @classmethod
    def read(cls, path: Path) -> Mutant:
        header = path.read_text(encoding="utf-8").split("\n--- ", 1)[0]
        fields = dict(re.findall(r"^(Mutant|Tests): (.+)$", header, flags=re.MULTILINE))
        if set(fields) != {"Mutant", "Tests"}:
            sys.exit(f"{path}: the header needs one line `Mutant: ...` and one line `Tests: ...`")
        return cls(path, fields["Mutant"], fields["Tests"])


@dataclass(frozen=True)
class Outcome:
    verdict: str  # caught, SURVIVED, NOT APPLIED, NOT COMPILED, NO TEST, BASELINE FAILS
    seconds: float
    log: str = ""

    @property
    def good(self) -> bool:
        return self.verdict == "caught"


def target_dir() -> Path:
    return Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).resolve() / "mutants"


def copy_tree(target: Path) -> None:
    """The files under version control or about to be, in a tree of its own: nothing here is ever patched in place."""
    shutil.rmtree(target, ignore_errors=True)
    listing = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        capture_output=True,
        check=True,
    ).stdout.decode()
    for name in filter(None, listing.split("\0")):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            # A fresh modification time: an artifact of the last run's mutant is never taken for this code's.
            shutil.copy(ROOT / name, target / name)
    # Tests of Python code need the native module, which is built and not under version control.
    for module in (ROOT / "python" / "tensorlease").glob("_core*.so"):
        shutil.copy(module, target / "python" / "tensorlease" / module.name)


def environment() -> dict[str, str]:
    extra = {
        "CARGO_TARGET_DIR": str(target_dir()),
        "CARGO_TERM_COLOR": "never",
        # Line tables only: the tests are linked some forty times.
        "CARGO_PROFILE_DEV_DEBUG": "line-tables-only",
        "CARGO_INCREMENTAL": "1",
        "PROPTEST_FORK": "false",
        "RUST_BACKTRACE": "0",
        # Python tests, and the processes that they start, see the copy and not the code that is installed.
        "PYTHON": sys.executable,
        "PYTHONPATH": str(target_dir() / "tree" / "python"),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    return {**os.environ, **extra}


def run(command: str, tree: Path, seconds_max: int = SECONDS_MAX) -> tuple[int, str]:
    """Exit status and output; a command past its time is ended with its children and counts as failed."""
    with subprocess.Popen(
        ["bash", "-c", command],
        cwd=tree,
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as process:
        try:
            output, _ = process.communicate(timeout=seconds_max)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            output, _ = process.communicate()
            return 124, output + f"\n1 failed: ended after {seconds_max} s"
        return process.returncode, output


def patch(mutant: Mutant, tree: Path, *options: str) -> bool:
    command = ["git", "apply", *options, str(mutant.path)]
    # The copy is no repository, even where it lies inside one.
    outside = {**os.environ, "GIT_CEILING_DIRECTORIES": str(tree.parent)}
    return subprocess.run(command, cwd=tree, env=outside, capture_output=True, check=False).returncode == 0


def try_mutant(mutant: Mutant, tree: Path) -> Outcome:
    begin = time.monotonic()
    if not patch(mutant, tree):
        return Outcome("NOT APPLIED", time.monotonic() - begin)
    try:
        status, output = run(mutant.tests, tree)
    finally:
        if not patch(mutant, tree, "--reverse"):
            sys.exit(f"{mutant.path}: applied, but could not be taken back")
    return Outcome(_verdict(status, output), time.monotonic() - begin, output)


def _verdict(status: int, output: str) -> str:
    if NOT_COMPILED.search(output):
        return "NOT COMPILED"
    if status == 0:
        return "SURVIVED" if RAN_NO_TEST.search(output) else "NO TEST"
    return "caught" if FAILED_TEST.search(output) else "NOT COMPILED"


def try_baseline(mutants: list[Mutant], tree: Path) -> dict[str, Outcome]:
    """The named tests pass on the code as it is: a test that fails anyway would catch nothing."""
    outcomes = {}
    for tests in sorted({mutant.tests for mutant in mutants}):
        begin = time.monotonic()
        status, output = run(tests, tree, BASELINE_SECONDS_MAX)
        if status != 0 or not RAN_NO_TEST.search(output):
            outcomes[tests] = Outcome("BASELINE FAILS", time.monotonic() - begin, output)
    return outcomes


def report(rows: list[tuple[Mutant, Outcome]]) -> int:
    for mutant, outcome in rows:
        if not outcome.good:
            print(f"\n---- {mutant.name}: {outcome.verdict}\n$ {mutant.tests}\n{outcome.log[-3000:]}")
    width = max(len(mutant.name) for mutant, _ in rows)
    print()
    for mutant, outcome in rows:
        print(f"{mutant.name:<{width}}  {outcome.verdict:<14} {outcome.seconds:5.1f} s  {mutant.description}")
    caught = sum(outcome.good for _, outcome in rows)
    print(f"mutants: {caught} of {len(rows)} caught")
    return 0 if caught == len(rows) else 1


def main(wanted: list[str]) -> int:
    paths = sorted((ROOT / "mutants").glob("*.patch"))
    mutants = [Mutant.read(path) for path in paths if not wanted or any(name in path.name for name in wanted)]
    if not mutants:
        sys.exit("mutants: no patch of that name")
    tree = target_dir() / "tree"
    copy_tree(tree)
    failing = try_baseline(mutants, tree)
    rows = []
    for mutant in mutants:
        outcome = failing.get(mutant.tests) or try_mutant(mutant, tree)
        print(f"{mutant.name}: {outcome.verdict} ({outcome.seconds:.0f} s)", flush=True)
        rows.append((mutant, outcome))
    return report(rows)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
