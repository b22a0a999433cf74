"""What the host's arena has to show, and what it did not."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tensorlease.bench.report import Report, Verdict
from tensorlease.sizes import MIB

#: `leased` reads, times as long as one libc memcpy of as many bytes.
LEASED_OF_MEMCPY_MAX = 1.0
#: Milliseconds of a view of the whole column.
VIEW_MS_MAX = {"64x16MiB": 1.0, "16384x64KiB": 25.0}
#: Median of a small get or put, times that of a ping-pong.
SMALL_OF_PING_PONG_MAX = 4.0
#: Times as fast as the rivals, on each shape.
RIVALS_MIN = {
    ("put", "put"): {"SimpleStorage": 10.0, "Ray": 3.0},
    ("get", "leased"): {"SimpleStorage": 4.0},
    ("get", "view"): {"SimpleStorage": 10.0, "Ray": 1.0},
}
#: Proportional set size of all readers and the daemon: that of the objects, and for each reader so much.
MEMORY_PER_READER_MAX = 60 * MIB
OPEN_SECONDS_MAX = 5.0


def told(report: Report, check: bool) -> int:
    """Prints a verdict for each promise, where they are asked for; the exit status."""
    if not check:
        return 0
    verdicts = list(BY_BENCHMARK[report["benchmark"]](report))
    print("\n".join(verdict.line() for verdict in verdicts))
    return 0 if verdicts and all(verdict.passed for verdict in verdicts) else 1


def _at_most(value: float, limit: float, what: str) -> Verdict:
    return Verdict(value <= limit, f"{what}: {value:.2f}, promised at most {limit:g}")


def _speed(report: Report) -> Iterator[Verdict]:
    for row in report["rows"]:
        if row["way"].startswith("leased"):
            yield _at_most(row["ratio_to_memcpy"], LEASED_OF_MEMCPY_MAX, f"{row['shape']}: {row['way']} of one memcpy")
        if row["way"] == "view" and row["shape"] in VIEW_MS_MAX:
            yield _at_most(row["median_ms"], VIEW_MS_MAX[row["shape"]], f"{row['shape']}: milliseconds of a view")
    for row in report["small"]:
        if row["call"] in ("get", "put"):
            yield _at_most(
                row["ratio"], SMALL_OF_PING_PONG_MAX, f"{row['call']} of {row['bytes']} bytes, of a ping-pong"
            )


def _rivals(report: Report) -> Iterator[Verdict]:
    for row in report["rows"]:
        for rival, least in RIVALS_MIN.get((row["call"], row["way"]), {}).items():
            ratio = row["ratios"][rival]
            what = f"{row['shape']}: {row['call']}, {row['way']}, times as fast as {rival}"
            yield Verdict(least <= ratio, f"{what}: {ratio:.2f}, promised at least {least:g}")


def _memory(report: Report) -> Iterator[Verdict]:
    settings = report["settings"]
    row = next(row for row in report["rows"] if row["way"] == "shared")
    limit = settings["bytes"] + settings["readers"] * MEMORY_PER_READER_MAX
    yield _at_most(row["pss_bytes"] / MIB, limit / MIB, f"MiB of {settings['readers']} readers and the daemon")


def _opens(report: Report) -> Iterator[Verdict]:
    processes = report["settings"]["processes"]
    for row in report["rows"]:
        yield Verdict(row["daemons"] == 1, f"daemons of {processes} processes that open at once: {row['daemons']}")
        yield Verdict(row["served"] == processes, f"processes served: {row['served']} of {processes}")
    worst = max(row["seconds"] for row in report["rows"])
    yield _at_most(worst, OPEN_SECONDS_MAX, f"seconds until the last of {processes} is served")


BY_BENCHMARK: dict[str, Callable[[Report], Iterator[Verdict]]] = {
    "host_speed": _speed,
    "host_rivals": _rivals,
    "host_memory": _memory,
    "host_opens": _opens,
}
