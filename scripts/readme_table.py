"""README.md's one table: what a user of another store would gain or lose."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from markdown_tables import Report, Reports, Row, lines_of

#: The reports that the table needs.
NEEDED = ("host-rivals", "reads-pinned", "compare-other")


@dataclass(frozen=True)
class Line:
    """One line: the rows of a report that it sums up, over all shapes, and where each has its ratio."""

    what: str
    beside: str
    report: str
    chosen: Callable[[Row], bool]
    ratio: Callable[[Row], float]


def _host(what: str, beside: str, call: str, way: str, rival: str) -> Line:
    return Line(
        what,
        beside,
        "host-rivals",
        lambda row: (row["call"], row["way"]) == (call, way),
        lambda row: row["ratios"][rival],
    )


def _queue(what: str, kind: str, mode: str) -> Line:
    return Line(
        what,
        "its released client",
        "compare-other",
        lambda row: (row["kind"], row["mode"]) == (kind, mode),
        lambda row: row["ratio_to_released"],
    )


LINES = (
    _host("two processes: `put`", "TransferQueue's SimpleStorage", "put", "put", "SimpleStorage"),
    _host("two processes: `put`", "Ray's object store", "put", "put", "Ray"),
    _host(
        "two processes: `get`, which copies once",
        "TransferQueue's SimpleStorage",
        "get",
        "leased",
        "SimpleStorage",
    ),
    _host("two processes: `get`, which copies once", "Ray's `get`, which copies nothing", "get", "leased", "Ray"),
    _host("two processes: `get(view=True)`, which copies nothing", "Ray's `get`", "get", "view", "Ray"),
    Line(
        "one process, memory pinned as for a network card: `get`",
        "registering memory for each read",
        "reads-pinned",
        lambda row: row["mode"] == "leased",
        lambda row: row["ratio"],
    ),
    _queue("TransferQueue on Mooncake, TCP: read", "read", "leased"),
    _queue("TransferQueue on Mooncake, TCP: write ordinary tensors", "write", "foreign"),
)


def readme_table(reports: Reports) -> str:
    """Ratios over all shapes of each report; slower is bold."""
    lines = [[line.what, line.beside, _ratios(line, reports[line.report])] for line in LINES]
    table = lines_of(["tensorlease", "beside", "times as fast"], lines, left_columns=2)
    host = reports["host-rivals"]
    note = (
        "How many times as fast, from the worst to the best of three to five shapes (64 KiB to 16 MiB a value); **below 1x is slower**. "
        f"{host['machine']['cores']} cores, {host['machine']['memory_bytes'] / (1 << 30):.0f} GiB. Nothing was measured over RDMA hardware."
    )
    return f"{table}\n\n{note}"


def _ratios(line: Line, report: Report) -> str:
    values = [line.ratio(row) for row in report["rows"] if line.chosen(row)]
    low, high = (f"{value:,.0f}x" if value >= 10 else f"{value:.1f}x" for value in (min(values), max(values)))
    return f"{f'**{low}**' if min(values) < 1 else low} to {high}"
