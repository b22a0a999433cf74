"""The tables of docs/benchmarks.md and README.md, each made from the reports of `tensorlease bench --json`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from host_tables import memory_table, opens_table, rivals_table, slower_rows, speed_table
from markdown_tables import Report, Reports, Row, lines_of, spread, times
from readme_table import NEEDED, readme_table

GIB = 1 << 30
# The modes of a read, in the order of the columns, with the words for their headings.
MODES = {
    "register-per-call": "registered per read",
    "store-pool": "store-pool",
    "copied": "copied",
    "leased": "leased",
    "batch": "get_batch",
}
#: Speed-up over registering per read that the reference published, over RDMA with 4 readers: share of a quarter, and of half of that.
REFERENCE_RATIOS = {
    "64x16MiB": (3.34, 3.51),
    "1024x1MiB": (1.81, 1.77),
    "4096x1MiB": (1.43, 1.59),
    "16384x64KiB": (0.82, 0.90),
}
REFERENCE_ONE_READER = (
    "The reference with one reader, over RDMA, 1024 x 1 MB: 354 ms registering for each read, 279 of them the registration; 104 ms through the pool; "
    "the deviation from step to step 19.6 and 7.8 ms."
)
#: Its sweep of keys per batch, over RDMA: milliseconds of registering per read.
REFERENCE_SWEEP_MS = {
    "1024x1MiB": {50: 109, 100: 138, 200: 155, 400: 160, 800: 253, 1600: 384, 3200: 329},
    "4096x1MiB": {50: 528, 100: 461, 200: 455, 400: 496, 800: 666, 1600: 723, 3200: 1049},
}


@dataclass(frozen=True)
class Block:
    """One marked block: the reports it needs, and how it is made."""

    needs: tuple[str, ...]
    make: Callable[[Reports], str]
    chart: str | None = None
    made_by: str = "make bench"

    def text(self, reports: Reports, charts: Path) -> str:
        """The block, with its chart where `charts` has it; or which report is missing."""
        missing = [f"`{name}.json`" for name in self.needs if name not in reports]
        if missing:
            return (
                f"Not measured: there is no {' and no '.join(missing)}. `{self.made_by}` and `make figures` make them."
            )
        text = self.make(reports)
        if self.chart is not None and (charts / self.chart).exists():
            text += f"\n\n![GiB/s of each way of reading, per shape](benchmarks/{self.chart})"
        return text


def by_mode(report: Report) -> dict[tuple[str, str], Row]:
    """Rows by shape and mode."""
    return {(row["shape"], row["mode"]): row for row in report["rows"]}


def shapes_of(report: Report) -> list[str]:
    """Each once, in the order of the report."""
    return list(dict.fromkeys(row["shape"] for row in report["rows"]))


def conditions(report: Report) -> str:
    """What a table of reads was measured on, in one line."""
    machine, settings = report["machine"], report["settings"]
    readers = f"{settings['readers']} reader{'s' if settings['readers'] != 1 else ''}"
    engine = f"`{report['engine']}`"
    if "owner" in settings:
        engine += f", segment in {'this' if settings['owner'] == 'same' else 'another'} process"
    if "share" in settings:
        engine += f", `pool=store&force=1&share={settings['share']}`"
    reads = f"{engine}, {readers}, median of {settings['repetitions']} reads in random order"
    if settings.get("max_bytes"):
        reads += f", `max_bytes` {settings['max_bytes'] / GIB:.1f} GiB"
    return f"{reads}, on {machine['cores']} cores. The memcpy: one thread, warm, {report['memcpy_ms_per_gib']:.0f} ms per GiB."


def reads_table(name: str) -> Callable[[Reports], str]:
    """Every mode with its deviation, then the speed-up of the modes over registering per read and of the leased read over store-pool."""

    def make(reports: Reports) -> str:
        report = reports[name]
        rows = by_mode(report)
        modes = [mode for mode in MODES if any((shape, mode) in rows for shape in shapes_of(report))]
        gains = [mode for mode in modes if mode != "register-per-call"]
        headings = ["values read", *(f"{MODES[mode]}, ms" for mode in modes)]
        headings += [f"{MODES[mode]} / registered" for mode in gains]
        lends = any(mode == "store-pool" for mode in modes)
        headings += ["leased / store-pool"] if lends and "leased" in modes else []
        lines = []
        for shape in shapes_of(report):
            of_shape = {mode: rows.get((shape, mode)) for mode in modes}
            line = [shape, *(spread(of_shape[mode]) for mode in modes)]
            line += [times((of_shape[mode] or {}).get("ratio")) for mode in gains]
            if lends and "leased" in modes:
                line.append(times((of_shape["leased"] or {}).get("ratio_to_store_pool")))
            lines.append(line)
        return f"{lines_of(headings, lines)}\n\n{conditions(report)}"

    return make


#: The ways of the comparison with TransferQueue, with the words for their headings.
COMPARED_READS = {"released": "released", "reference": "reference's design", "leased": "leased", "batch": "get_batch"}
COMPARED_WRITES = {"released": "released", "foreign": "ordinary tensors", "arena": "tensors in the arena"}


def compared_table(name: str) -> Callable[[Reports], str]:
    """Reads, then writes, beside the TransferQueue client as released; reads also beside the reference's design."""

    def make(reports: Reports) -> str:
        report = reports[name]
        texts = [_compared(report, "read", COMPARED_READS), _compared(report, "write", COMPARED_WRITES)]
        machine, settings, versions = report["machine"], report["settings"], report["versions"]
        texts.append(
            f"TransferQueue {versions['TransferQueue']}, Mooncake over TCP, {settings['readers']} readers, median over {settings['processes']} "
            f"processes, each with the median of {settings['repetitions']} reads or {settings['write_repetitions']} writes in random order; "
            f"the deviation is that of all calls; "
            f"{machine['cores']} cores. One memcpy of 1 GiB by one thread, warm: {report['memcpy_ms_per_gib']:.0f} ms."
        )
        return "\n\n".join(texts)

    return make


