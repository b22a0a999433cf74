"""The parts of the command that need no store."""

from __future__ import annotations

import io
import random
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import tensorlease as tl
from bench.check import check
from bench.data import conversation_lengths
from bench.demo.compare import counted
from bench.engine import Engine
from bench.lending import PUBLISHED_LEASES, PUBLISHED_ROUNDS, planned_loans, published_loans, share_bytes
from bench.spread import quartiles, stdev
from bench.stored_report import read_json
from tensorlease.bench.column import Column, WrongContents
from tensorlease.bench.machine import available_bytes, require_memory
from tensorlease.bench.opening import default_max_bytes, engine_for
from tensorlease.bench.reading import require_comparable
from tensorlease.bench.report import Progress, TableColumn, engine_line, judged, table, table_of, write_json
from tensorlease.bench.workload import Workload, parse_workload
from tensorlease.option_values import size_bytes
from tensorlease.sizes import format_bytes


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("4096", 4096),
        ("64MiB", 64 << 20),
        ("1.5 GB", 1_500_000_000),
        ("1kib", 1024),
        (" 2 TiB ", 2 << 40),
        ("0.5KiB", 512),
    ],
)
def test_sizes_are_read_as_people_write_them(text: str, size: int) -> None:
    assert size_bytes(text) == size


