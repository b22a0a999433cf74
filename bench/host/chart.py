"""The chart: 256 MiB put and got beside Ray's object store and TransferQueue's SimpleStorage, and above it 1 GiB beside one memcpy.

Usage: python -m bench.host.chart SPEED.json RIVALS.json CHART.png
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from matplotlib.figure import Figure

from bench.stored_report import read_json
from tensorlease.bench.plot import INK, dress, head
from tensorlease.bench.report import Report, Row, machine_line
from tensorlease.sizes import GIB

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Okabe and Ito's palette; what is compared with is grey.
COLOURS = {
    "memcpy": "#9a9a9a",
    "put": "#e69f00",
    "leased": "#0072b2",
    "view": "#009e73",
    "Ray": "#d55e00",
    "SimpleStorage": "#9a9a9a",
}
LABELS = {
    "view": "tensorlease, view=True",
    "Ray": "Ray's object store",
    "SimpleStorage": "TransferQueue, SimpleStorage",
    "put": "tensorlease",
    "leased": "tensorlease, leased",
}
#: A view copies nothing: its milliseconds are told, and no speed of a copy.
SPEED_WAYS = {"memcpy": "memcpy", "put numpy": "put", "leased numpy": "leased"}
CASES = {("put", "put"): "put", ("get", "leased"): "leased", ("get", "view"): "view"}
BAR_INCHES = 0.25


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.host.chart", description=__doc__.splitlines()[0])
    parser.add_argument("speed", type=Path)
    parser.add_argument("rivals", type=Path)
    parser.add_argument("chart", type=Path)
    options = parser.parse_args()
    plot(read_json(options.speed), read_json(options.rivals), options.chart)


def plot(speed: Report, rivals: Report, path: Path) -> None:
    """Writes a PNG."""
    shapes = [list(dict.fromkeys(row["shape"] for row in report["rows"])) for report in (speed, rivals)]
    heights = [len(shapes[0]) * (3 * BAR_INCHES + 0.25), len(shapes[1]) * (7 * BAR_INCHES + 0.6)]
    figure = Figure(figsize=(9.5, sum(heights) + 3.4), dpi=150, layout="constrained")
    upper, lower = figure.subplots(2, 1, height_ratios=heights)
    _speed(upper, speed, shapes[0])
    _rivals(lower, rivals, shapes[1])
    figure.savefig(path)


def _speed(axes: Axes, report: Report, shapes: list[str]) -> None:
    rows = {(row["shape"], row["way"]): row for row in report["rows"]}
    longest = max(_speed_of(rows[shape, way]) for shape in shapes for way in SPEED_WAYS)
    for position, (way, colour) in enumerate(SPEED_WAYS.items()):
        for at, shape in enumerate(shapes):
            row = rows[shape, way]
            place, length = at + (position - 1) * 0.27, _speed_of(row)
            label = way.split()[0] if at == 0 else None
            axes.barh(place, length, height=0.235, color=COLOURS[colour], label=label)
            text = f"{length:.1f}" if way == "memcpy" else f"{length:.1f}  {row['ratio_to_memcpy']:.2f} of memcpy"
            axes.text(length + longest * 0.008, place, text, va="center", fontsize=7.5, color=INK)
    for at, shape in enumerate(shapes):
        view = rows[shape, "view"]["median_ms"]
        axes.text(
            longest * 1.43,
            at,
            f"view=True: {view:.2g} ms",
            va="center",
            ha="right",
            fontsize=8.5,
            color=COLOURS["view"],
        )
    axes.set_yticks(range(len(shapes)), shapes)
    axes.set_ylim(len(shapes) - 0.5, -0.5)
    axes.set_xlim(0, longest * 1.45)
    axes.legend(loc="upper left", bbox_to_anchor=(0.0, -0.2), ncols=3, frameon=False, fontsize=8.5, borderaxespad=0)
    dress(axes, "GiB/s, longer is faster")
    count = report["settings"]["repetitions"]
    head(
        axes,
        "1 GiB between two processes on one arena",
        f"median of {count} calls in random order · {machine_line(report)}",
    )


def _rivals(axes: Axes, report: Report, shapes: list[str]) -> None:
    groups = [(call, shape) for call in ("put", "get") for shape in shapes]
    place, ticks = 0.0, []
    for call, shape in groups:
        rows = sorted(
            (row for row in report["rows"] if (row["call"], row["shape"]) == (call, shape)),
            key=lambda row: float(row["median_ms"]),
        )
        ticks.append((place + (len(rows) - 1) / 2, f"{call}  {shape}"))
        for row in rows:
            axes.barh(place, row["median_ms"], height=0.84, color=COLOURS[row["way"]])
            name = LABELS.get(row["way"], row["way"])
            ms = row["median_ms"]
            text = f"{ms:,.0f} ms  {name}" if ms >= 100 else f"{ms:.3g} ms  {name}"
            axes.text(row["median_ms"] * 1.06, place, text, va="center", fontsize=7.5, color=INK)
            place += 1
        place += 0.8
    axes.set_yticks([at for at, _ in ticks], [text for _, text in ticks])
    axes.set_ylim(place - 0.8 - 0.4, -0.6)
    axes.set_xscale("log")
    axes.set_xlim(0.1, max(row["median_ms"] for row in report["rows"]) * 12)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color("#bbbbbb")
    axes.tick_params(axis="y", length=0, labelsize=9, labelcolor=INK)
    axes.xaxis.grid(visible=True, color="#e8e8e8", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.set_xlabel("milliseconds, logarithmic, shorter is faster", loc="left", fontsize=9)
    versions = report["versions"]
    subtitle = f"writer and reader in two processes; Ray {versions['ray']}, TransferQueue {versions['TransferQueue']} with two storage units"
    head(axes, "256 MiB beside Ray's object store and TransferQueue's SimpleStorage", subtitle)


def _speed_of(row: Row) -> float:
    return float(row["bytes"] / GIB / row["median_ms"] * 1e3)


if __name__ == "__main__":
    main()
