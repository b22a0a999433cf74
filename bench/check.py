"""The figures this project promises, compared with a report."""

from __future__ import annotations

from typing import Any

from bench.engine import MOONCAKE
from bench.lending import BATCH_KEYS, PUBLISHED_LEASES, READERS, published_loans
from tensorlease.bench.reads import check_reads
from tensorlease.bench.report import Report, Row, Verdict, at_least, at_most
from tensorlease.sizes import GIB, format_bytes

# On Mooncake over TCP, the segment in the same process, with two readers or more.
MOONCAKE_READERS_MIN = 2
MOONCAKE_LEASED_AGAINST_REGISTER_MIN = {
    "64x16MiB": 5.0,
    "1024x1MiB": 4.5,
    "4096x1MiB": 5.0,
    "16384x64KiB": 3.5,
    "ragged": 4.0,
}
MOONCAKE_LEASED_AGAINST_STORE_POOL_MIN = {
    "64x16MiB": 3.0,
    "1024x1MiB": 3.0,
    "4096x1MiB": 2.2,
    "16384x64KiB": 1.8,
    "ragged": 2.0,
}
# The same with the segment in another process, on each of those shapes.
MOONCAKE_BETWEEN_PROCESSES_MIN = dict.fromkeys(MOONCAKE_LEASED_AGAINST_REGISTER_MIN, 1.3)
# All readers together may lease half of the buffer. Where they may lease the whole of it, what earlier leases left in pieces makes the pool
# allocate for a lease now and then; the tables show how often.
SHARES_WITH_HEADROOM = ("half",)
# At one reader the stages come one after the other and leave nothing out but the arguments.
STAGES_OF_TOTAL = (0.95, 1.05)
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


def check(report: Report) -> list[Verdict]:
    """A verdict per promise that the report says anything about."""
    by_benchmark = {
        "reads": _check_reads,
        "sweep": _check_sweep,
        "rounds": _check_rounds,
        "writes": _check_writes,
        "pairs": _check_pairs,
        "stack": _check_stack,
        "keys": _check_keys,
    }
    return by_benchmark[report["benchmark"]](report)


def _check_reads(report: Report) -> list[Verdict]:
    verdicts = check_reads(report)
    if report["engine"] == MOONCAKE:
        for row in report["rows"]:
            if row["mode"] == "leased":
                verdicts += _check_leased(report, row)
        verdicts += _check_lending(report)
        verdicts += _check_stages(report)
    return verdicts


def _check_leased(report: Report, row: Row) -> list[Verdict]:
    shape, settings = row["shape"], report["settings"]
    limits: list[tuple[str, str, dict[str, float]]] = []
    if settings["owner"] == "other":
        limits.append(("ratio", "register-per-call", MOONCAKE_BETWEEN_PROCESSES_MIN))
    elif settings["readers"] >= MOONCAKE_READERS_MIN:
        limits.append(("ratio", "register-per-call", MOONCAKE_LEASED_AGAINST_REGISTER_MIN))
        limits.append(("ratio_to_store_pool", "store-pool", MOONCAKE_LEASED_AGAINST_STORE_POOL_MIN))
    return [
        at_least(row[ratio], least[shape], f"{shape}: leased against {mode}")
        for ratio, mode, least in limits
        if shape in least and row[ratio] is not None
    ]


def _check_lending(report: Report) -> list[Verdict]:
    """Leases of Mooncake's pool in each read, where the reference published how many; and never one that the pool made up on the way."""
    settings = report["settings"]
    verdicts = []
    for row in report["rows"]:
        if row["mode"] != "store-pool":
            continue
        if settings["share"] in SHARES_WITH_HEADROOM:
            verdicts.append(at_most(row["overflow_loans"], 0, f"{row['shape']}: overflow leases per read"))
        expected = PUBLISHED_LEASES.get((row["shape"], settings["share"]))
        as_published = settings["readers"] == READERS and settings["batch_keys"] == BATCH_KEYS
        if expected is not None and as_published and settings["local_buffer_bytes"] == GIB:
            verdicts.append(_exactly(row["loans"], expected, f"{row['shape']}: leases per read"))
    return verdicts


def _check_stages(report: Report) -> list[Verdict]:
    return [
        _within(row["stages_of_total"], STAGES_OF_TOTAL, f"{row['shape']} {row['mode']}, one reader: stages / time")
        for row in report["rows"]
        if row["stages_of_total"] is not None and row["shape"] in MOONCAKE_LEASED_AGAINST_REGISTER_MIN
    ]


