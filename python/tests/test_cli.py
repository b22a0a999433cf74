"""The `tensorlease` command as a user runs it."""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from host_rig import place, served

import tensorlease as tl
from bench import writes
from bench.command import WRITE_MODE_NAMES
from bench.command import main as bench
from tensorlease.bench import machine, opening, reading
from tensorlease.bench.command import MODE_NAMES
from tensorlease.bench.reading import MODES, STORE_POOL
from tensorlease.bench.workload import NAMED
from tensorlease.cli import main, parser

ROW_FIELDS = {
    "shape",
    "mode",
    "median_ms",
    "min_ms",
    "stdev_ms",
    "register_calls",
    "registered_bytes",
    "leases",
    "loans",
    "overflow_loans",
    "copied_bytes",
    "page_faults",
    "stages_ms",
    "stages_sum_ms",
    "stages_of_total",
    "ratio",
    "ratio_to_store_pool",
    "repetitions_ms",
}


@pytest.fixture
def small_yardstick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(machine, "YARDSTICK_BYTES", 1 << 20)
    monkeypatch.setattr(opening, "YARDSTICK_BYTES", 1 << 20)
    yield


def run_reads(tmp_path: Path, *more: str) -> tuple[int, dict[str, Any]]:
    path = tmp_path / "reads.json"
    arguments = [
        "bench",
        "reads",
        "--shapes",
        "8x256KiB,64x32KiB",
        "--reps",
        "3",
        "--readers",
        "2",
        "--json",
        str(path),
    ]
    status = main([*arguments, *more])
    return status, json.loads(path.read_text())


def test_version_is_the_packages(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["version"]) == 0
    assert capsys.readouterr().out.strip() == f"tensorlease {tl.__version__}"


def test_the_parser_knows_the_modes_that_there_are() -> None:
    assert MODE_NAMES == MODES
    assert tuple(writes.MODES) == WRITE_MODE_NAMES


