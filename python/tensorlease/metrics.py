"""The counters of ``Store.stats()`` as Prometheus metrics, for a registry of ``prometheus_client``.

>>> from tensorlease import metrics
>>> metrics.register(store, labels={"role": "trainer"})
"""

from __future__ import annotations

import contextlib
import re
import threading
import weakref
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from tensorlease.errors import ConfigError, Error, with_article
from tensorlease.store import Store

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric

PREFIX = "tensorlease_"
OPEN_METRIC = PREFIX + "open"
OPEN_TEXT = "1 while the store answers calls, 0 once it is closed and in a forked child."
INSTALL = "pip install prometheus-client (or the extra: tensorlease[metrics])"

#: What goes up and down: gauges.
HELD_NOW = {
    "arena_bytes": "Bytes of all slabs together.",
    "leased_bytes": "Bytes of the blocks that live tensors own.",
    "in_flight_bytes": "Bytes of the blocks of engine calls that have not returned.",
    "quarantined_bytes": "Bytes that a transfer which was given up may still write.",
    "free_bytes": "Bytes of the slabs that nothing uses.",
    "pinned_bytes": "Bytes of the slabs that are registered, where the engine requires registration.",
    "copy_cache_bytes": "Bytes kept for copies, in use or not.",
    "copy_cache_held_bytes": "Bytes of the copy cache that live copies own.",
    "running_calls": "Calls of the store that have not returned.",
    "abandoned_running_calls": "Engine calls still running that nobody waits for.",
}

#: What only grows, from 0 at open: counters.
GROWING = {
    "read_keys": "Values asked for.",
    "read_bytes": "Bytes delivered.",
    "leased_reads": "Values delivered in the arena.",
    "copied_reads": "Values delivered as copies.",
    "viewed_reads": "Values read in place.",
    "registered_reads": "Values read into fresh memory, registered for the call where the engine requires it.",
    "local_reads": "Objects copied out of this process's own segment, not through the transport.",
    "duplicate_keys": "Values asked for again in the same read, and fetched once.",
    "engine_read_calls": "Read calls made on the engine.",
    "copied_bytes": "Bytes copied by the client, in reads and writes.",
    "written_keys": "Values stored.",
    "written_bytes": "Bytes stored.",
    "in_place_writes": "Values sent from the arena as they lay.",
    "staged_writes": "Values sent through a staging block.",
    "engine_write_calls": "Write calls made on the engine.",
    "register_calls": "Registrations made on the engine.",
    "registered_bytes": "Bytes of those registrations.",
    "hot_path_register_calls": "Registrations made for single reads and writes and not for slabs.",
    "register_calls_per_read": "The older name of hot_path_register_calls.",
    "slabs_made": "Slabs mapped, populated and registered.",
    "slabs_rebuilt": "Slabs made in place of empty ones that were given up.",
    "loans": "Leases of the engine's own pool (pool=store).",
    "overflow_loans": "Loans that the engine allocated and registered on their own.",
    "fallback_reads": "Values not delivered the way that was asked.",
    "fallback_host_full": "Fallbacks: the host's daemon had no memory for another slab.",
    "fallback_budget": "Fallbacks: the budget was used up.",
    "fallback_too_large": "Fallbacks: larger than the budget can ever hold.",
    "fallback_slab_not_registered": "Fallbacks: the engine refused to register a slab.",
    "fallback_slab_not_mapped": "Fallbacks: the system had no memory for a slab.",
    "fallback_bounce_busy": "Fallbacks: no bounce block came free.",
    "fallback_copy_cache": "Fallbacks: a copy found no recycled memory.",
    "fallback_loan_too_large": "Fallbacks: larger than the engine lends for one transfer.",
    "fallback_no_loan": "Fallbacks: the engine lent nothing.",
    "fallback_writes": "Values written from memory registered for the call.",
    "retries": "Keys tried again after a failure that passes.",
    "quarantines": "Keys whose memory went to quarantine.",
    "abandoned_calls": "Calls that ended before the engine returned.",
    "log_records_dropped": "Log lines of all stores of the process that nothing had fetched in time.",
    "warnings_suppressed": "Warnings not logged because the same had been logged before.",
    "plan_seconds": "Seconds of checking arguments, planning and taking blocks, summed over threads.",
    "register_seconds": "Seconds of registering and unregistering for single calls, summed over threads.",
    "transfer_seconds": "Seconds in the engine, summed over threads.",
    "copy_seconds": "Seconds of copying to where the caller wants the bytes, summed over threads.",
    "wrap_seconds": "Seconds of making tensors, summed over threads.",
}

_LABEL = re.compile(r"(?!__)[a-zA-Z_][a-zA-Z0-9_]*")
_UNITS = ("bytes", "seconds")


class Registration:
    """One store under its labels, to take it out of the registry before it dies. It is held weakly, so that metrics keep no store open."""

    def __init__(self, collector: StoreCollector, store: Store, labels: dict[str, str]) -> None:
        self._collector = collector
        self.store = weakref.ref(store)
        self.labels = labels

    def unregister(self) -> None:
        """The store is no part of later scrapes. Idempotent."""
        self._collector.forget(self)


