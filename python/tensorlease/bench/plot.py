"""The chart of a `reads` report, and what every chart of the project has in common."""

from __future__ import annotations

import importlib.util
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tensorlease as tl
from tensorlease.bench.reading import BASELINE, MODES
from tensorlease.bench.report import Report, Row, engine_line, machine_line
from tensorlease.sizes import GIB

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Okabe and Ito's palette, which people with any kind of colour vision can tell apart; the baseline is grey.
COLOURS = dict(zip(MODES, ["#9a9a9a", "#e69f00", "#d55e00", "#0072b2", "#009e73", "#56b4e9", "#cc79a7"], strict=True))
INK = "#222222"
QUIET = "#6b6b6b"
_HEADING = "Reading a column of tensors, and times as fast as registering memory for each call"


def require_plottable(path: Path) -> None:
    """A ConfigError before a long run, instead of another error after it."""
    if path.suffix.lower() != ".png":
        raise tl.ConfigError(f"the chart {path} is no PNG file; give a name that ends in .png")
    if importlib.util.find_spec("matplotlib") is None:
        install = "pip install matplotlib, or leave the chart out"
        raise tl.ConfigError(f"a chart needs matplotlib, which is not installed: {install}")


def plot_reads(report: Report, path: Path) -> None:
    """Bars of GiB/s, a group per shape; the label says how many times as fast as register-per-call."""
    require_plottable(path)
    from matplotlib.figure import Figure

    rows, settings = report["rows"], report["settings"]
    if not rows:
        raise tl.ConfigError("the report has no rows, so there is nothing to draw; let at least one shape finish")
    shapes = list(dict.fromkeys(row["shape"] for row in rows))
    modes = [mode for mode in MODES if any(row["mode"] == mode for row in rows)]
    height_in = 2.0 + len(shapes) * (0.27 * len(modes) + 0.3)
    figure = Figure(figsize=(9.5, height_in), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    _draw_bars(axes, rows, shapes, modes)
    # The legend hangs a fixed distance below the axis, however tall the figure is.
    anchor = (0.0, -0.62 / height_in)
    axes.legend(loc="upper left", bbox_to_anchor=anchor, ncols=len(modes), frameon=False, fontsize=9, borderaxespad=0)
    yardstick = 1e3 / report["memcpy_ms_per_gib"]
    axes.axvline(yardstick, color=INK, linewidth=1.1, linestyle=(0, (4, 3)))
    axes.set_xlim(0, max(axes.get_xlim()[1], yardstick * 1.1))
    told, above = f"one memcpy, one thread: {yardstick:.1f}", axes.get_xaxis_transform()
    axes.text(yardstick, 1.0, told, transform=above, ha="center", va="bottom", fontsize=8, color=INK)
    dress(axes, "GiB/s, longer is faster")
    measured = f"{engine_line(report)}, {settings['readers']} readers, median of {settings['repetitions']} reads"
    head(axes, _HEADING, f"{measured} · {machine_line(report)}")
    figure.savefig(path)


def dress(axes: Axes, label: str) -> None:
    """No frame, and a light grid along the values."""
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color("#bbbbbb")
    axes.tick_params(axis="y", length=0, labelsize=10, labelcolor=INK)
    axes.tick_params(axis="x", color="#bbbbbb", labelcolor=QUIET, labelsize=8.5)
    axes.xaxis.grid(visible=True, color="#e8e8e8", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.locator_params(axis="x", nbins=6)
    axes.set_xlabel(label, loc="left", color=QUIET, fontsize=9)


def head(axes: Axes, heading: str, subtitle: str) -> None:
    """A bold line that says what is seen, and below it where it was measured."""
    lines = textwrap.wrap(subtitle, 118)
    place: dict[str, Any] = {"xycoords": "axes fraction", "textcoords": "offset points", "va": "bottom"}
    axes.annotate("\n".join(lines), (0, 1), (0, 21), fontsize=8, color=QUIET, **place)
    axes.set_title(heading, loc="left", fontsize=11.5, fontweight="bold", color=INK, pad=25 + 12 * len(lines))


def _draw_bars(axes: Axes, rows: list[Row], shapes: list[str], modes: list[str]) -> None:
    height = 0.82 / len(modes)
    longest = max(_gib_per_second(row) for row in rows)
    for position, mode in enumerate(modes):
        offset = (position - (len(modes) - 1) / 2) * height
        cases = [(shapes.index(row["shape"]) + offset, row) for row in rows if row["mode"] == mode]
        values = [_gib_per_second(row) for _, row in cases]
        axes.barh([place for place, _ in cases], values, height=height * 0.86, color=COLOURS[mode], label=mode)
        for (place, row), value in zip(cases, values, strict=True):
            ratio = "" if row["ratio"] is None or mode == BASELINE else f"  {row['ratio']:.1f}×"
            told, start = f"{value:.1f}{ratio}", value + longest * 0.008
            # The yardstick's line must not run through the figures.
            behind = {"facecolor": "white", "edgecolor": "none", "pad": 0.6}
            axes.text(start, place, told, va="center", fontsize=7.5, color=INK, bbox=behind, zorder=4)
    axes.set_yticks(range(len(shapes)), shapes)
    axes.set_ylim(len(shapes) - 0.48, -0.52)
    axes.set_xlim(0, longest * 1.1)


def _gib_per_second(row: Row) -> float:
    return float(row["bytes"] / GIB / (row["median_ms"] / 1e3))
