"""Opening a store that is large enough for the workload, or saying why it can't be."""

import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from urllib.parse import parse_qs, urlsplit

import tensorlease as tl
from tensorlease.bench.machine import YARDSTICK_BYTES, require_memory
from tensorlease.bench.workload import Workload
from tensorlease.sizes import GIB, MIB

#: Objects take whole size classes, at most an eighth larger than themselves.
CAPACITY_FACTOR = 1.25
_TRIAL_BYTES = 64 * MIB


@dataclass(frozen=True)
class EngineChoice:
    """Where the objects are. With a `share`, copied reads go through Mooncake's own pool of `local_buffer_bytes`, as the reference's do."""

    engine: str = "embedded://"
    share: str | None = None
    local_buffer_bytes: int = GIB
    batch_keys: int = 400

    @property
    def names_a_cluster(self) -> bool:
        return urlsplit(self.engine).scheme == "mooncake"

    def require_valid(self) -> None:
        """A ConfigError where the parts contradict one another."""
        if self.engine == "mooncake":
            starts = "--engine mooncake starts a cluster, and the repository's benchmarks do that: `python -m bench`"
            raise tl.ConfigError(f"{starts}; give mooncake://HOST:PORT")
        set_here = {"pool", "share", "force"} | ({"local_buffer"} if self.share is not None else set())
        if self.names_a_cluster and (given := sorted(set_here & parse_qs(urlsplit(self.engine).query).keys())):
            raise tl.ConfigError(f"leave {' and '.join(given)} out of the URL; the benchmark sets what its modes need")
        if not self.names_a_cluster and self.share is not None:
            other = "give --engine a mooncake:// URL, or leave out what reads through it"
            raise tl.ConfigError(f"only Mooncake has a pool of its own; {other}")

    def as_json(self) -> dict[str, object]:
        pool = {} if self.share is None else {"share": self.share, "local_buffer_bytes": self.local_buffer_bytes}
        return {"batch_keys": self.batch_keys, **pool}

    def needed_bytes(self, workload: Workload, max_bytes: int) -> int:
        """The most that is held: objects, arena (`loop` holds two results), a result outside it, and Mooncake's pool or the copies kept for reuse."""
        size = workload.size_bytes
        objects_elsewhere = self.names_a_cluster and "segment" not in parse_qs(urlsplit(self.engine).query)
        objects = 0 if objects_elsewhere else round(size * CAPACITY_FACTOR)
        arena = min(max_bytes, 9 * size // 4 + max_bytes // 8)
        # What goes through the pool is never copied into recycled memory.
        beside = size if self.share is None else self.local_buffer_bytes
        return max(objects + arena + size + beside, 2 * YARDSTICK_BYTES)

    def require_room(self, workload: Workload, max_bytes: int) -> None:
        """A ConfigError where the machine has too little memory for the workload."""
        advice = "leave it out of --shapes, give a smaller --max-bytes, or end what else uses memory"
        require_memory(self.needed_bytes(workload, max_bytes), f"shape {workload.name}", advice)

    def require_feasible(self, cases: list[tuple[Workload, int]], readers: int) -> None:
        """Refuses workloads with their budgets at once, and not after minutes of measuring: memory, the engine's URL, its permissions."""
        self.require_valid()
        for workload, max_bytes in cases:
            self.require_room(workload, max_bytes)
        self.try_to_open(readers)

    def try_to_open(self, readers: int) -> None:
        tl.open(self.engine, max_bytes=_TRIAL_BYTES, readers=readers).close()

    def store(
        self, workload: Workload, max_bytes: int, readers: int, *, copies_fit: bool = False
    ) -> AbstractContextManager[tl.Store]:
        """A store for one workload. `copies_fit`: the recycled memory for copies holds the workload too, so that all that is copied is copies."""
        self.require_room(workload, max_bytes)
        copy_cache_bytes = round(workload.size_bytes * CAPACITY_FACTOR) if copies_fit else None
        return self.store_of_bytes(workload.size_bytes, max_bytes, readers, copy_cache_bytes)

    @contextmanager
    def store_of_bytes(
        self, object_bytes: int, max_bytes: int, readers: int, copy_cache_bytes: int | None = None
    ) -> Iterator[tl.Store]:
        """A store for so many bytes of objects. Whether the machine has room for them is not checked."""
        # Such a store outlives the benchmark, with others' objects in it.
        is_shared = urlsplit(self.engine).scheme in ("host", "mooncake")
        with (
            self.url(object_bytes) as url,
            tl.open(
                url,
                max_bytes=max_bytes,
                readers=readers,
                namespace=new_namespace("bench") if is_shared else "",
                copy_cache_bytes=copy_cache_bytes,
                batch_keys=self.batch_keys,
            ) as store,
            emptied(store) if is_shared else nullcontext(),
        ):
            yield store

    def url(self, object_bytes: int) -> AbstractContextManager[str]:
        """What the store is opened with; an embedded engine without a capacity gets one that the objects fit."""
        if self.share is None:
            return nullcontext(engine_for(self.engine, object_bytes))
        return nullcontext(_with_options(self.engine, **self.pool()))

    def pool(self) -> dict[str, object]:
        """Options of the URL that make reads go through Mooncake's pool."""
        if self.share is None:
            return {}
        # Over TCP the pool must be forced. The engine then asks for registrations too, as over RDMA.
        return {"pool": "store", "force": 1, "share": self.share, "local_buffer": self.local_buffer_bytes}


def new_namespace(kind: str) -> str:
    """Keys of one run, which meet no others."""
    return f"{kind}-{uuid.uuid4().hex[:12]}/"


@contextmanager
def emptied(store: tl.Store) -> Iterator[None]:
    """Removes at its end, however that comes, all that is in the store's namespace."""
    try:
        yield
    except BaseException:
        # What ended it is the error to tell.
        with suppress(tl.Error):
            store.clear()
        raise
    store.clear()


def engine_for(engine: str, size_bytes: int) -> str:
    """The URL with `capacity` for `size_bytes` of objects, where it names an embedded engine and no capacity."""
    parts = urlsplit(engine)
    if parts.scheme != "embedded" or "capacity" in parse_qs(parts.query):
        return engine
    return _with_options(engine, capacity=max(round(size_bytes * CAPACITY_FACTOR), 64 * MIB))


def _with_options(url: str, **options: object) -> str:
    added = "&".join(f"{name}={value}" for name, value in options.items())
    return f"{url}{'&' if urlsplit(url).query else '?'}{added}"


def default_max_bytes(workloads: list[Workload]) -> int:
    """1.4 times the largest workload: one result and the reserve for copies fit, two results don't. At least the size of a first slab."""
    return max(round(1.4 * max(workload.size_bytes for workload in workloads)), _TRIAL_BYTES)
