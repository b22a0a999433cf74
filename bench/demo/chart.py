"""The demo's chart: one small panel per cost."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from bench.demo.compare import Comparison
from tensorlease.bench.plot import COLOURS, INK, QUIET, require_plottable
from tensorlease.bench.report import count
from tensorlease.sizes import format_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def plot_comparison(comparison: Comparison, subtitle: str, path: Path) -> None:
    """Writes a PNG."""
    require_plottable(path)
    from matplotlib.figure import Figure

    costs = comparison.costs
    panels = [
        (
            "GiB/s (longer is better)",
            [cost.gib_per_second for cost in costs],
            [f"{cost.gib_per_second:.1f}" for cost in costs],
        ),
        (
            "registrations per read",
            [cost.registrations for cost in costs],
            [count(cost.registrations) for cost in costs],
        ),
        (
            "bytes copied out per read",
            [cost.copied_bytes for cost in costs],
            [format_bytes(cost.copied_bytes) for cost in costs],
        ),
        ("page faults per read", [cost.page_faults for cost in costs], [count(cost.page_faults) for cost in costs]),
    ]
    # A host's daemon registers nothing for its clients: a panel of noughts would say nothing.
    panels = [panel for panel in panels if any(panel[1])]
    figure = Figure(figsize=(11, 2.9), dpi=150)
    grid = figure.subplots(1, len(panels), sharey=True, gridspec_kw={"width_ratios": [1.5, *[1] * (len(panels) - 1)]})
    figure.subplots_adjust(left=0.125, right=0.985, top=0.64, bottom=0.06, wspace=0.12)
    colours = [COLOURS[cost.delivery] for cost in costs]
    for axes, (title, values, labels) in zip(grid, panels, strict=True):
        _draw_panel(axes, title, values, labels, colours)
    grid[0].set_yticks(range(len(costs)), [cost.delivery for cost in costs])
    size = format_bytes(comparison.size_bytes)
    heading = f"One read of {comparison.keys:,} tensors, {size} of conversations, in three deliveries"
    figure.text(0.012, 0.94, heading, fontsize=12, fontweight="bold", color=INK, va="center")
    figure.text(0.012, 0.845, subtitle, fontsize=8, color=QUIET, va="center")
    figure.savefig(path)


def _draw_panel(axes: Axes, title: str, values: list[float], labels: list[str], colours: list[str]) -> None:
    axes.barh(range(len(values)), values, height=0.66, color=colours)
    longest = max(*values, 1e-9)
    for index, (value, label) in enumerate(zip(values, labels, strict=True)):
        axes.text(value + longest * 0.02, index, label, va="center", fontsize=8.5, color=INK)
    axes.set_xlim(0, longest * 1.42)
    axes.set_ylim(len(values) - 0.5, -0.5)
    axes.set_title(title, loc="left", fontsize=9, color=INK)
    axes.set_xticks([])
    axes.tick_params(axis="y", length=0, labelsize=10, labelcolor=INK)
    for side in ("top", "right", "bottom"):
        axes.spines[side].set_visible(False)
    axes.spines["left"].set_color("#bbbbbb")
