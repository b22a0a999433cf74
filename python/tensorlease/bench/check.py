"""The figures this project promises, compared with a report."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tensorlease.bench.report import Report
from tensorlease.bench.sizes import format_bytes

LEASED_AGAINST_REGISTER_MIN = {"64x16MiB": 4.5, "1024x1MiB": 4.0, "4096x1MiB": 4.0, "16384x64KiB": 3.5, "ragged": 4.0}
LEASED_AGAINST_MEMCPY_MAX = {"64x16MiB": 0.9, "1024x1MiB": 0.9, "16384x64KiB": 1.1}
PAIRS_RATIO_MIN = 0.95
PAIRS_MIN = 15
STACK_RATIO_MIN = 6.0
STACK_REPETITIONS_MIN = 10
PLAN_US_MAX = 0.6
WRAP_US_MAX = 0.6
# What torch's `unbind` takes per row on the machine that the limit of `wrap` was set on; a slower minute moves both.
UNBIND_US = 0.44
# Costs per key that grow more than this from the smallest to the largest number of keys are not linear.
GROWTH_MAX = 2.0


@dataclass(frozen=True)
class Verdict:
    """One promise and what was measured."""

    passed: bool
    text: str

    def line(self) -> str:
        """For the terminal."""
        return f"{'pass' if self.passed else 'MISS'}  {self.text}"


def check(report: Report) -> list[Verdict]:
    """A verdict per promise that the report says anything about; an unfinished report is a miss."""
    by_benchmark = {"reads": _check_reads, "pairs": _check_pairs, "stack": _check_stack, "keys": _check_keys}
    verdicts = by_benchmark[report["benchmark"]](report)
    if not report["complete"]:
        verdicts.append(Verdict(False, "the run did not finish"))
    elif not verdicts:
        verdicts.append(
            Verdict(False, "nothing in this report has a promised figure; run the shapes and modes that have one")
        )
    return verdicts


def _check_reads(report: Report) -> list[Verdict]:
    pinned = "registration=pinned" in report["engine"]
    verdicts = []
    for row in report["rows"]:
        shape = row["shape"]
        if row["mode"] != "leased":
            continue
        verdicts.append(_at_most(row["register_calls"], 0, f"{shape}: registrations per leased read"))
        if pinned and shape in LEASED_AGAINST_REGISTER_MIN and row["ratio"] is not None:
            verdicts.append(
                _at_least(
                    row["ratio"], LEASED_AGAINST_REGISTER_MIN[shape], f"{shape}: leased against register-per-call"
                )
            )
        if not pinned and shape in LEASED_AGAINST_MEMCPY_MAX:
            verdicts.append(
                _at_most(
                    row["ratio_to_memcpy"], LEASED_AGAINST_MEMCPY_MAX[shape], f"{shape}: leased against one memcpy"
                )
            )
    return verdicts


def _check_pairs(report: Report) -> list[Verdict]:
    first, second = report["settings"]["a"], report["settings"]["b"]
    verdicts = []
    for row in report["rows"]:
        what = f"{row['shape']}, budget {format_bytes(row['max_bytes'])}: {second} / {first}"
        verdicts.append(_at_least(row["ratio"], PAIRS_RATIO_MIN, what))
        verdicts.append(_at_least(len(row["pairs_ms"]), PAIRS_MIN, f"{what}: pairs"))
    return verdicts


def _check_stack(report: Report) -> list[Verdict]:
    verdicts = []
    for row in report["rows"]:
        if row["mode"] == "get_batch":
            verdicts.append(
                _at_least(row["ratio"], STACK_RATIO_MIN, f"{row['shape']}: get_batch against get + torch.stack")
            )
            verdicts.append(
                _at_least(len(row["repetitions_ms"]), STACK_REPETITIONS_MIN, f"{row['shape']}: repetitions")
            )
    return verdicts


def _check_keys(report: Report) -> list[Verdict]:
    rows = sorted(report["rows"], key=lambda row: int(row["keys"]))
    verdicts = []
    if rows:
        plan = rows[0]["stages_us_per_key"]["plan"]
        verdicts.append(_at_most(plan, PLAN_US_MAX, f"plan at {rows[0]['keys']:,} keys, us per key"))
        verdicts.append(_check_wrap(rows[0]))
    if len(rows) > 1:
        for stage in ("plan", "wrap"):
            growth = rows[-1]["stages_us_per_key"][stage] / rows[0]["stages_us_per_key"][stage]
            verdicts.append(_at_most(growth, GROWTH_MAX, f"{stage}: growth per key up to {rows[-1]['keys']:,} keys"))
    return verdicts


def _check_wrap(row: dict[str, Any]) -> Verdict:
    """Against the limit, scaled by how much slower than there torch's own tensors are made in this run."""
    unbind = row["unbind_us_per_key"]
    limit = WRAP_US_MAX * max(1.0, unbind / UNBIND_US)
    what = f"wrap at {row['keys']:,} keys, us per key, where torch's unbind takes {unbind:.3g}"
    return _at_most(row["stages_us_per_key"]["wrap"], limit, what)


def _at_least(value: float, limit: float, what: str) -> Verdict:
    return Verdict(value >= limit, f"{what}: {value:.4g} (at least {limit:g})")


def _at_most(value: float, limit: float, what: str) -> Verdict:
    return Verdict(value <= limit, f"{what}: {value:.4g} (at most {limit:.3g})")