def _compared(report: Report, kind: str, modes: dict[str, str]) -> str:
    rows = {(row["shape"], row["mode"]): row for row in report["rows"] if row["kind"] == kind}
    ours = [mode for mode in modes if mode not in ("released", "reference")]
    headings = ["values read" if kind == "read" else "values written", *(f"{words}, ms" for words in modes.values())]
    headings += [f"{modes[mode]} / released" for mode in ours]
    headings += ["leased / reference's design"] if kind == "read" else []
    lines = []
    for shape in report["settings"]["shapes"]:
        line = [shape, *(spread(rows[shape, mode]) for mode in modes)]
        line += [times(rows[shape, mode]["ratio_to_released"]) for mode in ours]
        line += [times(rows[shape, "leased"]["ratio_to_reference"])] if kind == "read" else []
        lines.append(line)
    return lines_of(headings, lines)


def machine_table(reports: Reports) -> str:
    """When each report was made, and with what. The machine stands below where all ran on the same one."""
    machines = {name: _machine(report) for name, report in reports.items()}
    same = len(set(machines.values())) == 1
    lines = []
    for name, report in sorted(reports.items()):
        versions = report["versions"]
        mooncake = next((version for package, version in versions.items() if package.startswith("mooncake")), "-")
        whole = "" if report["complete"] else " (**interrupted**)"
        date = report["date"][:16].replace("T", " ")
        line = [f"[{name}](benchmarks/{name}.json){whole}", date, versions.get("torch", "-"), mooncake]
        lines.append(line if same else [*line, machines[name]])
    headings = ["report", "began (UTC)", "torch", "Mooncake"] + ([] if same else ["machine"])
    table = lines_of(headings, lines, left_columns=len(headings))
    return f"{table}\n\nEach on {next(iter(machines.values()))}." if same else table


def _machine(report: Report) -> str:
    machine = report["machine"]
    memory = f"{machine['memory_bytes'] / GIB:.0f} GiB"
    return f"{machine['cpu']}, {machine['cores']} cores, {memory}, Linux {machine['kernel']}"


