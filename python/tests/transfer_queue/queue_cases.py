"""What a job of the tests does: every kind of value through every interface, and the cases that need a whole queue."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import mooncake.store
import ray
import torch
import transfer_queue as tq
from counting_store import gated
from described import describe, rows_of
from kinds import BY_ROW, KINDS, LENGTHS, NOT_RELEASED, ROWS, batch
from queue_ways import KEYS, Actors, AsyncKv, LowLevel, SyncKv, Way, storage_client_name
from tensordict import NonTensorStack, TensorDict
from transfer_queue import StreamingDataLoader, StreamingDataset
from transfer_queue.dataloader.streaming_dataset import default_fetch_batch_fn

#: Long enough for a read to have begun; nothing fails when it has not.
BEGUN_SECONDS = 0.2
OURS_TO_RELEASED, RELEASED_TO_OURS = "ours to released", "released to ours"
DIRECTIONS = (OURS_TO_RELEASED, RELEASED_TO_OURS)
#: Each case takes the job and returns what the tests compare.
Case = Callable[["Job"], Any]


class Job:
    """What all cases of a job share."""

    def __init__(self, config: Any, master_address: str) -> None:
        self.config = config
        self._master_address = master_address
        self._raw: Any = None
        self._actors: Actors | None = None
        self._mixed: dict[str, Actors] = {}
        self._streams: dict[str, str] = {}

    @property
    def actors(self) -> Actors:
        """Made when a case first needs them."""
        if self._actors is None:
            self._actors = Actors()
        return self._actors

    def mixed(self, direction: str) -> Actors:
        """Actors of which only one has our client; made when a case first needs them."""
        if direction not in self._mixed:
            writes = direction == OURS_TO_RELEASED
            self._mixed[direction] = Actors(producer_switched=writes, consumer_switched=not writes)
        return self._mixed[direction]

    def streams(self) -> dict[str, str]:
        """A partition for each loader, of rows whose sums are 0, 50, 100 and so on.

        All are put before the first loader runs: its worker takes the memory that it contributes with it when it ends.
        """
        if not self._streams:
            self._streams = {name: f"streamed {name}" for name in ("here", "spawned", "forked", "forked too late")}
            rows = torch.arange(3 * ROWS, dtype=torch.float32)[:, None].repeat(1, 50)
            for partition in self._streams.values():
                for batch_rows in rows.split(ROWS):
                    tq.get_client().put(TensorDict({"x": batch_rows}, batch_size=[ROWS]), partition_id=partition)
        return self._streams

    def stored(self, numbers: list[int], fields: list[str]) -> list[str]:
        """Which of these objects Mooncake holds, asked by a client that is neither's."""
        keys = [f"{number}@{field}" for number, field in itertools.product(numbers, fields)]
        return [key for key, there in zip(keys, self.raw.batch_is_exist(keys), strict=True) if there == 1]

    @property
    def raw(self) -> Any:
        """A Mooncake client of its own, made when a case first needs it."""
        if self._raw is None:
            self._raw = mooncake.store.MooncakeDistributedStore()
            assert self._raw.setup("127.0.0.1", "P2PHANDSHAKE", 0, 16 << 20, "tcp", "", self._master_address) == 0
        return self._raw


# ---- the matrix ------------------------------------------------------------------------------------------------------------------


def round_trip(job: Job, way: Way, kind: str, partition: str) -> Any:
    """Put, get, compare with what was put, clear: what came back, described."""
    given = batch(kind, seed=1)
    fields = sorted(given.keys())
    numbers = way.put(partition, given, kind in BY_ROW)
    found: Any = way.get(partition)
    if isinstance(way, Actors):
        described, rows = ray.get(found)
    else:
        described, rows = describe(found), {name: rows_of(found.get(name)) for name in found.keys()}  # noqa: SIM118
    assert sorted(rows) == fields
    for name in fields:
        assert rows[name] == rows_of(given.get(name)), f"column {name} is not what was put"
    way.clear(partition)
    assert job.stored(numbers, fields) == []
    return described


def two_partitions(job: Job, kind: str, partition: str) -> Any:
    """The same keys in two partitions; clearing one leaves the other."""
    way, names = SyncKv(), [f"{partition}/first", f"{partition}/second"]
    given = [batch(kind, seed) for seed in (1, 2)]
    numbers = [way.put(name, one, kind in BY_ROW) for name, one in zip(names, given, strict=True)]
    tq.get_client().clear_partition(names[0])
    fields = sorted(given[0].keys())
    assert job.stored(numbers[0], fields) == []
    found = way.get(names[1])
    for name in fields:
        assert rows_of(found.get(name)) == rows_of(given[1].get(name)), f"column {name} is not what was put"
    way.clear(names[1])
    assert names[0] not in tq.kv_list()
    return describe(found)