@pytest.mark.usefixtures("small_yardstick")
def test_reads_reports_every_shape_and_mode(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    modes = [mode for mode in MODES if mode != STORE_POOL]
    status, report = run_reads(tmp_path, "--modes", ",".join(modes))
    assert status == 0
    assert report["complete"] is True
    assert report["memcpy_ms_per_gib"] > 0
    assert {(row["shape"], row["mode"]) for row in report["rows"]} == {
        (shape, mode) for shape in ("8x256KiB", "64x32KiB") for mode in modes
    }
    for row in report["rows"]:
        assert row.keys() >= ROW_FIELDS
        assert set(row["stages_ms"]) == {"plan", "register", "transfer", "copy", "wrap"}
        assert len(row["repetitions_ms"]) == 3
        assert row["min_ms"] <= row["median_ms"] <= max(row["repetitions_ms"])
    table = capsys.readouterr().out
    assert all(mode in table for mode in modes)


@pytest.mark.usefixtures("small_yardstick")
def test_counters_tell_the_modes_apart(tmp_path: Path) -> None:
    _, report = run_reads(tmp_path)
    rows = {row["mode"]: row for row in report["rows"] if row["shape"] == "8x256KiB"}
    assert rows["leased"]["leases"] == 8
    assert rows["leased"]["register_calls"] == 0
    assert rows["leased"]["copied_bytes"] == 0
    assert rows["copied"]["leases"] == 0
    assert rows["register-per-call"]["leases"] == 0
    assert rows["register-per-call"]["ratio"] == 1.0


@pytest.mark.usefixtures("small_yardstick")
def test_a_checked_run_without_promised_shapes_is_a_miss(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, _ = run_reads(tmp_path, "--modes", "copied", "--check")
    assert status == 1
    assert "MISS" in capsys.readouterr().out


@pytest.mark.usefixtures("small_yardstick")
def test_reads_draws_a_chart(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    chart = tmp_path / "reads.png"
    status, _ = run_reads(tmp_path, "--plot", str(chart))
    assert status == 0
    assert chart.read_bytes().startswith(b"\x89PNG")
    chart.unlink()
    assert bench(["plot", str(tmp_path / "reads.json"), str(chart)]) == 0
    assert chart.read_bytes().startswith(b"\x89PNG")


@pytest.mark.usefixtures("small_yardstick")
def test_an_interrupted_run_keeps_what_it_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    measure, calls = reading.warm_then_timed, []

    def interrupted_at_the_fourth(*arguments: Any) -> Any:
        calls.append(arguments)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return measure(*arguments)

    monkeypatch.setattr(reading, "warm_then_timed", interrupted_at_the_fourth)
    status, report = run_reads(tmp_path, "--modes", "leased,copied")
    assert status == 130
    assert report["complete"] is False
    assert sum(len(row["repetitions_ms"]) for row in report["rows"]) == 3
    assert capsys.readouterr().err == "tensorlease: interrupted\n"


def test_ctrl_c_ends_the_process_without_a_traceback(tmp_path: Path) -> None:
    path = tmp_path / "reads.json"
    command = [sys.executable, "-m", "tensorlease", "bench", "reads", "--shapes", "16x1MiB", "--reps", "1000000"]
    process = subprocess.Popen(
        [*command, "--json", str(path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        wait_for_threads_of_a_store(process)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == 130
    assert "Traceback" not in errors
    assert errors.endswith("tensorlease: interrupted\n")
    assert json.loads(path.read_text())["complete"] is False


def wait_for_threads_of_a_store(process: subprocess.Popen[str]) -> None:
    """Until the process reads from a store, which shows by the threads that do it."""
    deadline = time.monotonic() + 45
    while time.monotonic() < deadline and process.poll() is None:
        names = [path.read_text() for path in Path(f"/proc/{process.pid}/task").glob("*/comm")]
        if any(name.startswith("tensorlease-rea") for name in names):
            return
        time.sleep(0.1)
    raise AssertionError("the process never read from a store")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["reads", "--shapes", "64"], "COUNTxSIZE"),
        (["reads", "--shapes", "0x1MiB"], "COUNTxSIZE"),
        (["reads", "--shapes", "4x3"], "multiple of 4"),
        (["reads", "--shapes", "4x1parsec"], "no size"),
        (["reads", "--modes", "fast"], "the modes are"),
        (["reads", "--reps", "0"], "at least 1"),
        (["reads", "--max-bytes", "0"], "at least one byte"),
        (["reads", "--share", "most"], "the shares are half, quarter"),
        (["reads", "--owner", "nobody"], "invalid choice"),
        (["writes", "--modes", "leased"], "the modes are"),
        (["sweep", "--batch-keys", "50,0"], "at least 1"),
        ([], "required"),
    ],
)
def test_wrong_usage_is_told_and_exits_with_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_:
        bench(arguments)
    assert exit_.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["reads", "--engine", "nowhere://", "--shapes", "4x1KiB"], "nowhere"),
        (["reads", "--shapes", "1000000x1GiB"], "leave it out"),
        (["reads", "--shapes", "4x1KiB", "--json", "/no/such/folder/x.json"], "no folder"),
        (["reads", "--owner", "other"], "--owner other needs --engine mooncake"),
        (["reads", "--share", "half"], "the share of store-pool"),
        (["reads", "--modes", "leased,store-pool"], "only Mooncake has a pool"),
        (["reads", "--engine", "mooncake", "--modes", "store-pool,auto,copied"], "so would auto and copied"),
        (["reads", "--engine", "mooncake://h:1?pool=store"], "leave pool out of the URL"),
        (["sweep", "--engine", "mooncake://h:1?local_buffer=1GiB"], "leave local_buffer out"),
        (["rounds", "--engine", "embedded://"], "only Mooncake has a pool"),
        (["pairs", "--a", "auto", "--b", "auto"], "two different"),
        (["pairs", "--engine", "mooncake", "--a", "auto", "--b", "store-pool"], "so would auto"),
        (["stack", "--shape", "ragged"], "torch.stack"),
        (["keys", "--row-bytes", "7"], "multiple of 4"),
        (["demo", "--samples", "6001"], "6000"),
    ],
)
def test_what_can_not_run_is_told_at_once(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench(arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith("tensorlease: ")
    assert message in error


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "required"),
        (["bench"], "required"),
        (["bench", "writes"], "invalid choice"),
        (["bench", "reads", "--owner", "other"], "unrecognized arguments"),
        (["bench", "reads", "--shapes", "ragged"], "`python -m bench`"),
    ],
)
def test_the_command_of_the_package_names_what_it_lacks(
    arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delitem(NAMED, "ragged")
    with pytest.raises(SystemExit) as exit_:
        main(arguments)
    assert exit_.value.code == 2
    assert message in capsys.readouterr().err


def test_the_command_of_the_package_starts_no_cluster(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "reads", "--shapes", "4x1KiB", "--engine", "mooncake"]) == 2
    assert "`python -m bench`" in capsys.readouterr().err


