"""The benchmarks on a Mooncake cluster that the command starts and stops."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from mooncake_rig import cluster, require_mooncake
from test_cli import assert_writes_are_told_apart

import tensorlease as tl
from bench.command import main
from tensorlease.bench import machine, opening


@pytest.fixture(autouse=True)
def _small_and_on_mooncake(monkeypatch: pytest.MonkeyPatch) -> None:
    require_mooncake()
    monkeypatch.setattr(machine, "YARDSTICK_BYTES", 1 << 20)
    monkeypatch.setattr(opening, "YARDSTICK_BYTES", 1 << 20)


def run(tmp_path: Path, *arguments: str, status: int = 0) -> dict[str, Any]:
    path = tmp_path / "report.json"
    assert main([*arguments, "--json", str(path)]) == status
    report: dict[str, Any] = json.loads(path.read_text())
    assert report["complete"] is True
    return report


def modes_of(report: dict[str, Any]) -> dict[str, Any]:
    return {row["mode"]: row for row in report["rows"]}


def test_three_ways_of_reading_share_one_store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    modes = ["--modes", "register-per-call,store-pool,leased,batch", "--share", "quarter", "--batch-keys", "20"]
    report = run(tmp_path, "reads", "--engine", "mooncake", *modes, "--shapes", "64x64KiB", "--reps", "2")
    assert report["settings"].items() >= {"owner": "same", "share": "quarter", "local_buffer_bytes": 1 << 30}.items()
    rows = modes_of(report)
    assert [rows[mode]["loans"] for mode in rows] == [0, 4, 0, 0]
    assert rows["store-pool"]["copied_bytes"] == rows["store-pool"]["bytes"]
    assert rows["register-per-call"]["register_calls"] == 4
    assert rows["leased"]["register_calls"] == rows["leased"]["copied_bytes"] == 0
    assert rows["leased"]["ratio_to_store_pool"] > 0
    assert all(row["overflow_loans"] == row["fallbacks"] == 0 for row in rows.values())
    assert "segment in this process, pool of 1 GiB, share quarter" in capsys.readouterr().out


def test_one_reader_tells_what_part_of_the_time_the_stages_are(tmp_path: Path) -> None:
    arguments = ["--owner", "other", "--readers", "1", "--shapes", "8x1MiB", "--reps", "2"]
    report = run(tmp_path, "reads", "--engine", "mooncake", "--modes", "register-per-call,leased", *arguments)
    assert report["settings"]["owner"] == "other"
    for row in report["rows"]:
        assert 0 < row["stages_of_total"] <= 1.001
        assert row["stages_sum_ms"] == pytest.approx(sum(row["stages_ms"].values()), rel=0.5)


def test_a_cluster_that_somebody_else_runs_is_left_as_it_was(tmp_path: Path) -> None:
    with cluster(segment="128MiB") as master:
        with tl.open(master.url(), max_bytes="64MiB") as store:
            store.put(["8x64KiB/0"], ["somebody's"])
        arguments = ["--engine", master.url(), "--modes", "store-pool,leased", "--shapes", "8x64KiB", "--reps", "1"]
        report = run(tmp_path, "reads", *arguments)
        assert modes_of(report)["store-pool"]["loans"] == 1
        assert master.process.poll() is None
        with tl.open(master.url(), max_bytes="64MiB", namespace="bench-") as store:
            assert store.clear() == 0
        with tl.open(master.url(), max_bytes="64MiB") as store:
            assert store.contains(["8x64KiB/0"]) == [True]


def test_a_sweep_takes_as_many_leases_as_its_batches_need(tmp_path: Path) -> None:
    report = run(tmp_path, "sweep", "--shapes", "40x64KiB", "--batch-keys", "10,40", "--reps", "1", "--check")
    loans = {row["batch_keys"]: row["loans"] for row in report["rows"] if row["mode"] == "store-pool"}
    registrations = {
        row["batch_keys"]: row["register_calls"] for row in report["rows"] if row["mode"] == "register-per-call"
    }
    assert loans == registrations == {10: 4, 40: 1}
    assert {row["loans"] for row in report["rows"] if row["mode"] == "leased"} == {0}


def test_rounds_are_counted_for_each_buffer_and_share(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--batch", "40x64KiB", "--buffers", "1MiB,1TiB", "--shapes", "40x64KiB", "--shares", "half,quarter"]
    report = run(tmp_path, "rounds", *arguments, "--reps", "1", "--check", status=1)
    loans = {(row["local_buffer_bytes"], row["share"]): row["loans"] for row in report["rows"]}
    assert loans == {(1 << 20, "half"): 20, (1 << 20, "quarter"): 10, (1 << 30, "half"): 1, (1 << 30, "quarter"): 1}
    assert [(case["local_buffer_bytes"], case["share"]) for case in report["skipped"]] == [
        (1 << 40, "half"),
        (1 << 40, "quarter"),
    ]
    told = capsys.readouterr().out
    assert "left out: 40x64KiB, buffer 1024 GiB, share half: " in told
    assert told.count("MISS") == 2


def test_writes_are_compared_where_memory_must_be_registered(tmp_path: Path) -> None:
    report = run(tmp_path, "writes", "--engine", "mooncake", "--shapes", "16x64KiB", "--reps", "1", "--check")
    assert_writes_are_told_apart(modes_of(report), keys=16)