def _matrix() -> dict[str, Case]:
    ways: dict[str, Callable[[Job], Way]] = {
        "sync": lambda _: SyncKv(),
        "async": lambda _: AsyncKv(),
        "low-level": lambda _: LowLevel(),
        "actors": lambda job: job.actors,
    }
    cases: dict[str, Case] = {}
    for kind in KINDS:
        for name, way in ways.items():
            case = f"{name}/{kind}"
            cases[case] = lambda job, way=way, kind=kind, case=case: round_trip(job, way(job), kind, case)
        case = f"partitions/{kind}"
        cases[case] = lambda job, kind=kind, case=case: two_partitions(job, kind, case)
    return cases


def _mixed_matrix() -> dict[str, Case]:
    """A job of which some processes have our client and others the released one, for what both can do."""
    cases: dict[str, Case] = {}
    for direction in DIRECTIONS:
        cases[f"{direction}/clients"] = lambda job, direction=direction: job.mixed(direction).clients()
        for kind in KINDS.keys() - NOT_RELEASED:
            case = f"{direction}/{kind}"
            cases[case] = lambda job, direction=direction, kind=kind, case=case: round_trip(
                job, job.mixed(direction), kind, case
            )
    return cases


# ---- one by one ------------------------------------------------------------------------------------------------------------------


def clients(job: Job) -> Any:
    """The storage client's class in the driver, in actors, in a task."""
    return {
        "driver": storage_client_name(),
        "actors": job.actors.clients(),
        "task": ray.get(_client_of_a_task.remote()),
    }


# Its process ends with it: a process that has used Mooncake can't fork workers for a loader.
@ray.remote(num_cpus=0, max_calls=1)
def _client_of_a_task() -> str:
    tq.init()
    try:
        return storage_client_name()
    finally:
        # The memory that it contributed must not seem to be there once it has ended. TransferQueue leaves that to the collector.
        tq.get_client().storage_manager.storage_client.close()
        tq.get_client().close()


def left_after_clearing_different_fields(job: Job) -> Any:
    """One key has both fields and the other one: what is still stored when both are cleared in one call."""
    partition = "different fields"
    tq.kv_put("both", partition, fields={"a": torch.ones(3), "b": torch.ones(3)})
    tq.kv_put("one", partition, fields={"a": torch.ones(3)})
    numbers = list(tq.get_client().kv_retrieve_meta(["both", "one"], partition).global_indexes)
    tq.kv_clear(["both", "one"], partition)
    return job.stored(numbers, ["a", "b"])


def clearing_a_key_without_fields(_: Job) -> Any:
    """It has a tag and nothing else: the keys that are left."""
    partition = "tag only"
    tq.kv_put("tagged", partition, tag={"status": "waits"})
    tq.kv_clear(["tagged"], partition)
    return tq.kv_list(partition)


def reading_a_row_that_is_gone(job: Job) -> Any:
    """Somebody has removed one of the objects: is it TransferQueue's own error, and does it name the key?"""
    key = _with_a_row_that_is_gone(job, "gone")
    return _said_of(lambda: tq.kv_batch_get(KEYS, "gone"), key)


def reading_a_row_that_is_gone_in_an_actor(job: Job) -> Any:
    """The same of an error that crosses to this process through Ray."""
    key = _with_a_row_that_is_gone(job, "gone for an actor")
    return _said_of(lambda: ray.get(job.actors.get("gone for an actor")), key)


def _with_a_row_that_is_gone(job: Job, partition: str) -> str:
    tq.kv_batch_put(KEYS, partition, fields=TensorDict({"x": torch.ones(ROWS, 8)}, batch_size=[ROWS]))
    numbers = list(tq.get_client().kv_retrieve_meta(KEYS, partition).global_indexes)
    assert job.raw.batch_remove([f"{numbers[1]}@x"], force=True) == [0]
    return f"{numbers[1]}@x"


def _said_of(read: Callable[[], Any], key: str) -> Any:
    try:
        read()
    except Exception as error:
        return isinstance(error, tq.StorageKeyNotFoundError), key in str(error)
    return "no error"


