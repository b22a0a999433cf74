"""The counters of a store as Prometheus metrics, scraped and read by Prometheus' own parser."""

from __future__ import annotations

import gc
import os
import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("prometheus_client")

from conftest import URL, RunPython
from prometheus_client import CollectorRegistry, Gauge, generate_latest
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.parser import text_string_to_metric_families

import tensorlease as tl
from tensorlease import metrics

DOCS = Path(__file__).resolve().parents[2] / "docs"


def scraped(registry: CollectorRegistry) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Every sample of a scrape, by name and labels."""
    text = generate_latest(registry).decode()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def expected(store: tl.Store, **labels: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """The same from `stats`, by the rule of the documentation."""
    at = tuple(sorted(labels.items()))
    numbers = {
        (f"tensorlease_{name}" if name in metrics.HELD_NOW else f"tensorlease_{name}_total", at): float(value)
        for name, value in store.stats().items()
    }
    return numbers | {("tensorlease_open", at): float(not store.closed)}


def table(page: str, heading: str | None = None) -> dict[str, list[str]]:
    """The rows of a page whose first cell is code, by that; of one section only where it is named."""
    text = (DOCS / page).read_text(encoding="utf-8")
    if heading is not None:
        text = text.split(f"## {heading}\n", 1)[1].split("\n## ", 1)[0]
    rows = re.findall(r"^\| `(\w+)` \| (.*) \|$", text, re.MULTILINE)
    return {name: rest.split(" | ") for name, rest in rows}


def used(store: tl.Store) -> list[object]:
    """Reads and writes of several kinds; what is leased stays so with the result."""
    store.put(["a", "b"], [bytes(range(256)) * 100, "text"])
    store.contains(["a", "c"])
    return store.get(["a", "b", "a"])


def test_every_counter_is_a_metric_and_every_metric_a_counter(store: tl.Store) -> None:
    assert set(store.stats()) == metrics.HELD_NOW.keys() | metrics.GROWING.keys()
    assert not metrics.HELD_NOW.keys() & metrics.GROWING.keys()


def test_gauges_are_what_the_page_of_counters_calls_held_now() -> None:
    assert metrics.HELD_NOW.keys() == table("stats.md", "Held now").keys()


def test_counters_are_what_the_page_of_counters_says_beside() -> None:
    assert metrics.GROWING.keys() == table("stats.md").keys() - metrics.HELD_NOW.keys()


def test_a_scrape_has_the_values_of_stats(store: tl.Store) -> None:
    registry = CollectorRegistry()
    registration = metrics.register(store, registry, {"role": "trainer"})
    kept = used(store)
    found = scraped(registry)
    assert found == expected(store, role="trainer")
    assert found[("tensorlease_read_keys_total", (("role", "trainer"),))] >= 3
    registration.unregister()
    del kept


def test_types_and_units_are_told(store: tl.Store) -> None:
    registry = CollectorRegistry()
    registration = metrics.register(store, registry)
    families = {family.name: family for family in text_string_to_metric_families(generate_latest(registry).decode())}
    assert {family.type for family in families.values()} == {"gauge", "counter"}
    assert families["tensorlease_leased_bytes"].type == "gauge"
    assert families["tensorlease_read_bytes"].type == "counter"
    text = openmetrics.generate_latest(registry).decode()
    units = {family.name: family.unit for family in openmetrics_families(text)}
    assert units["tensorlease_read_bytes"] == "bytes"
    assert units["tensorlease_transfer_seconds"] == "seconds"
    assert units["tensorlease_read_keys"] == ""
    registration.unregister()


def test_counters_never_fall_and_gauges_do() -> None:
    with tl.open(URL, max_bytes="16MiB") as store:
        registry = CollectorRegistry()
        metrics.register(store, registry)
        store.put(["a"], [b"x" * (1 << 20)])
        held = store.empty((1 << 18,), "int32")
        first = scraped(registry)
        del held
        store.get(["a"])
        second = scraped(registry)
    assert first[("tensorlease_leased_bytes", ())] > second[("tensorlease_leased_bytes", ())] == 0
    assert all(second[name] >= value for name, value in first.items() if name[0].endswith("_total"))
    assert second[("tensorlease_read_keys_total", ())] == first[("tensorlease_read_keys_total", ())] + 1


def test_two_stores_of_one_registry_are_told_apart_by_labels() -> None:
    registry = CollectorRegistry()
    with tl.open(URL, max_bytes="16MiB") as one, tl.open(URL, max_bytes="16MiB") as other:
        metrics.register(one, registry, {"role": "rollout"})
        with pytest.raises(tl.ConfigError, match="labels"):
            metrics.register(other, registry, {"role": "rollout"})
        metrics.register(other, registry, {"role": "trainer", "rank": "0"})
        one.put(["a"], [1])
        assert scraped(registry) == expected(one, role="rollout") | expected(other, role="trainer", rank="0")
        text = generate_latest(registry).decode()
        assert text.count("# TYPE tensorlease_read_keys_total counter") == 1


def test_a_closed_store_keeps_its_last_numbers_and_a_dead_one_is_gone() -> None:
    registry = CollectorRegistry()
    store = tl.open(URL, max_bytes="16MiB")
    metrics.register(store, registry)
    store.put(["a"], [1])
    assert scraped(registry)[("tensorlease_open", ())] == 1
    store.close()
    found = scraped(registry)
    assert found[("tensorlease_open", ())] == 0
    assert found[("tensorlease_written_keys_total", ())] == 1
    del store
    gc.collect()
    assert scraped(registry) == {}
    # The labels are free again.
    with tl.open(URL, max_bytes="16MiB") as next_one:
        metrics.register(next_one, registry)
        assert scraped(registry)[("tensorlease_written_keys_total", ())] == 0


def test_an_unregistered_store_is_gone(store: tl.Store) -> None:
    registry = CollectorRegistry()
    registration = metrics.register(store, registry)
    registration.unregister()
    registration.unregister()
    assert scraped(registry) == {}


def test_a_scrape_in_a_forked_child_has_no_numbers_and_no_error(run_python: RunPython) -> None:
    done = run_python(
        "import os, tensorlease as tl\n"
        "from tensorlease import metrics\n"
        "from prometheus_client import CollectorRegistry, generate_latest\n"
        "registry = CollectorRegistry()\n"
        f"store = tl.open({URL!r}, max_bytes='16MiB')\n"
        "metrics.register(store, registry)\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    lines = generate_latest(registry).decode().splitlines()\n"
        "    os.write(1, '\\n'.join(line for line in lines if line[0] != '#').encode())\n"
        "    os._exit(0)\n"
        "assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0\n"
        "assert b'tensorlease_open 1.0' in generate_latest(registry)\n"
    )
    assert done.stdout == "tensorlease_open 0.0"


def test_without_prometheus_client_registering_says_what_to_install(run_python: RunPython) -> None:
    run_python(
        "import sys; sys.modules['prometheus_client'] = None\n"
        "import tensorlease as tl\n"
        "from tensorlease import metrics\n"
        f"store = tl.open({URL!r}, max_bytes='16MiB')\n"
        "try: metrics.register(store)\n"
        "except tl.ConfigError as error: assert 'pip install prometheus-client' in str(error)\n"
        "else: raise SystemExit('registered')\n"
    )


def test_labels_without_a_value_tell_no_store_from_another(store: tl.Store) -> None:
    registry = CollectorRegistry()
    registration = metrics.register(store, registry, {"role": ""})
    with tl.open(URL, max_bytes="16MiB") as other:
        for same in [{}, {"x": ""}]:
            with pytest.raises(tl.ConfigError, match="labels"):
                metrics.register(other, registry, same)
        metrics.register(other, registry, {"role": "", "rank": "0"})
    registration.unregister()


def take_out_all(registry: CollectorRegistry) -> None:
    """As tests do that want an empty registry."""
    for collector in list(registry._collector_to_names):
        registry.unregister(collector)


def test_a_registry_that_was_emptied_takes_stores_again(store: tl.Store) -> None:
    registry = CollectorRegistry()
    metrics.register(store, registry)
    take_out_all(registry)
    assert scraped(registry) == {}
    with tl.open(URL, max_bytes="16MiB") as other:
        metrics.register(other, registry)
        other.put(["a"], [1])
        assert scraped(registry) == expected(other)
    take_out_all(registry)
    registration = metrics.register(store, registry)
    assert scraped(registry) == expected(store)
    registration.unregister()


def test_a_name_that_another_collector_has_is_refused_and_named(store: tl.Store) -> None:
    registry = CollectorRegistry()
    taken = Gauge("tensorlease_open", "Somebody else's.", registry=registry)
    with pytest.raises(tl.ConfigError, match="tensorlease_open") as refused:
        metrics.register(store, registry)
    assert isinstance(refused.value.__cause__, ValueError)
    registry.unregister(taken)
    registration = metrics.register(store, registry)
    take_out_all(registry)
    Gauge("tensorlease_open", "Somebody else's.", registry=registry)
    with pytest.raises(tl.ConfigError, match="tensorlease_open"):
        metrics.register(store, registry, {"role": "again"})
    registration.unregister()


@pytest.mark.parametrize(
    "labels", [{"0rank": "1"}, {"__name": "x"}, {"rank": 0}, {"": "x"}, {"a": "\ud800"}, {"\ud800": "a"}]
)
def test_labels_that_prometheus_would_refuse_are_refused(store: tl.Store, labels: dict[str, str]) -> None:
    registry = CollectorRegistry()
    with pytest.raises(tl.ConfigError, match="label"):
        metrics.register(store, registry, labels)
    assert scraped(registry) == {}


def test_only_a_store_can_be_registered() -> None:
    with pytest.raises(tl.ConfigError, match="takes a store, not a dict"):
        metrics.register({}, CollectorRegistry())  # type: ignore[arg-type]


def test_the_default_registry_takes_a_store(run_python: RunPython) -> None:
    assert "PROMETHEUS_MULTIPROC_DIR" not in os.environ
    run_python(
        "import tensorlease as tl\n"
        "from tensorlease import metrics\n"
        "from prometheus_client import REGISTRY\n"
        f"store = tl.open({URL!r}, max_bytes='16MiB')\n"
        "metrics.register(store)\n"
        "store.put(['a'], [1])\n"
        "assert REGISTRY.get_sample_value('tensorlease_written_keys_total') == 1\n"
    )


@pytest.mark.parametrize(
    ("arguments", "named"), [({"registry": 5}, "registry is an int"), ({"labels": "x"}, "labels is a str")]
)
def test_a_registry_or_labels_of_another_kind_are_refused(
    store: tl.Store, arguments: dict[str, Any], named: str
) -> None:
    with pytest.raises(tl.ConfigError, match=named):
        metrics.register(store, **arguments)
