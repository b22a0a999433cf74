"""The mutant runner tells a mutant that was noticed from one that survived, did not compile, or met no test."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))
import mutants


@pytest.mark.parametrize(
    ("status", "output", "verdict"),
    [
        (101, "running 3 tests\ntest result: FAILED. 2 passed; 1 failed", "caught"),
        (101, "running 3 tests\nthread panicked at src/arena.rs:1:1", "caught"),
        (1, "1 failed, 3 passed in 0.2s", "caught"),
        (124, "running 1 test\n1 failed: ended after 120 s", "caught"),
        (0, "running 3 tests\ntest result: ok. 3 passed; 0 failed", "SURVIVED"),
        (0, "running 0 tests\ntest result: ok.", "NO TEST"),
        (101, "error[E0308]: mismatched types\nerror: could not compile `tensorlease-arena`", "NOT COMPILED"),
        (101, "error: no test target named `gone`", "NOT COMPILED"),
        (127, "bash: no-such-command: command not found", "NOT COMPILED"),
    ],
)
def test_each_end_of_a_run_has_its_verdict(status: int, output: str, verdict: str) -> None:
    assert mutants._verdict(status, output) == verdict


def test_a_patch_without_its_header_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "01-x.patch"
    path.write_text("Mutant: a loss\nTests: true\n\n--- a/x\n+++ b/x\n")
    assert mutants.Mutant.read(path) == mutants.Mutant(path, "a loss", "true")
    path.write_text("Mutant: a loss\n\n--- a/x\nTests: inside the diff\n")
    with pytest.raises(SystemExit, match="the header needs"):
        mutants.Mutant.read(path)


def test_a_mutant_is_applied_run_and_taken_back(tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_text("one\n")
    path = tmp_path / "01-x.patch"
    path.write_text("Mutant: a loss\nTests: t\n\n--- a/x.txt\n+++ b/x.txt\n@@ -1 +1 @@\n-one\n+two\n")
    noticing = mutants.Mutant(path, "a loss", "echo running 1 test; grep -q one x.txt || { echo 1 failed; exit 1; }")
    blind = mutants.Mutant(path, "a loss", "echo running 1 test")
    assert mutants.try_mutant(noticing, tmp_path).verdict == "caught"
    assert mutants.try_mutant(blind, tmp_path).verdict == "SURVIVED"
    assert (tmp_path / "x.txt").read_text() == "one\n"
    (tmp_path / "x.txt").write_text("other\n")
    assert mutants.try_mutant(noticing, tmp_path).verdict == "NOT APPLIED"


def test_a_test_that_fails_anyway_is_no_baseline(tmp_path: Path) -> None:
    failing = mutants.Mutant(tmp_path, "a loss", "echo running 1 test; exit 1")
    without = mutants.Mutant(tmp_path, "a loss", "echo running 0 tests")
    passing = mutants.Mutant(tmp_path, "a loss", "echo running 1 test")
    assert set(mutants.try_baseline([failing, without, passing], tmp_path)) == {failing.tests, without.tests}