def a_field_of_two_dtypes(job: Job) -> Any:
    """What each put of other rows says, and whether the first rows are as they were."""
    partition, given = "two dtypes", torch.arange(float(ROWS))[:, None]
    client = tq.get_client()
    client.put(TensorDict({"x": given}, batch_size=[ROWS]), partition_id=partition)
    tq.kv_put("first", partition, fields={"y": torch.ones(3)})
    said = []
    for put in (
        lambda: client.put(TensorDict({"x": given.int()}, batch_size=[ROWS]), partition_id=partition),
        lambda: client.put(
            TensorDict({"x": NonTensorStack(*["text"] * ROWS)}, batch_size=[ROWS]), partition_id=partition
        ),
        # A new key, whose description has no fields, and an old one.
        lambda: tq.kv_put("second", partition, fields={"y": torch.ones(3).double()}),
        lambda: tq.kv_put("first", partition, fields={"y": torch.ones(3).int()}),
    ):
        try:
            put()
        except ValueError as error:
            said.append(str(error))
    return said, tq.kv_batch_get(["first"], partition)["y"].unbind()[0].tolist()


def loop_while_reading(_: Job) -> Any:
    """A read that waits for something that the same event loop does later: whether it was done in time."""
    partition = "loop"
    tq.kv_batch_put(KEYS, partition, fields=TensorDict({"x": torch.ones(ROWS, 8)}, batch_size=[ROWS]))
    client, gate = tq.get_client(), threading.Event()
    meta = client.kv_retrieve_meta(KEYS, partition)

    async def both() -> Any:
        reading = asyncio.ensure_future(client.async_get_data(meta))
        await asyncio.sleep(BEGUN_SECONDS)
        gate.set()
        return await reading

    with gated(gate) as let_through:
        asyncio.run(both())
        return list(let_through)


def loop_while_clearing(_: Job) -> Any:
    """The same while objects are removed."""
    partition = "loop of a clear"
    tq.kv_batch_put(KEYS, partition, fields=TensorDict({"x": torch.ones(ROWS, 8)}, batch_size=[ROWS]))
    client, gate = tq.get_client(), threading.Event()
    meta = client.kv_retrieve_meta(KEYS, partition)

    async def both() -> None:
        clearing = asyncio.ensure_future(client.storage_manager.clear_data(meta))
        await asyncio.sleep(BEGUN_SECONDS)
        gate.set()
        await clearing

    with gated(gate) as let_through:
        asyncio.run(both())
    found = list(let_through)
    tq.kv_clear(KEYS, partition)
    return found


def values_of_two_reads(_: Job) -> Any:
    """What the first reader wrote into its tensors must not show in a second read."""
    partition = "independent"
    given = TensorDict({"x": torch.ones(ROWS, 5000)}, batch_size=[ROWS])
    tq.kv_batch_put(KEYS, partition, fields=given)
    first = tq.kv_batch_get(KEYS, partition)["x"]
    for row in first.unbind():
        row.fill_(7.0)
    second = tq.kv_batch_get(KEYS, partition)["x"]
    given["x"].zero_()
    return [float(row.sum()) for row in (*first.unbind(), *second.unbind())]


def dense_columns(_: Job) -> Any:
    """A batch of every layout, described; whether fields of equal lengths share their offsets; and what torch makes of both."""
    partition = "dense columns"
    lengths = [torch.arange(length) for length in LENGTHS]
    given = TensorDict(
        {
            "matrix": torch.arange(ROWS * 6.0).reshape(ROWS, 2, 3),
            "reward": torch.arange(ROWS) / 2,
            "one wide": torch.arange(ROWS)[:, None],
            "ids": torch.nested.as_nested_tensor(lengths, layout=torch.jagged),
            "mask": torch.nested.as_nested_tensor([row % 2 for row in lengths], layout=torch.jagged),
            "text": NonTensorStack(*(f"row {row}" for row in range(ROWS))),
        },
        batch_size=[ROWS],
    )
    tq.kv_batch_put(KEYS, partition, fields=given)
    found = tq.kv_batch_get(KEYS, partition)
    ids, mask = found["ids"], found["mask"]
    described = {name: (describe(found.get(name)), describe(given.get(name))) for name in given.keys()}  # noqa: SIM118
    return described, ids.offsets() is mask.offsets(), describe(ids * mask)


