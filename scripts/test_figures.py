"""The tables come from the reports, and only the marked blocks of the documents change."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))
import figures
from figure_tables import BLOCKS
from markdown_tables import Report

ROOT = Path(__file__).resolve().parent.parent
MACHINE = {"cpu": "A processor", "cores": 2, "memory_bytes": 24 << 30, "kernel": "6.1"}
STAGES = {"plan": 0.5, "register": 1.0, "transfer": 40.0, "copy": 5.0, "wrap": 0.5}


def row(mode: str, median_ms: float, ratio: float | None, **more: Any) -> dict[str, Any]:
    names = {"shape": "64x16MiB", "mode": mode, "median_ms": median_ms, "stdev_ms": 1.25, "ratio": ratio}
    return names | {"register_calls": 0, "ratio_to_memcpy": median_ms / 100, "ratio_to_store_pool": None} | more


def report(benchmark: str, rows: list[dict[str, Any]], **settings: Any) -> Report:
    return {
        "benchmark": benchmark,
        "engine": "embedded://",
        "date": "2026-01-02T03:04:05+00:00",
        "machine": MACHINE,
        "versions": {"torch": "2.8", "mooncake-transfer-engine-non-cuda": "0.3.13"},
        "complete": True,
        "settings": {"readers": 4, "repetitions": 10} | settings,
        "memcpy_ms_per_gib": 96.4,
        "skipped": [],
        "rows": rows,
    }


READS = report("reads", [row("leased", 50.0, 8.0), row("register-per-call", 400.0, 1.0)])


def block(name: str, **reports: Report) -> str:
    return BLOCKS[name].text({key.replace("_", "-"): value for key, value in reports.items()}, ROOT / "no-such-folder")


def test_the_block_is_filled_and_the_rest_stays() -> None:
    before = "# Title\n<!-- figures: reads-pinned -->\nold\n<!-- /figures -->\nafter\n"
    after = figures.filled("README.md", before, {"reads-pinned": READS})
    assert after.startswith(
        "# Title\n<!-- figures: reads-pinned -->\n| values read | registered per read, ms | leased, ms |"
    )
    assert "| 64x16MiB | 400.0 ± 1.2 | 50.0 ± 1.2 | 8.00x |" in after
    assert "old" not in after and after.endswith("<!-- /figures -->\nafter\n")
    assert figures.filled("README.md", after, {"reads-pinned": READS}) == after


def test_readme_has_the_worst_and_the_best_of_all_shapes_and_a_loss_is_bold() -> None:
    def rival(call: str, way: str, ray: float, other: float) -> dict[str, Any]:
        return {"call": call, "way": way, "ratios": {"Ray": ray, "SimpleStorage": other}}

    put, view = rival("put", "put", 6.4, 11.0), rival("get", "view", 7.0, 86.0)
    host = report("host_rivals", [put, view, rival("get", "leased", 0.14, 9.7), rival("get", "leased", 3.1, 13.3)])
    compared = [
        {"kind": kind, "mode": mode, "ratio_to_released": ratio}
        for kind, mode, ratio in (("read", "leased", 2.0), ("read", "leased", 4.9), ("write", "foreign", 0.8))
    ]
    lines = block("", host_rivals=host, reads_pinned=READS, compare_other=report("compare", compared)).splitlines()
    assert "| two processes: `get`, which copies once | Ray's `get`, which copies nothing | **0.1x** to 3.1x |" in lines
    assert "| two processes: `put` | TransferQueue's SimpleStorage | 11x to 11x |" in lines
    assert "| TransferQueue on Mooncake, TCP: read | its released client | 2.0x to 4.9x |" in lines
    assert (
        "| one process, memory pinned as for a network card: `get` | registering memory for each read | 8.0x to 8.0x |"
        in lines
    )


def test_a_document_without_a_block_or_with_an_unknown_one_is_refused() -> None:
    with pytest.raises(SystemExit, match="has no block"):
        figures.filled("README.md", "# Title\n", {})
    with pytest.raises(SystemExit, match="there are no figures 'speed'"):
        figures.filled("README.md", "<!-- figures: speed -->\n<!-- /figures -->", {})


def test_a_block_without_its_report_says_which_one_is_missing() -> None:
    text = figures.filled("doc.md", "<!-- figures: reference -->\n<!-- /figures -->", {"mooncake-reads": READS})
    assert "there is no `mooncake-reads-quarter.json`" in text


def test_reports_in_parts_make_one_table() -> None:
    other = READS | {"rows": [row("leased", 300.0, 7.0) | {"shape": "4096x1MiB"}]}
    reports = figures.gathered([("reads-pinned-4g", other), ("reads-pinned", READS), ("reads", READS)])
    assert set(reports) == {"reads", "reads-pinned"}
    assert "| 4096x1MiB | - | 300.0 ± 1.2 | 7.00x |" in BLOCKS["reads-pinned"].text(reports, ROOT)


def test_each_mode_has_its_deviation_and_a_loss_is_bold() -> None:
    rows = [row("register-per-call", 400.0, 1.0), row("store-pool", 500.0, 0.8), row("leased", 100.0, 4.0)]
    rows[2]["ratio_to_store_pool"] = 5.0
    line = "| 64x16MiB | 400.0 ± 1.2 | 500.0 ± 1.2 | 100.0 ± 1.2 | **0.80x** | 4.00x | 5.00x |"
    text = block("mooncake-reads", mooncake_reads=report("reads", rows, owner="other", share="half"))
    assert line in text
    assert "segment in another process, `pool=store&force=1&share=half`, 4 readers" in text


def test_speed_ups_stand_beside_the_published_ones() -> None:
    half = report("reads", [row("store-pool", 1, 0.9), row("leased", 1, 6.5)])
    quarter = report("reads", [row("store-pool", 1, 1.1)])
    text = block("reference", mooncake_reads=half, mooncake_reads_quarter=quarter)
    assert "| 64x16MiB | 3.34x | 1.10x | 3.51x | **0.90x** | 6.50x |" in text
    assert "| 16384x64KiB | **0.82x** | - | **0.90x** | - | - |" in text


def test_counted_leases_stand_beside_the_published_ones() -> None:
    def counted(shape: str, share: str, buffer: int, published: int | None, loans: float) -> dict[str, Any]:
        return {
            "shape": shape,
            "share": share,
            "local_buffer_bytes": buffer,
            "published_loans": published,
            "loans": loans,
        }

    rows = [
        counted("400x1MiB", "half", 64 << 20, 50, 50.0),
        counted("64x16MiB", "half", 1 << 30, 8, 9.5),
        counted("64x16MiB", "quarter", 1 << 30, 4, 4.0),
    ]
    rounds = report("rounds", rows, batch="400x1MiB")
    rounds["skipped"] = [rows[0] | {"local_buffer_bytes": 4 << 30, "why": "too little memory"}]
    assert "| 64x16MiB | 4 | 4 | 8 | 9.5 |" in block("leases", rounds=rounds)
    text = block("rounds", rounds=rounds)
    assert "| 64 MiB | 50 | 50 |" in text
    assert "Left out: 400x1MiB with a buffer of 4294967296 bytes: too little memory." in text


def test_stages_are_summed_up_beside_the_time() -> None:
    stages = {"stages_ms": STAGES, "stages_sum_ms": 47.0, "stages_of_total": 0.985}
    text = block(
        "stages", mooncake_reads_one_reader=report("reads", [row("store-pool", 47.7, None, **stages)], readers=1)
    )
    assert "| 64x16MiB | store-pool | 1.0 | 40.0 | 5.0 | 1.0 | 47.0 | 47.7 ± 1.2 | 98.5% |" in text
    assert "`embedded://`, 1 reader, median" in text


def test_the_sweep_has_a_line_per_number_of_keys() -> None:
    rows = [
        row("register-per-call", 100.0, None, batch_keys=50) | {"shape": "1024x1MiB", "register_calls": 21},
        row("store-pool", 200.0, None, batch_keys=50, loans=21) | {"shape": "1024x1MiB"},
    ]
    assert "| 50 | 109 | 100.0 ± 1.2 | 200.0 ± 1.2 | 21 | 21 |" in block("sweep", mooncake_sweep=report("sweep", rows))


def test_everything_that_was_slower_is_in_one_table() -> None:
    writes = report("writes", [row("foreign", 2, 0.5), row("packed", 2, 0.9), row("arena", 1, 1.1)])
    pairs = report(
        "pairs", [{"shape": "ragged", "max_bytes": 64 << 20, "ratio": 0.98}], a="auto", b="register-per-call"
    )
    reads = report("reads", [row("leased", 1, 1.2, ratio_to_store_pool=0.99), row("register-per-call", 1, 1.0)])
    lines = block("losses", writes=writes, pairs=pairs, reads=reads).splitlines()
    assert lines[2:] == [
        "| pairs | ragged | auto, budget 64 MiB | register-per-call | **0.98x** |",
        "| reads | 64x16MiB | leased | store-pool | **0.99x** |",
        "| writes | 64x16MiB | foreign | register-per-call | **0.50x** |",
        "| writes | 64x16MiB | packed | packed-register-per-call | **0.90x** |",
    ]
    assert block("losses", reads=READS) == "None in these reports."


def test_every_block_of_the_documents_is_known_and_every_known_one_is_used() -> None:
    used = set()
    for document in figures.DOCUMENTS:
        used |= {found["name"] or "" for found in figures.BLOCK.finditer((ROOT / document).read_text(encoding="utf-8"))}
    assert used == set(BLOCKS)


def test_a_machine_that_all_reports_share_is_named_once_and_an_interrupted_report_is_marked() -> None:
    stopped = report("reads", []) | {"complete": False}
    lines = block("reports", reads=READS, writes=stopped).splitlines()
    assert lines[2:4] == [
        "| [reads](benchmarks/reads.json) | 2026-01-02 03:04 | 2.8 | 0.3.13 |",
        "| [writes](benchmarks/writes.json) (**interrupted**) | 2026-01-02 03:04 | 2.8 | 0.3.13 |",
    ]
    assert lines[-1] == "Each on A processor, 2 cores, 24 GiB, Linux 6.1."
    other = report("writes", []) | {"machine": MACHINE | {"cores": 8}}
    lines = block("reports", reads=READS, writes=other).splitlines()
    assert [line.split(" | ")[-1] for line in lines[2:]] == [
        "A processor, 2 cores, 24 GiB, Linux 6.1 |",
        "A processor, 8 cores, 24 GiB, Linux 6.1 |",
    ]