class StoreCollector:
    """All stores of one registry: two collectors with the same metric names would be refused by it."""

    def __init__(self) -> None:
        self._changing = threading.Lock()
        # Replaced whole, never changed: a scrape takes no lock that another thread could hold while the process forks.
        self._watched: tuple[Registration, ...] = ()
        self._scrapes = threading.local()

    def watch(self, store: Store, labels: dict[str, str]) -> Registration:
        """Adds a store; its labels must tell it from the others that are alive."""
        watched = Registration(self, store, labels)
        with self._changing:
            living = tuple(other for other in self._watched if other.store() is not None)
            if any(_series(other.labels) == _series(labels) for other in living):
                raise ConfigError(
                    f"a store with the labels {labels} is in this registry already; tell them apart: "
                    'register(store, labels={"role": "trainer"})'
                )
            self._watched = (*living, watched)
        return watched

    def forget(self, watched: Registration) -> None:
        """Takes a store out."""
        with self._changing:
            self._watched = tuple(other for other in self._watched if other is not watched)

    def is_in(self, registry: CollectorRegistry) -> bool:
        """Does a scrape of the registry still come here? Whoever owns a registry may take every collector out of it."""
        self._scrapes.came = False
        for _ in registry.restricted_registry([OPEN_METRIC]).collect():
            pass
        return bool(self._scrapes.came)

    def describe(self) -> Iterator[Metric]:
        """The names, which the registry asks for once: without any store's numbers."""
        yield from _families().values()

    def collect(self) -> Iterator[Metric]:
        """One family per counter, with a sample per store. Never raises for what a store says."""
        self._scrapes.came = True
        families = _families()
        for watched in self._watched:
            store = watched.store()
            if store is None:
                continue
            numbers, is_open = dict[str, float](), False
            # A store of the process that this one was forked from has none.
            with contextlib.suppress(Error):
                numbers, is_open = store.stats(), not store.closed
            families[OPEN_METRIC].add_sample(OPEN_METRIC, watched.labels, float(is_open))
            for name, number in numbers.items():
                if (family := families.get(PREFIX + name)) is not None:
                    sample = PREFIX + name if name in HELD_NOW else f"{PREFIX}{name}_total"
                    family.add_sample(sample, watched.labels, number)
        yield from families.values()


def register(
    store: Store, registry: CollectorRegistry | None = None, labels: Mapping[str, str] | None = None
) -> Registration:
    """Makes the counters of a store part of every scrape of a registry, until the store dies or is unregistered.

    A closed store stays, with its last numbers, as long as something holds it. In a forked child the parent's stores have no numbers;
    there and when closed ``tensorlease_open`` is 0. No scrape fails because of a store.

    :param registry: of ``prometheus_client``; None: its default one
    :param labels: on every metric of this store, such as ``{"role": "trainer"}``; needed where a registry has several stores
    :returns: a handle whose ``unregister`` takes the store out again
    :raises ConfigError: prometheus_client is not installed, a label has no valid name or value, another store has the same labels, or
        another collector has metrics of these names
    """
    try:
        from prometheus_client import REGISTRY, CollectorRegistry
    except ImportError:
        raise ConfigError(f"metrics need prometheus_client, which is not installed: {INSTALL}") from None
    if not isinstance(store, Store):
        raise ConfigError(f"register takes a store, not {with_article(type(store).__name__)}")
    if registry is not None and not isinstance(registry, CollectorRegistry):
        given = with_article(type(registry).__name__)
        raise ConfigError(f"registry is {given}; give a CollectorRegistry of prometheus_client, or None")
    if labels is not None and not isinstance(labels, Mapping):
        given = with_article(type(labels).__name__)
        raise ConfigError(f'labels is {given}; give a dictionary, such as {{"role": "trainer"}}')
    return _collector_of(REGISTRY if registry is None else registry).watch(store, _checked(labels or {}))


_collectors: weakref.WeakKeyDictionary[CollectorRegistry, StoreCollector] = weakref.WeakKeyDictionary()
_collectors_changing = threading.Lock()


def _collector_of(registry: CollectorRegistry) -> StoreCollector:
    with _collectors_changing:
        collector = _collectors.get(registry)
        if collector is None or not collector.is_in(registry):
            # A new one: the stores of one that was taken out are to stay out, and leave their labels free.
            collector = StoreCollector()
            try:
                registry.register(collector)
            except ValueError as error:
                raise ConfigError(
                    f"another collector of this registry has metrics that are named like a store's ({error}); "
                    "unregister it, or give another registry"
                ) from error
            _collectors[registry] = collector
        return collector


def _checked(labels: Mapping[str, str]) -> dict[str, str]:
    for name, value in labels.items():
        if not isinstance(name, str) or not _LABEL.fullmatch(name):
            raise ConfigError(f"{name!r} is no label name; use letters, digits and _, not __ at the start")
        if not isinstance(value, str):
            raise ConfigError(f"the label {name} is {with_article(type(value).__name__)}; give text")
        try:
            value.encode()
        except UnicodeEncodeError:
            raise ConfigError(f"the label {name} is {value!r}; give a str that UTF-8 can hold") from None
    return dict(labels)


def _series(labels: dict[str, str]) -> dict[str, str]:
    """For Prometheus a label without a value is no label."""
    return {name: value for name, value in labels.items() if value}


def _families() -> dict[str, Metric]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    families: dict[str, Metric] = {OPEN_METRIC: GaugeMetricFamily(OPEN_METRIC, OPEN_TEXT)}
    for name, text in HELD_NOW.items():
        families[PREFIX + name] = GaugeMetricFamily(PREFIX + name, text, unit=_unit(name))
    for name, text in GROWING.items():
        families[PREFIX + name] = CounterMetricFamily(PREFIX + name, text, unit=_unit(name))
    return families


def _unit(name: str) -> str:
    return next((unit for unit in _UNITS if name.endswith("_" + unit)), "")