def reference_table(reports: Reports) -> str:
    """Speed-ups over registering per read: the reference's over RDMA, its way here over TCP, and the leased read."""
    half, quarter = by_mode(reports["mooncake-reads"]), by_mode(reports["mooncake-reads-quarter"])
    headings = [
        "values read",
        "reference, 1/4",
        "store-pool here, 1/4",
        "reference, 1/8",
        "store-pool here, 1/8",
        "leased here",
    ]
    lines = []
    for shape, (of_quarter, of_half) in REFERENCE_RATIOS.items():
        here = [quarter.get((shape, "store-pool")), half.get((shape, "store-pool")), half.get((shape, "leased"))]
        in_quarter, in_half, leased = (times((row or {}).get("ratio")) for row in here)
        lines.append([shape, times(of_quarter), in_quarter, times(of_half), in_half, leased])
    return lines_of(headings, lines)


def leases_table(reports: Reports) -> str:
    """Leases of one read beside the published ones."""
    rows = [row for row in reports["rounds"]["rows"] if row["shape"] != reports["rounds"]["settings"]["batch"]]
    return _counted(rows, lambda row: row["shape"], "values read")


def rounds_table(reports: Reports) -> str:
    """Rounds of one batch beside the published ones, and what was left out."""
    report = reports["rounds"]
    batch = report["settings"]["batch"]
    rows = [row for row in report["rows"] if row["shape"] == batch]
    text = _counted(rows, lambda row: f"{row['local_buffer_bytes'] / (1 << 20):g} MiB", "local buffer")
    left_out = [
        f"Left out: {case['shape']} with a buffer of {case['local_buffer_bytes']} bytes: {case['why']}."
        for case in report["skipped"]
    ]
    return "\n\n".join([text, *left_out])


def _counted(rows: Sequence[Row], named: Callable[[Row], str], heading: str) -> str:
    shares = {"quarter": "1/4", "half": "1/8"}
    cells: dict[str, dict[str, Row]] = {}
    for row in rows:
        cells.setdefault(named(row), {})[row["share"]] = row
    present = [share for share in shares if any(share in of_name for of_name in cells.values())]
    headings = [heading]
    for share in present:
        headings += [f"published, {shares[share]}", f"counted, {shares[share]}"]
    lines = []
    for name, of_name in cells.items():
        line = [name]
        for share in present:
            row = of_name.get(share, {})
            line += [_number(row.get("published_loans")), _number(row.get("loans"))]
        lines.append(line)
    return lines_of(headings, lines)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:g}"


def stages_table(reports: Reports) -> str:
    """Where the time of one reader goes."""
    report = reports["mooncake-reads-one-reader"]
    headings = [
        "values read",
        "way",
        "register",
        "transfer",
        "copy",
        "plan and wrap",
        "sum, ms",
        "wall, ms",
        "sum / wall",
    ]
    lines = []
    for row in report["rows"]:
        stages = row["stages_ms"]
        parts = [stages["register"], stages["transfer"], stages["copy"], stages["plan"] + stages["wrap"]]
        cells = [f"{part:.1f}" for part in [*parts, row["stages_sum_ms"]]]
        lines.append([row["shape"], MODES[row["mode"]], *cells, spread(row), f"{row['stages_of_total']:.1%}"])
    return f"{lines_of(headings, lines, left_columns=2)}\n\n{conditions(report)} {REFERENCE_ONE_READER}"


def sweep_table(reports: Reports) -> str:
    """One table per shape: a line per number of keys, with the reference's figure over RDMA."""
    report = reports["mooncake-sweep"]
    texts = []
    for shape in shapes_of(report):
        rows = {(row["batch_keys"], row["mode"]): row for row in report["rows"] if row["shape"] == shape}
        modes = [mode for mode in MODES if any((keys, mode) in rows for keys, _ in rows)]
        published = REFERENCE_SWEEP_MS.get(shape, {})
        headings = [
            f"{shape}, keys per batch",
            "reference registering, RDMA, ms",
            *(f"{MODES[mode]}, ms" for mode in modes),
            "registrations",
            "leases",
        ]
        lines = []
        for keys in dict.fromkeys(keys for keys, _ in rows):
            counts = [
                rows.get((keys, "register-per-call"), {}).get("register_calls"),
                rows.get((keys, "store-pool"), {}).get("loans"),
            ]
            cells = [spread(rows.get((keys, mode))) for mode in modes]
            lines.append([str(keys), _number(published.get(keys)), *cells, *map(_number, counts)])
        texts.append(lines_of(headings, lines))
    return "\n\n".join(texts)