def options_of(parser: argparse.ArgumentParser) -> list[str]:
    """Every option of a command and of its own commands. `--help`, which each has, is not counted."""
    found = []
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                found += options_of(below)
        elif not isinstance(action, argparse._HelpAction):
            found += action.option_strings
    return found


def test_the_command_has_at_most_30_options() -> None:
    assert 0 < len(options_of(parser())) <= 30


@pytest.mark.usefixtures("small_yardstick")
@pytest.mark.parametrize("interrupted", [False, True])
def test_a_benchmark_in_a_hosts_store_meets_nothing_there_and_leaves_nothing(
    interrupted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if interrupted:
        monkeypatch.setattr(reading, "warm_then_timed", interrupt)
    with place() as folder, served(folder / "bench.sock") as daemon, tl.open(daemon.url, max_bytes="16MiB") as store:
        store.put(["8x256KiB/0"], ["somebody's"])
        command = ["bench", "reads", "--engine", daemon.url, "--shapes", "8x256KiB", "--modes", "leased", "--reps", "1"]
        assert main(command) == (130 if interrupted else 0)
        assert store.get(["8x256KiB/0"], [None], [None]) == ["somebody's"]
        assert daemon.report()["objects"] == 1


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.usefixtures("small_yardstick")
def test_what_a_mode_brings_about_on_purpose_is_a_column_and_no_warning(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "reads", "--shapes", "64x1MiB", "--modes", "leased,loop", "--reps", "1"]) == 0
    told = capfd.readouterr()
    assert told.err == ""
    assert "fallbacks" in told.out
    assert "store-pool" not in told.out, "the legend tells of columns that are there"


def test_pairs_reports_the_median_of_the_ratios(tmp_path: Path) -> None:
    path = tmp_path / "pairs.json"
    arguments = ["--shapes", "8x256KiB", "--a", "leased", "--b", "copied", "--pairs", "3", "--max-bytes", "64MiB"]
    assert bench(["pairs", *arguments, "--json", str(path)]) == 0
    (row,) = json.loads(path.read_text())["rows"]
    ratios = sorted(second / first for first, second in row["pairs_ms"])
    assert row["ratio"] == pytest.approx(ratios[1])
    assert row["ratio_quartiles"][0] <= row["ratio"] <= row["ratio_quartiles"][1]


def test_stack_and_keys_report_their_rows(tmp_path: Path) -> None:
    stack, keys = tmp_path / "stack.json", tmp_path / "keys.json"
    assert bench(["stack", "--shape", "64x16KiB", "--reps", "2", "--json", str(stack)]) == 0
    assert [row["mode"] for row in json.loads(stack.read_text())["rows"]] == ["get_batch", "get + torch.stack"]
    counts = ["--keys", "100,1000", "--reps", "2", "--max-bytes", "128MiB"]
    assert bench(["keys", *counts, "--json", str(keys)]) == 0
    rows = json.loads(keys.read_text())["rows"]
    assert [row["keys"] for row in rows] == [100, 1000]
    assert all(0 < row["stages_us_per_key"]["wrap"] < row["total_us_per_key"] for row in rows)
    assert all(row["unbind_us_per_key"] > 0 for row in rows)


@pytest.mark.usefixtures("small_yardstick")
def test_writes_reports_how_each_kind_of_value_leaves(tmp_path: Path) -> None:
    path = tmp_path / "writes.json"
    arguments = ["--engine", "embedded://?registration=pinned", "--shapes", "64x32KiB", "--reps", "2"]
    assert bench(["writes", *arguments, "--check", "--json", str(path)]) == 0
    rows = {row["mode"]: row for row in json.loads(path.read_text())["rows"]}
    assert_writes_are_told_apart(rows, keys=64)


def assert_writes_are_told_apart(rows: dict[str, Any], keys: int) -> None:
    assert set(rows) == set(WRITE_MODE_NAMES)
    assert (rows["arena"]["in_place_writes"], rows["arena"]["copied_bytes"]) == (keys, 0)
    assert rows["foreign"]["staged_writes"] == rows["packed"]["staged_writes"] == keys
    assert all(rows[mode]["register_calls"] == 0 for mode in ("arena", "foreign", "packed"))
    assert all(rows[mode]["register_calls"] >= 1 for mode in ("register-per-call", "packed-register-per-call"))
    assert rows["register-per-call"]["ratio"] == rows["packed-register-per-call"]["ratio"] == 1.0
    assert all(row["fallback_writes"] == 0 for row in rows.values())
