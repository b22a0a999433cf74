"""The tables of what the host's shared arena is worth, made from the reports of `make bench-host`."""

from __future__ import annotations

from markdown_tables import Report, Reports, lines_of, times

MIB, GIB = 1 << 20, 1 << 30
SPEED_WAYS = {
    "put numpy": "put",
    "put torch": "put, torch",
    "leased numpy": "leased, numpy",
    "leased torch": "leased, torch",
    "copied torch": "copied, torch",
}
#: What each call of the comparison is, in the order of the lines.
RIVALS = {
    ("put", "put"): "put",
    ("put", "Ray"): "put, Ray",
    ("put", "SimpleStorage"): "put, SimpleStorage",
    ("get", "leased"): "get, leased",
    ("get", "view"): "get, `view=True`",
    ("get", "Ray"): "get, Ray (zero-copy)",
    ("get", "SimpleStorage"): "get, SimpleStorage",
}


def speed_table(reports: Reports) -> str:
    """Every way beside one memcpy, views, and single small calls."""
    report = reports["host-speed"]
    rows = {(row["shape"], row["way"]): row for row in report["rows"]}
    shapes = list(dict.fromkeys(row["shape"] for row in report["rows"]))
    headings = [
        "1 GiB",
        "memcpy, ms",
        *(f"{words}, ms (of memcpy)" for words in SPEED_WAYS.values()),
        "`view=True`, ms",
    ]
    lines = []
    for shape in shapes:
        cells = [
            f"{rows[shape, way]['median_ms']:.0f} ({rows[shape, way]['ratio_to_memcpy']:.2f})" for way in SPEED_WAYS
        ]
        view = rows[shape, "view"]["median_ms"]
        lines.append(
            [shape, f"{rows[shape, 'memcpy']['median_ms']:.0f}", *cells, f"{view:.2f}" if view < 10 else f"{view:.1f}"]
        )
    return f"{lines_of(headings, lines)}\n\n{_small(report)}\n\n{speed_conditions(report)}"


def _small(report: Report) -> str:
    lines = [
        [row["call"], f"{row['p50_us']:.1f}", f"{row['p99_us']:.1f}", f"{row['ratio']:.1f}"] for row in report["small"]
    ]
    return lines_of(["one key of 1 KiB", "p50, us", "p99, us", "p50 of a ping-pong"], lines)


def speed_conditions(report: Report) -> str:
    """What it was measured on, in one line."""
    settings, machine = report["settings"], report["machine"]
    return (
        f"Writer and reader in two processes; median of {settings['repetitions']} calls in random order, each after one that is not timed; "
        f"{machine['cores']} cores. The memcpy: libc, one thread, warm. The ping-pong: 64 bytes there and back over a Unix socket, between two "
        f"Python processes; {settings['small_calls']:,} calls of each kind."
    )


def rivals_table(reports: Reports) -> str:
    """The three stores, shape by shape."""
    report = reports["host-rivals"]
    shapes = list(dict.fromkeys(row["shape"] for row in report["rows"]))
    rows = {(row["shape"], row["call"], row["way"]): row for row in report["rows"]}
    headings = ["256 MiB, ms", *shapes, "times as fast as SimpleStorage", "times as fast as Ray"]
    lines = []
    for (call, way), words in RIVALS.items():
        found = [rows[shape, call, way] for shape in shapes]
        cells = [f"{row['median_ms']:.2f}" if row["median_ms"] < 10 else f"{row['median_ms']:,.0f}" for row in found]
        ours = way not in ("Ray", "SimpleStorage")
        gains = [_range([row["ratios"][rival] for row in found]) if ours else "-" for rival in ("SimpleStorage", "Ray")]
        lines.append([words, *cells, *gains])
    versions, settings = report["versions"], report["settings"]
    controller = _range([rows[shape, "get", "SimpleStorage"]["controller_ms"] for shape in shapes], "")
    note = (
        f"TransferQueue {versions['TransferQueue']}, Ray {versions['ray']}; median of {settings['repetitions']} calls in random order, each after one "
        f"that is not timed; {report['machine']['cores']} cores. TransferQueue's calls to its controller ({controller} ms of a get) are in its milliseconds "
        "and not in the ratios."
    )
    return f"{lines_of(headings, lines)}\n\n{note}"


def _range(values: list[float], unit: str = "x") -> str:
    low, high = min(values), max(values)
    digits = 0 if low >= 10 else 1
    return f"{low:,.{digits}f}{unit} to {high:,.{digits}f}{unit}"


def memory_table(reports: Reports) -> str:
    """Proportional set sizes."""
    report = reports["host-memory"]
    readers, size = report["settings"]["readers"], report["settings"]["bytes"]
    words = {"shared": "one arena for the host", "private": "a private store each"}
    lines = [
        [words[row["way"]], f"{row['pss_bytes'] / MIB:,.0f}", f"{row['beside_content_bytes_per_reader'] / MIB:.0f}"]
        for row in report["rows"]
    ]
    saved = report["rows"][1]["pss_bytes"] - report["rows"][0]["pss_bytes"]
    note = f"The arena saves {saved / GIB:.1f} GiB: {report['rows'][0]['ratio']:.1f} times less. The daemon is counted with the shared one."
    headings = [
        f"{readers} readers of the same {size / GIB:g} GiB",
        "all processes, MiB",
        "beside the content, MiB per reader",
    ]
    return f"{lines_of(headings, lines)}\n\n{note}"


def opens_table(reports: Reports) -> str:
    """Many that open at once."""
    report = reports["host-opens"]
    lines = [
        [f"{row['processes']}", f"{row['daemons']}", f"{row['served']}", *(f"{row[name]:.2f}" for name in SECONDS)]
        for row in report["rows"]
    ]
    return lines_of(["processes", "daemons started", "served", *SECONDS.values()], lines, left_columns=0)


#: Fields of a row, and their headings.
SECONDS = {
    "first_seconds": "first open, s",
    "median_seconds": "served, median, s",
    "seconds": "the last served, s",
}


def slower_rows(name: str, report: Report) -> list[list[str]]:
    """What lost against Ray or SimpleStorage."""
    lines = []
    for row in report["rows"]:
        if row["way"] in ("Ray", "SimpleStorage"):
            continue
        lines += [
            [name, row["shape"], f"{row['call']}, {row['way']}", rival, times(ratio)]
            for rival, ratio in row["ratios"].items()
            if ratio < 1
        ]
    return lines