def writes_table(name: str) -> Callable[[Reports], str]:
    """Each kind of value beside the same with its memory registered for the write."""

    def make(reports: Reports) -> str:
        report = reports[name]
        rows = by_mode(report)
        headings = [
            "values written",
            "tensors registered, ms",
            "foreign, ms",
            "arena, ms",
            "foreign / registered",
            "arena / registered",
        ]
        headings += ["packed registered, ms", "packed, ms", "packed / registered"]
        lines = []
        for shape in shapes_of(report):
            found = {
                mode: rows.get((shape, mode))
                for mode in ("register-per-call", "foreign", "arena", "packed-register-per-call", "packed")
            }
            line = [shape, *(spread(found[mode]) for mode in ("register-per-call", "foreign", "arena"))]
            line += [times((found[mode] or {}).get("ratio")) for mode in ("foreign", "arena")]
            line += [spread(found[mode]) for mode in ("packed-register-per-call", "packed")]
            lines.append([*line, times((found["packed"] or {}).get("ratio"))])
        return lines_of(headings, lines)

    return make


def pairs_table(reports: Reports) -> str:
    """The ratio of each pair of modes, with its quartiles."""
    report = reports["pairs-pinned"]
    first, second = report["settings"]["a"], report["settings"]["b"]
    headings = ["values read", "budget", f"{first}, ms", f"{second}, ms", f"{first}: times as fast", "quartiles"]
    lines = [
        [
            row["shape"],
            f"{row['max_bytes'] / (1 << 20):g} MiB",
            f"{row['a_median_ms']:.1f}",
            f"{row['b_median_ms']:.1f}",
            times(row["ratio"]),
            " to ".join(f"{quartile:.2f}" for quartile in row["ratio_quartiles"]),
        ]
        for row in report["rows"]
    ]
    return lines_of(headings, lines)


def stack_table(reports: Reports) -> str:
    """`get_batch` beside `get` and `torch.stack`."""
    lines = [[row["shape"], row["mode"], spread(row), times(row["ratio"])] for row in reports["stack"]["rows"]]
    return lines_of(["values read", "way", "ms", "times as fast"], lines, left_columns=2)


def keys_table(reports: Reports) -> str:
    """Costs per key."""
    stages = ("plan", "transfer", "copy", "wrap")
    headings = ["keys", "arguments, us", *(f"{stage}, us" for stage in stages), "drop, us", "whole, us"]
    lines = []
    for row in reports["keys"]["rows"]:
        costs = [row["arguments_us_per_key"], *(row["stages_us_per_key"][stage] for stage in stages)]
        costs += [row["drop_us_per_key"], row["total_us_per_key"]]
        lines.append([f"{row['keys']:,}", *(f"{cost:.2f}" for cost in costs)])
    return lines_of(headings, lines)


def queue_table(reports: Reports) -> str:
    """What a job on TransferQueue's queue sees, with its released client and with this one."""
    report = reports["transfer-queue-small"]
    settings = report["settings"]
    headings = ["call", "client", "whole, ms", "controller, ms", "client, ms", "whole / released", "client / released"]
    lines = [
        [
            row["case"],
            row["client"],
            *(f"{row[f'{part}_ms']:.0f}" for part in ("total", "controller", "data")),
            *(times(row[f"{part}_ratio"]) for part in ("total", "data")),
        ]
        for row in report["rows"]
    ]
    note = (
        f"TransferQueue {report['versions']['TransferQueue']}, {settings['samples']} samples of {settings['fields']} fields of {settings['elements']} float32; "
        f"median over {settings['jobs']} jobs, each with the median of {settings['reps']} calls; {report['machine']['cores']} cores."
    )
    return f"{lines_of(headings, lines, left_columns=2)}\n\n{note}"