@pytest.mark.parametrize("text", ["", "MiB", "-1MiB", "1 MiB 2", "1Mi", "0", "1e3"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no size|at least one byte"):
        size_bytes(text)


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 B"), (1023, "1023 B"), (64 << 20, "64 MiB"), (1 << 30, "1 GiB"), (1536, "1.5 KiB")]
)
def test_sizes_are_written_with_the_unit_that_fits(size: int, text: str) -> None:
    assert format_bytes(size) == text


def test_a_shape_is_a_count_and_a_size() -> None:
    workload = parse_workload("64x16MiB")
    assert (len(workload.shapes), workload.shapes[0], workload.size_bytes) == (64, (4 << 20,), 1 << 30)


def test_ragged_rows_are_the_conversations() -> None:
    lengths = conversation_lengths()
    workload = parse_workload("ragged")
    assert workload.size_bytes == 629_803_304
    assert workload.lengths == tuple(row.prompt + row.answer for row in lengths)
    assert lengths[0] == (6758, 500)
    assert max(workload.lengths) == 124_741


def test_the_default_budget_holds_the_largest_shape_and_not_twice() -> None:
    workloads = [parse_workload("4x16MiB"), parse_workload("8x16MiB")]
    assert default_max_bytes(workloads) == round(1.4 * (128 << 20))


def test_the_default_budget_of_tiny_shapes_is_a_slab() -> None:
    assert default_max_bytes([parse_workload("8x1KiB")]) == 64 << 20


def test_only_embedded_engines_without_a_capacity_get_one() -> None:
    assert engine_for("embedded://", 1 << 30) == f"embedded://?capacity={round(1.25 * (1 << 30))}"
    assert engine_for("embedded://?registration=pinned", 1 << 30).startswith(
        "embedded://?registration=pinned&capacity="
    )
    for given in ("embedded://?capacity=4GiB", "mooncake://host:1?protocol=tcp"):
        assert engine_for(given, 1 << 30) == given


@pytest.mark.parametrize("engine", ["mooncake", "mooncake://h:1", "mooncake://h:1?protocol=rdma"])
def test_objects_of_a_cluster_elsewhere_take_no_memory_here(engine: str) -> None:
    workload = parse_workload("1024x1MiB")
    here = Engine("mooncake", share="half").needed_bytes(workload, 2 << 30)
    needed = Engine(engine, share="half").needed_bytes(workload, 2 << 30)
    assert here - needed == (0 if engine == "mooncake" else round(1.25 * (1 << 30)))
    # The objects, the arena, a result outside it, and Mooncake's pool of 1 GiB.
    assert here == round(1.25 * (1 << 30)) + (2 << 30) + (1 << 30) + (1 << 30)


def test_modes_that_would_be_one_and_the_same_are_not_compared() -> None:
    require_comparable(["register-per-call", "store-pool", "leased", "batch"])
    require_comparable(["register-per-call", "copied", "loop", "auto"])
    for mode in ("copied", "loop", "auto"):
        with pytest.raises(tl.ConfigError, match=f"so would {mode} on the same store"):
            require_comparable([mode, "store-pool"])


def test_planned_leases_are_those_that_the_reference_published() -> None:
    for (shape, share), leases in PUBLISHED_LEASES.items():
        assert planned_loans(parse_workload(shape), 400, share_bytes(1 << 30, 4, share)) == leases
        assert published_loans(shape, share, 1 << 30) == leases
        assert published_loans(shape, share, 2 << 30) is None
    for (buffer, share), rounds in PUBLISHED_ROUNDS.items():
        assert planned_loans(parse_workload("400x1MiB"), 400, share_bytes(buffer, 4, share)) == rounds
        assert published_loans("400x1MiB", share, buffer) == rounds
    assert published_loans("8x1MiB", "half", 1 << 30) is None


def test_rows_larger_than_a_share_take_no_lease() -> None:
    rows = Workload("mixed", "float32", (3, 1, 1, 9, 1, 3))
    assert rows.row_bytes == [12, 4, 4, 36, 4, 12]
    # Without the largest: 12 | 4 4 4 | 12.
    assert planned_loans(rows, batch_keys=400, bytes_max=12) == 3
    # Batches of two keys each: 12 | 4, 4 4, 12.
    assert planned_loans(rows, batch_keys=2, bytes_max=12) == 4


def test_a_column_notices_rows_that_are_swapped_changed_or_missing() -> None:
    column = Column(parse_workload("5x4KiB"), seed=1)
    rows = [column.row(index) for index in range(5)]
    rng = random.Random(0)
    column.check(rows, rng, samples=5)
    column.check(torch.stack(rows), rng, samples=5)
    with pytest.raises(WrongContents, match="not what was written"):
        column.check([rows[1], rows[0], *rows[2:]], rng, samples=5)
    with pytest.raises(WrongContents, match="4 rows came back for 5 keys"):
        column.check(rows[:4], rng)
    rows[2][-1] += 1
    with pytest.raises(WrongContents, match="row 2"):
        column.check(rows, rng, samples=5)


def test_memory_is_refused_before_it_is_taken() -> None:
    require_memory(1, "one byte", "nothing to do")
    with pytest.raises(tl.ConfigError, match="too much needs about .* are available; buy more"):
        require_memory(available_bytes() + (1 << 40), "too much", "buy more")


def test_statistics_of_one_and_of_several_values() -> None:
    assert (stdev([3.0]), quartiles([3.0])) == (0.0, (3.0, 3.0))
    assert stdev([1.0, 3.0]) == pytest.approx(2**0.5)
    assert quartiles([1.0, 2.0, 3.0, 4.0, 5.0]) == (2.0, 4.0)


def test_a_table_is_aligned_and_keeps_blank_lines() -> None:
    assert table(["name", "ms"], [["a", "1.0"], [], ["longer", "10.0"]], left_columns=1).split("\n") == [
        "name      ms",
        "──────  ────",
        "a        1.0",
        "",
        "longer  10.0",
    ]


def test_a_table_leaves_out_columns_that_hold_for_no_row() -> None:
    columns = [
        TableColumn("ms", lambda row: str(row["ms"])),
        TableColumn("loans", lambda row: str(row["loans"]), lambda row: row["loans"]),
    ]
    rows = [{"shape": "a", "mode": "x", "ms": 1, "loans": 0}, {"shape": "b", "mode": "x", "ms": 2, "loans": 0}]
    assert table_of(rows, columns, ("shape", "mode")).splitlines()[0] == "shape  mode  ms"
    rows[1]["loans"] = 7
    lines = table_of(rows, columns, ("shape", "mode")).splitlines()
    assert lines[0] == "shape  mode  ms  loans"
    assert lines[2:] == ["a      x      1      0", "", "b      x      2      7"]


def test_the_line_about_the_engine_says_where_its_objects_are() -> None:
    pool = {"owner": "other", "share": "quarter", "local_buffer_bytes": 1 << 30}
    assert engine_line({"engine": "embedded://", "settings": {}}) == "embedded://"
    assert engine_line({"engine": "mooncake", "settings": pool}) == (
        "mooncake, TCP, segment in another process, pool of 1 GiB, share quarter"
    )


def test_counted_knows_singular_and_plural() -> None:
    assert [counted(number, "page fault") for number in (0, 1, 1234)] == [
        "0 page faults",
        "1 page fault",
        "1,234 page faults",
    ]


def test_a_report_that_can_not_be_written_leaves_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    write_json({"rows": [1]}, path)
    with pytest.raises(TypeError):
        write_json({"rows": object()}, path)
    assert read_json(path) == {"rows": [1]}
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("text", ["{", "[]"])
def test_a_file_that_is_no_report_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "report.json"
    path.write_text(text)
    with pytest.raises(tl.ConfigError, match="is no report"):
        read_json(path)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_is_drawn_on_terminals_only_and_wiped_at_the_end() -> None:
    for stream, drawn in ((Terminal(), True), (io.StringIO(), False)):
        with Progress(2, stream) as progress:
            progress.step("first")
            progress.step("second")
        assert ("100%" in stream.getvalue()) is drawn
        assert stream.getvalue().endswith("\x1b[K") is drawn


def report_of(benchmark: str, rows: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    return {"benchmark": benchmark, "engine": "embedded://", "complete": True, "settings": {}, "rows": rows} | more


def leased_row(ratio: float, to_memcpy: float, register_calls: float = 0) -> dict[str, Any]:
    return {
        "shape": "64x16MiB",
        "mode": "leased",
        "ratio": ratio,
        "ratio_to_memcpy": to_memcpy,
        "register_calls": register_calls,
    }


PINNED = "embedded://?registration=pinned"
PAIRS = {"a": "auto", "b": "register-per-call"}


@pytest.mark.parametrize(
    ("report", "passes"),
    [
        (report_of("reads", [leased_row(4.5, 9.9)], engine=PINNED), True),
        (report_of("reads", [leased_row(4.49, 0.1)], engine=PINNED), False),
        (report_of("reads", [leased_row(9.9, 0.1, register_calls=0.1)], engine=PINNED), False),
        (report_of("reads", [leased_row(1.0, 0.9)]), True),
        (report_of("reads", [leased_row(9.9, 0.91)]), False),
        (report_of("reads", [leased_row(9.9, 0.1)], complete=False), False),
        (report_of("reads", []), False),
        (
            report_of(
                "pairs", [{"shape": "s", "max_bytes": 1, "ratio": 0.95, "pairs_ms": [[1, 1]] * 15}], settings=PAIRS
            ),
            True,
        ),
        (
            report_of(
                "pairs", [{"shape": "s", "max_bytes": 1, "ratio": 0.94, "pairs_ms": [[1, 1]] * 15}], settings=PAIRS
            ),
            False,
        ),
        (
            report_of(
                "pairs", [{"shape": "s", "max_bytes": 1, "ratio": 2.0, "pairs_ms": [[1, 1]] * 14}], settings=PAIRS
            ),
            False,
        ),
        (report_of("stack", [{"shape": "s", "mode": "get_batch", "ratio": 6.0, "repetitions_ms": [1] * 10}]), True),
        (report_of("stack", [{"shape": "s", "mode": "get_batch", "ratio": 5.9, "repetitions_ms": [1] * 10}]), False),
    ],
)
def test_promises_are_kept_at_their_limit_and_missed_beyond(report: dict[str, Any], passes: bool) -> None:
    assert all(verdict.passed for verdict in judged(report, check(report))) is passes


def mooncake_report(rows: list[dict[str, Any]], **settings: Any) -> dict[str, Any]:
    pool = {"owner": "same", "share": "half", "local_buffer_bytes": 1 << 30, "batch_keys": 400, "readers": 4}
    return report_of("reads", rows, engine="mooncake", settings=pool | settings)


def mooncake_leased(ratio: float, to_store_pool: float, stages_of_total: float | None = None) -> dict[str, Any]:
    pool = {"ratio_to_store_pool": to_store_pool, "stages_of_total": stages_of_total}
    return leased_row(ratio, 1.0) | pool


def store_pool_row(loans: float, overflow_loans: float = 0) -> dict[str, Any]:
    row = {"shape": "64x16MiB", "mode": "store-pool", "loans": loans, "overflow_loans": overflow_loans}
    return row | {"stages_of_total": None}


@pytest.mark.parametrize(
    ("report", "passes"),
    [
        (mooncake_report([mooncake_leased(5.0, 3.0)]), True),
        (mooncake_report([mooncake_leased(4.99, 3.0)]), False),
        (mooncake_report([mooncake_leased(5.0, 2.99)]), False),
        (mooncake_report([mooncake_leased(1.3, 0.5)], owner="other"), True),
        (mooncake_report([mooncake_leased(1.29, 9.0)], owner="other"), False),
        (mooncake_report([mooncake_leased(1.0, 1.0, stages_of_total=0.95)], readers=1), True),
        (mooncake_report([mooncake_leased(1.0, 1.0, stages_of_total=0.94)], readers=1), False),
        (mooncake_report([mooncake_leased(1.0, 1.0, stages_of_total=1.06)], readers=1), False),
        (mooncake_report([store_pool_row(8)]), True),
        (mooncake_report([store_pool_row(9)]), False),
        (mooncake_report([store_pool_row(8, overflow_loans=0.1)]), False),
        (mooncake_report([store_pool_row(8)], share="quarter"), False),
        (mooncake_report([store_pool_row(4)], share="quarter"), True),
        (mooncake_report([store_pool_row(4, overflow_loans=2.4)], share="quarter"), True),
        (mooncake_report([store_pool_row(9)], batch_keys=100), True),
        (mooncake_report([store_pool_row(9)], readers=2), True),
    ],
)
def test_promises_on_mooncake_are_kept_at_their_limit_and_missed_beyond(report: dict[str, Any], passes: bool) -> None:
    assert all(verdict.passed for verdict in judged(report, check(report))) is passes


def test_counted_leases_must_be_the_published_ones_or_the_planned_ones() -> None:
    def rounds(shape: str, loans: float, planned: int, skipped: list[dict[str, Any]] | None = None) -> dict[str, Any]:
        row = {"shape": shape, "local_buffer_bytes": 64 << 20, "share": "half", "loans": loans, "overflow_loans": 0}
        return report_of("rounds", [row | {"planned_loans": planned}], skipped=skipped or [])

    left_out = {"shape": "400x1MiB", "local_buffer_bytes": 4 << 30, "share": "half", "why": "no memory"}
    reports = [
        rounds("400x1MiB", 50, planned=1),
        rounds("400x1MiB", 51, planned=51),
        rounds("8x1MiB", 2, planned=2),
        rounds("8x1MiB", 2.5, planned=2),
        rounds("400x1MiB", 50, planned=50, skipped=[left_out]),
    ]
    passes = [all(verdict.passed for verdict in judged(report, check(report))) for report in reports]
    assert passes == [True, False, True, False, False]


def test_costs_per_key_must_be_small_and_must_not_grow() -> None:
    def costs(keys: int, plan: float, wrap: float, unbind: float = 0.3) -> dict[str, Any]:
        return {"keys": keys, "stages_us_per_key": {"plan": plan, "wrap": wrap}, "unbind_us_per_key": unbind}

    steady = report_of("keys", [costs(16_384, 0.3, 0.3), costs(1_000_000, 0.5, 0.6)])
    growing = report_of("keys", [costs(16_384, 0.3, 0.3), costs(1_000_000, 0.9, 0.3)])
    slow = report_of("keys", [costs(16_384, 0.3, 0.7), costs(1_000_000, 0.3, 0.7)])
    # A minute in which torch itself is twice as slow allows the wrap twice the time, no more.
    slow_minute = report_of("keys", [costs(16_384, 0.3, 1.1, unbind=0.88)])
    slower = report_of("keys", [costs(16_384, 0.3, 1.3, unbind=0.88)])
    reports = (steady, growing, slow, slow_minute, slower)
    assert [all(verdict.passed for verdict in judged(report, check(report))) for report in reports] == [
        True,
        False,
        False,
        True,
        False,
    ]
