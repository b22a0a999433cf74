"""The chart of a comparison: reads above, writes below, a group of bars per shape."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from matplotlib.figure import Figure

from bench.compare.contenders import ARENA, BATCH, FOREIGN, LEASED, READS, REFERENCE, RELEASED, WRITES
from tensorlease.bench.plot import INK, dress, head
from tensorlease.bench.report import Report, Row, machine_line
from tensorlease.sizes import GIB

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Okabe and Ito's palette; what is compared with is grey.
COLOURS = {
    RELEASED: "#9a9a9a",
    REFERENCE: "#d55e00",
    LEASED: "#0072b2",
    BATCH: "#009e73",
    FOREIGN: "#e69f00",
    ARENA: "#56b4e9",
}
LABELS = {
    RELEASED: "TransferQueue as released",
    REFERENCE: "the reference's design",
    LEASED: "tensorlease, leased",
    BATCH: "tensorlease, get_batch",
    FOREIGN: "tensorlease, ordinary tensors",
    ARENA: "tensorlease, tensors in the arena",
}
BAR_INCHES = 0.25


def plot_comparison(report: Report, path: Path) -> None:
    """Bars of GiB/s; the figures at their ends say how many times as fast as the released client."""
    shapes = report["settings"]["shapes"]
    heights = [len(shapes) * (BAR_INCHES * len(modes) + 0.25) for modes in (READS, WRITES)]
    figure = Figure(figsize=(9.5, sum(heights) + 3.6), dpi=150, layout="constrained")
    upper, lower = figure.subplots(2, 1, height_ratios=heights)
    _bars(upper, report, "read", READS)
    _bars(lower, report, "write", WRITES)
    settings = report["settings"]
    where = "the same process" if settings["owner"] == "same" else "another process"
    subtitle = (
        f"Mooncake over TCP, segment in {where}, {settings['readers']} readers, TransferQueue {report['versions']['TransferQueue']}, "
        f"median over {settings['processes']} processes · {machine_line(report)}"
    )
    head(upper, "Reading a column of tensors, and times as fast as TransferQueue's client", subtitle)
    head(lower, "Writing one, beside the same", "new keys; the rows of one batch, and tensors of store.empty")
    figure.savefig(path)


def _bars(axes: Axes, report: Report, kind: str, modes: tuple[str, ...]) -> None:
    shapes = report["settings"]["shapes"]
    rows: dict[tuple[str, str], Row] = {
        (row["shape"], row["mode"]): row for row in report["rows"] if row["kind"] == kind
    }
    longest = max(_gib_per_second(row) for row in rows.values())
    bar = 0.84 / len(modes)
    for position, mode in enumerate(modes):
        offset = (position - (len(modes) - 1) / 2) * bar
        places = [at + offset for at in range(len(shapes))]
        lengths = [_gib_per_second(rows[shape, mode]) for shape in shapes]
        axes.barh(places, lengths, height=bar * 0.86, color=COLOURS[mode], label=LABELS[mode])
        for place, length, shape in zip(places, lengths, shapes, strict=True):
            ratio = "" if mode == RELEASED else f"  {rows[shape, mode]['ratio_to_released']:.1f}×"
            axes.text(length + longest * 0.008, place, f"{length:.1f}{ratio}", va="center", fontsize=7.5, color=INK)
    axes.set_yticks(range(len(shapes)), shapes)
    axes.set_ylim(len(shapes) - 0.48, -0.52)
    axes.set_xlim(0, longest * 1.12)
    # A fixed distance below the axis, whatever the height of the axes.
    anchor = (0.0, -0.62 / (len(shapes) * (BAR_INCHES * len(modes) + 0.25)))
    axes.legend(loc="upper left", bbox_to_anchor=anchor, ncols=len(modes), frameon=False, fontsize=8.5, borderaxespad=0)
    dress(axes, "GiB/s, longer is faster")


def _gib_per_second(row: Row) -> float:
    return float(row["bytes"] / GIB / (row["median_ms"] / 1e3))
