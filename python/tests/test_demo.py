"""The demo: its threads, its checks, and the whole story in small."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from host_rig import place, served

import tensorlease as tl
from bench.command import main
from bench.demo import trainer as trainer_module
from bench.demo.apart import REPOSITORY
from bench.demo.compare import Comparison, DeliveryCost, compare, meaning
from bench.demo.crew import Crew
from bench.demo.ledger import Entry, Ledger
from bench.demo.rollout import ROLLOUT_THREADS, rollout
from bench.demo.samples import FIELDS, Plan, checksum, make_sample, sample_key
from bench.demo.story import DemoSettings, train
from bench.demo.trainer import StepResult, policy_loss, trainer
from tensorlease import host
from tensorlease.bench.column import WrongContents


@pytest.mark.alone
def test_the_first_error_stops_every_thread_and_reaches_the_caller() -> None:
    crew = Crew()

    def fail() -> None:
        raise ValueError("the rollout broke")

    crew.start("waits", lambda: crew.wait_until(lambda seconds: bool(time.sleep(seconds)), "nothing", 60.0))
    crew.start("fails", fail)
    start = time.monotonic()
    with pytest.raises(ValueError, match="the rollout broke"):
        crew.join()
    assert time.monotonic() - start < 10


def test_stop_ends_threads_that_wait() -> None:
    crew = Crew()
    crew.start("waits", lambda: crew.wait_until(lambda seconds: bool(time.sleep(seconds)), "nothing", 60.0))
    crew.stop()
    assert not any(thread.name == "waits" for thread in threading.enumerate())
    crew.join()


def test_what_does_not_come_in_time_is_a_timeout_that_names_it() -> None:
    with pytest.raises(tl.Timeout, match="the samples did not come"):
        Crew().wait_until(lambda seconds: bool(time.sleep(seconds)), "the samples", 0.05)


def test_the_ledger_has_a_step_when_all_its_entries_are_in() -> None:
    ledger = Ledger()
    entries = [Entry({"reward": index}, {}, None) for index in range(2)]
    ledger.record(0, 1, entries[1])
    assert not ledger.has(0, 2, 0.0)
    ledger.record(0, 0, entries[0])
    assert ledger.has(0, 2, 0.0)
    assert ledger.take(0, 2) == entries
    assert not ledger.has(0, 2, 0.0)


def test_samples_have_the_lengths_of_their_conversations() -> None:
    plan = Plan(2, 8, seed=3)
    lengths = plan.lengths(1, 5)
    sample = make_sample(plan.conversation(1, 5), lengths, torch.Generator().manual_seed(0))
    assert plan.shapes(1)[5] == tuple(sample.tensors["input_ids"].shape) == (lengths.tokens,)
    assert int(sample.tensors["response_mask"].sum()) == lengths.answer
    assert not sample.tensors["response_mask"][: lengths.prompt].any()
    assert len(sample.values()) == len(FIELDS)


def test_a_checksum_sees_every_byte_and_their_order() -> None:
    tensor = torch.arange(6, dtype=torch.int64)
    swapped = tensor[[1, 0, 2, 3, 4, 5]]
    assert checksum(tensor) == checksum(tensor.clone())
    assert checksum(tensor) != checksum(swapped)
    assert checksum(torch.tensor(1.0)) != checksum(torch.tensor(2.0))


def put_step(store: tl.Store, plan: Plan) -> list[Entry]:
    ledger, crew = Ledger(), Crew()
    for worker in range(ROLLOUT_THREADS):
        rollout(worker, plan, store, ledger, crew, seed=0)()
    return ledger.take(0, plan.samples)


def run_crew(store: tl.Store, plan: Plan) -> list[StepResult]:
    results: list[StepResult] = []
    crew, ledger = Crew(), Ledger()
    try:
        for worker in range(ROLLOUT_THREADS):
            crew.start(f"rollout-{worker}", rollout(worker, plan, store, ledger, crew, seed=0))
        crew.start("trainer", trainer(plan, store, ledger, crew, results.append))
        crew.join()
    finally:
        crew.stop()
    return results


def test_the_trainer_sees_every_step_and_leaves_the_store_empty() -> None:
    plan = Plan(4, 12, seed=0)
    with tl.open("embedded://?capacity=128MiB", max_bytes="64MiB") as store:
        results = run_crew(store, plan)
        assert [result.step for result in results] == [0, 1, 2, 3]
        assert [result.tokens for result in results] == [
            sum(length for (length,) in plan.shapes(step)) for step in range(4)
        ]
        keys = [sample_key(step, index, field) for step in range(4) for index in range(12) for field in FIELDS]
        assert not any(store.contains(keys))
        assert store.stats()["leased_bytes"] == 0


def test_the_loss_is_that_of_a_plain_loop_over_the_samples() -> None:
    plan = Plan(1, 9, seed=5)
    with tl.open("embedded://?capacity=128MiB", max_bytes="64MiB") as store:
        put_step(store, plan)
        names = ("response_mask", "logprobs", "reward")
        rows = {name: store.get([sample_key(0, index, name) for index in range(9)]) for name in names}
        shapes = plan.shapes(0)
        fields = {
            name: ([sample_key(0, index, name) for index in range(9)], shapes, dtype)
            for name, dtype in (("response_mask", torch.bool), ("logprobs", torch.float32))
        }
        columns = store.get_batches(fields) | {"reward": torch.stack(list(rows["reward"]))}
        mean_reward = sum(float(reward) for reward in rows["reward"]) / 9
        expected = 0.0
        for mask, logprobs, reward in zip(*(rows[name] for name in names), strict=True):
            expected -= (float(reward) - mean_reward) * float(logprobs[mask].mean()) / 9
        assert policy_loss(columns) == pytest.approx(expected, rel=1e-3, abs=1e-5)


@pytest.mark.parametrize("field", ["input_ids", "logprobs", "reward", "meta"])
def test_the_trainer_notices_what_the_rollout_did_not_write(field: str) -> None:
    plan = Plan(1, 6, seed=0)
    with tl.open("embedded://?capacity=128MiB", max_bytes="64MiB") as store:
        crew, ledger = Crew(), Ledger()
        for worker in range(ROLLOUT_THREADS):
            rollout(worker, plan, store, ledger, crew, seed=0)()
        key = sample_key(0, 4, field)
        (value,) = store.get([key])
        store.remove([key])
        store.put([key], [value | {"finish_reason": value["finish_reason"][::-1]} if field == "meta" else value + 1])
        with pytest.raises(WrongContents, match=f"sample 4: {field}"):
            trainer(plan, store, ledger, crew, lambda result: None)()


def test_a_failing_trainer_ends_the_demo_with_its_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(columns: object) -> float:
        raise ZeroDivisionError("no answers")

    monkeypatch.setattr(trainer_module, "policy_loss", broken)
    with pytest.raises(ZeroDivisionError, match="no answers"):
        train(DemoSettings("embedded://", 5, 8, tmp_path, 0))
    assert not any(thread.name.startswith(("rollout", "trainer")) for thread in threading.enumerate())


def test_each_delivery_is_compared_on_the_same_data() -> None:
    comparison = compare("embedded://", samples=16, seed=0)
    assert {cost.delivery for cost in comparison.costs} == {"leased", "copied", "register-per-call"}
    assert comparison.keys == 48
    assert comparison.cost_of("leased").registrations == 0
    assert all(cost.gib_per_second > 0 for cost in comparison.costs)


def test_the_meaning_is_told_with_the_numbers_of_the_table() -> None:
    costs = [DeliveryCost("leased", 9.0, 1.0, 0, 0, 1), DeliveryCost("register-per-call", 3.0, 3.0, 41, 0, 5000)]
    sentence = meaning(Comparison(10, 100, costs))
    assert "3.0 times as fast" in sentence
    assert (
        "0 registrations, 0 B of copying out and 1 page fault, against 41 registrations and 5,000 page faults"
        in sentence
    )


@pytest.mark.parametrize("engine", ["host://", "embedded://"])
def test_the_whole_story_in_small(engine: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    place = os.environ.get("XDG_RUNTIME_DIR")
    arguments = ["--steps", "2", "--samples", "16", "--out", str(tmp_path / "new" / "folder"), "--engine", engine]
    assert main(["demo", *arguments]) == 0
    told = capsys.readouterr().out
    assert told.count("contents right") == 2
    assert told.count("A rollout process") == int(engine == "host://")
    assert told.count("Read in place, with view=True") == int(engine == "host://")
    assert "times as fast as re" in told
    assert (tmp_path / "new" / "folder" / "deliveries.png").read_bytes().startswith(b"\x89PNG")
    assert os.environ.get("XDG_RUNTIME_DIR") == place, "the user's own place is what it was"
    assert all(process.poll() is not None for _, process in host._started), "its daemon has ended"


def test_a_demo_in_a_hosts_store_leaves_nothing_there(tmp_path: Path) -> None:
    with place() as folder, served(folder / "demo.sock") as daemon:
        with tl.open(daemon.url, max_bytes="16MiB") as store:
            store.put([sample_key(0, 0, FIELDS[0])], ["somebody's"])
        assert main(["demo", "--steps", "2", "--samples", "16", "--out", str(tmp_path), "--engine", daemon.url]) == 0
        assert daemon.report()["objects"] == 1


def processes_with(setting: str) -> list[str]:
    """Command lines of processes that were started with this in their environment."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"{setting}\0".encode() in (folder / "environ").read_bytes():
                found.append((folder / "cmdline").read_text().replace("\0", " "))
    return found


def test_a_demo_over_a_host_that_is_interrupted_leaves_nothing_running(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="tl-") as folder:
        command = [
            sys.executable,
            "-m",
            "bench",
            "demo",
            "--steps",
            "50",
            "--samples",
            "32",
            "--out",
            str(tmp_path),
        ]
        demo = subprocess.Popen(
            command,
            cwd=REPOSITORY,
            env={**os.environ, "TMPDIR": folder},
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert demo.stdout is not None
        try:
            assert any(line.startswith("step 2/50") for line in demo.stdout)
            running = processes_with(f"TMPDIR={folder}")
            assert any("bench.demo.apart" in line for line in running), running
            assert any("serve --socket" in line for line in running), running
            # As a terminal does: to all of its group. The daemon is in a session of its own.
            os.killpg(demo.pid, signal.SIGINT)
            demo.communicate(timeout=40)
        finally:
            demo.kill()
        assert demo.returncode == 130
        assert processes_with(f"TMPDIR={folder}") == []
        assert list(Path(folder).iterdir()) == []