def losses_table(reports: Reports) -> str:
    """Every way that was slower than what it is compared with, from all reports."""
    lines = []
    for name, report in sorted(reports.items()):
        if report["benchmark"] in ("reads", "writes"):
            lines += _slower_rows(name, report)
        if report["benchmark"] == "host_rivals":
            lines += slower_rows(name, report)
        if report["benchmark"] == "compare":
            lines += _slower_compared(name, report)
        if report["benchmark"] == "transfer_queue_small":
            slower = [row for row in report["rows"] if row["total_ratio"] < 1]
            lines += [[name, row["case"], row["client"], "released", times(row["total_ratio"])] for row in slower]
        if report["benchmark"] == "pairs":
            settings = report["settings"]
            lines += [
                [
                    name,
                    row["shape"],
                    f"{settings['a']}, budget {row['max_bytes'] / (1 << 20):g} MiB",
                    settings["b"],
                    times(row["ratio"]),
                ]
                for row in report["rows"]
                if row["ratio"] < 1
            ]
    if not lines:
        return "None in these reports."
    return lines_of(["report", "values", "way", "slower than", "times as fast"], lines, left_columns=4)


def _slower_rows(name: str, report: Report) -> list[list[str]]:
    lines = []
    for row in report["rows"]:
        packed = row["mode"].startswith("packed")
        for field, other in (
            ("ratio", "packed-register-per-call" if packed else "register-per-call"),
            ("ratio_to_store_pool", "store-pool"),
        ):
            ratio = row.get(field)
            baseline = row["mode"] == other or (field == "ratio_to_store_pool" and row["mode"] == "register-per-call")
            if ratio is not None and ratio < 1 and not baseline:
                lines.append([name, row["shape"], row["mode"], other, times(ratio)])
    return lines


def _slower_compared(name: str, report: Report) -> list[list[str]]:
    lines = []
    for row in report["rows"]:
        for other in ("released", "reference"):
            ratio = row[f"ratio_to_{other}"]
            compared = row["mode"] != other and not (other == "reference" and row["mode"] == "released")
            if compared and ratio is not None and ratio < 1:
                lines.append([name, row["shape"], f"{row['kind']}, {row['mode']}", other, times(ratio)])
    return lines


#: Blocks by the names in their marks; README's table has none.
BLOCKS = {
    "": Block(NEEDED, readme_table),
    "reports": Block((), machine_table),
    "mooncake-reads": Block(("mooncake-reads",), reads_table("mooncake-reads"), "mooncake-reads.png"),
    "mooncake-reads-other": Block(("mooncake-reads-other",), reads_table("mooncake-reads-other")),
    "mooncake-reads-plain": Block(("mooncake-reads-plain",), reads_table("mooncake-reads-plain")),
    "compare-same": Block(("compare-same",), compared_table("compare-same"), "compare-same.png", "make bench-compare"),
    "compare-other": Block(
        ("compare-other",), compared_table("compare-other"), "compare-other.png", "make bench-compare"
    ),
    "transfer-queue": Block(("transfer-queue-small",), queue_table, None, "make bench-transfer-queue"),
    "reference": Block(("mooncake-reads", "mooncake-reads-quarter"), reference_table),
    "leases": Block(("rounds",), leases_table),
    "rounds": Block(("rounds",), rounds_table),
    "stages": Block(("mooncake-reads-one-reader",), stages_table),
    "sweep": Block(("mooncake-sweep",), sweep_table),
    "mooncake-writes": Block(("mooncake-writes",), writes_table("mooncake-writes")),
    "writes-pinned": Block(("writes-pinned",), writes_table("writes-pinned")),
    "reads-pinned": Block(("reads-pinned",), reads_table("reads-pinned")),
    "reads": Block(("reads",), reads_table("reads")),
    "pairs-pinned": Block(("pairs-pinned",), pairs_table),
    "stack": Block(("stack",), stack_table),
    "keys": Block(("keys",), keys_table),
    "host-speed": Block(("host-speed",), speed_table, "host.png", "make bench-host"),
    "host-rivals": Block(("host-rivals",), rivals_table, None, "make bench-host"),
    "host-memory": Block(("host-memory",), memory_table, None, "make bench-host"),
    "host-opens": Block(("host-opens",), opens_table, None, "make bench-host"),
    "losses": Block((), losses_table),
}