def _check_sweep(report: Report) -> list[Verdict]:
    return [
        _exactly(
            row["loans"], row["planned_loans"], f"{row['shape']}, {row['batch_keys']} keys a batch: leases per read"
        )
        for row in report["rows"]
        if row["mode"] == "store-pool"
    ]


def _check_rounds(report: Report) -> list[Verdict]:
    verdicts = []
    for row in report["rows"]:
        buffer = row["local_buffer_bytes"]
        what = f"{row['shape']}, buffer {format_bytes(buffer)}, share {row['share']}"
        published = published_loans(row["shape"], row["share"], buffer)
        expected = row["planned_loans"] if published is None else published
        verdicts.append(_exactly(row["loans"], expected, f"{what}: leases per read"))
        if row["share"] in SHARES_WITH_HEADROOM:
            verdicts.append(at_most(row["overflow_loans"], 0, f"{what}: overflow leases per read"))
    for case in report["skipped"]:
        what = f"{case['shape']}, buffer {format_bytes(case['local_buffer_bytes'])}, share {case['share']}"
        verdicts.append(Verdict(False, f"{what}: not read: {case['why']}"))
    return verdicts


def _check_writes(report: Report) -> list[Verdict]:
    verdicts = []
    for row in report["rows"]:
        what = f"{row['shape']} {row['mode']}"
        if not row["mode"].endswith("register-per-call"):
            verdicts.append(at_most(row["register_calls"], 0, f"{what}: registrations per write"))
        if row["mode"] == "arena":
            verdicts.append(at_most(row["copied_bytes"], 0, f"{what}: bytes copied per write"))
    return verdicts


def _check_pairs(report: Report) -> list[Verdict]:
    first, second = report["settings"]["a"], report["settings"]["b"]
    verdicts = []
    for row in report["rows"]:
        what = f"{row['shape']}, budget {format_bytes(row['max_bytes'])}: {second} / {first}"
        verdicts.append(at_least(row["ratio"], PAIRS_RATIO_MIN, what))
        verdicts.append(at_least(len(row["pairs_ms"]), PAIRS_MIN, f"{what}: pairs"))
    return verdicts


def _check_stack(report: Report) -> list[Verdict]:
    verdicts = []
    for row in report["rows"]:
        if row["mode"] == "get_batch":
            verdicts.append(
                at_least(row["ratio"], STACK_RATIO_MIN, f"{row['shape']}: get_batch against get + torch.stack")
            )
            verdicts.append(at_least(len(row["repetitions_ms"]), STACK_REPETITIONS_MIN, f"{row['shape']}: repetitions"))
    return verdicts


def _check_keys(report: Report) -> list[Verdict]:
    rows = sorted(report["rows"], key=lambda row: int(row["keys"]))
    verdicts = []
    if rows:
        plan = rows[0]["stages_us_per_key"]["plan"]
        verdicts.append(at_most(plan, PLAN_US_MAX, f"plan at {rows[0]['keys']:,} keys, us per key"))
        verdicts.append(_check_wrap(rows[0]))
    if len(rows) > 1:
        for stage in ("plan", "wrap"):
            growth = rows[-1]["stages_us_per_key"][stage] / rows[0]["stages_us_per_key"][stage]
            verdicts.append(at_most(growth, GROWTH_MAX, f"{stage}: growth per key up to {rows[-1]['keys']:,} keys"))
    return verdicts


def _check_wrap(row: dict[str, Any]) -> Verdict:
    """Against the limit, scaled by how much slower than there torch's own tensors are made in this run."""
    unbind = row["unbind_us_per_key"]
    limit = WRAP_US_MAX * max(1.0, unbind / UNBIND_US)
    what = f"wrap at {row['keys']:,} keys, us per key, where torch's unbind takes {unbind:.3g}"
    return at_most(row["stages_us_per_key"]["wrap"], limit, what)


def _exactly(value: float, expected: float, what: str) -> Verdict:
    return Verdict(value == expected, f"{what}: {value:g} (exactly {expected:g})")


def _within(value: float, limits: tuple[float, float], what: str) -> Verdict:
    least, most = limits
    return Verdict(least <= value <= most, f"{what}: {value:.3g} ({least:g} to {most:g})")