def copied_by_a_read(_: Job) -> Any:
    """How many bytes of a batch of large rows were copied to merge them, and how many fallbacks there were."""
    partition = "copied"
    rows = [torch.arange(length * 10_000) for length in LENGTHS]
    given = TensorDict(
        {"matrix": torch.ones(ROWS, 8, 8000), "ids": torch.nested.as_nested_tensor(rows, layout=torch.jagged)},
        batch_size=[ROWS],
    )
    tq.kv_batch_put(KEYS, partition, fields=given)
    client = tq.get_client().storage_manager.storage_client
    before = client.stats()
    found = tq.kv_batch_get(KEYS, partition)
    after = client.stats()
    for name in ("matrix", "ids"):
        assert rows_of(found[name]) == rows_of(given[name])
    return {name: after[name] - before[name] for name in ("copied_bytes", "fallback_reads", "leased_reads")}


def streamed_here(job: Job) -> Any:
    """By a StreamingDataLoader of this process."""
    return stream(job.config, job.streams()["here"])


def streamed_by_a_spawned_worker(job: Job) -> Any:
    """As it must be once the process has used Mooncake. The released client's worker would start a Ray of its own."""
    from tensorlease.transfer_queue import setup_worker

    spawned = {"num_workers": 1, "multiprocessing_context": "spawn", "worker_init_fn": setup_worker}
    return stream(job.config, job.streams()["spawned"], **spawned)


def streamed_by_a_forked_worker(job: Job) -> Any:
    """In a process that has not used Mooncake before it forks."""
    return ray.get(_stream_in_a_task.remote(job.config, job.streams()["forked"], num_workers=1))


def streamed_after_the_client_was_used(job: Job) -> Any:
    """The worker is forked from a process that uses Mooncake: what it says. The released client hangs."""
    try:
        return stream(job.config, job.streams()["forked too late"], num_workers=1)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


@ray.remote(num_cpus=0, max_calls=1)
def _stream_in_a_task(config: Any, partition: str, **loader: Any) -> Any:
    return stream(config, partition, **loader)


def stream(config: Any, partition: str, **loader: Any) -> Any:
    """The sums of the rows, and the client's class where they were read."""
    dataset = StreamingDataset(
        config,
        batch_size=ROWS,
        micro_batch_size=2,
        data_fields=["x"],
        partition_id=partition,
        task_name="train",
        dp_rank=0,
        fetch_batch_fn=_fetch_with_client,
        process_batch_fn=_sums_of_rows,
    )
    found = list(itertools.islice(StreamingDataLoader(dataset, **loader), 3))
    return [total for totals, _ in found for total in totals], {name for _, name in found}


def _fetch_with_client(tq_client: Any, **arguments: Any) -> Any:
    fetched, meta = default_fetch_batch_fn(tq_client=tq_client, **arguments)
    name = type(tq_client.storage_manager.storage_client).__name__
    return (None if fetched is None else (fetched, name)), meta


def _sums_of_rows(fetched: tuple[TensorDict, str], _: Any, micro_batch_size: int) -> Iterator[Any]:
    data, name = fetched
    yield [float(row.sum()) for row in data["x"].unbind()], name


CASES: dict[str, Case] = {
    **_matrix(),
    "clients": clients,
    "left after clearing different fields": left_after_clearing_different_fields,
    "clearing a key without fields": clearing_a_key_without_fields,
    "reading a row that is gone": reading_a_row_that_is_gone,
    "loop while reading": loop_while_reading,
    "loop while clearing": loop_while_clearing,
    "values of two reads": values_of_two_reads,
    "streamed in this process": streamed_here,
    "streamed by a forked worker": streamed_by_a_forked_worker,
}

#: Cases for our client alone: the released one lacks what they ask for, or hangs.
OURS_ALONE: dict[str, Case] = {
    **_mixed_matrix(),
    "dense columns": dense_columns,
    "a field of two dtypes": a_field_of_two_dtypes,
    "copied by a read": copied_by_a_read,
    "reading a row that is gone in an actor": reading_a_row_that_is_gone_in_an_actor,
    "streamed by a spawned worker": streamed_by_a_spawned_worker,
    "streamed after the client was used": streamed_after_the_client_was_used,
}


def in_order(names: Iterable[str]) -> list[str]:
    """Those that stream last: a loader's worker takes the memory that it contributes with it, and what others have just put there."""
    return sorted(names, key=lambda name: name.startswith("streamed"))
