"""A TransferQueue job whose bytes go through tensorlease: a producer, and two ranks that stream what it makes.

Run: make example-transfer-queue (the master is started by the repository's `bench`)
"""

import itertools
from typing import Any

import ray
import torch
import transfer_queue as tq
from omegaconf import DictConfig, OmegaConf
from tensordict import TensorDict

import tensorlease.transfer_queue  # the line that switches this process
from bench.cluster import Master

RANKS = 2
SAMPLES = 32
BATCH = 4
BATCHES_PER_RANK = SAMPLES // BATCH // RANKS
TOKENS = 2048
PARTITION = "train@step_0"


@ray.remote(num_cpus=0)
class Producer:
    """Puts prompts and answers as a rollout makes them, a batch at a time."""

    def produce(self) -> int:
        tq.init()
        for first in range(0, SAMPLES, BATCH):
            samples = torch.arange(first, first + BATCH)
            answers = [torch.full((100 + int(sample),), int(sample)) for sample in samples]
            fields = TensorDict(
                {
                    "tokens": samples[:, None].repeat(1, TOKENS),
                    "answer": torch.nested.as_nested_tensor(answers, layout=torch.jagged),
                },
                batch_size=[BATCH],
            )
            tq.kv_batch_put([f"sample {sample}" for sample in samples.tolist()], PARTITION, fields=fields)
        return SAMPLES


@ray.remote(num_cpus=0)
class Rank:
    """Trains on its share of the samples."""

    def __init__(self, rank: int, config: DictConfig) -> None:
        self._rank, self._config = rank, config

    def train(self) -> tuple[list[int], str]:
        dataset = tq.StreamingDataset(
            self._config,
            batch_size=BATCH,
            micro_batch_size=2,
            data_fields=["tokens", "answer"],
            partition_id=PARTITION,
            task_name="train",
            dp_rank=self._rank,
        )
        seen: list[int] = []
        micro_batches = BATCHES_PER_RANK * BATCH // 2
        for batch, _ in itertools.islice(tq.StreamingDataLoader(dataset), micro_batches):
            for tokens, answer in zip(batch["tokens"].unbind(), batch["answer"].unbind(), strict=True):
                sample = int(tokens[0])
                assert tokens.tolist() == [sample] * TOKENS
                assert answer.tolist() == [sample] * (100 + sample)
                seen.append(sample)
        return seen, type(dataset._tq_client.storage_manager.storage_client).__name__


def configuration(master: Master) -> DictConfig:
    """As for TransferQueue alone, but for what stands under `tensorlease`."""
    mooncake: dict[str, Any] = {
        "auto_init": False,
        "metadata_server": "P2PHANDSHAKE",
        "master_server_address": master.address,
        "local_hostname": "127.0.0.1",
        "global_segment_size": 64 << 20,
        "local_buffer_size": 16 << 20,
        "tensorlease": {"max_bytes": "64MiB", "readers": 2},
    }
    return OmegaConf.create(
        {
            "controller": {"sampler": "RankAwareSampler", "polling_mode": True},
            "backend": {"storage_backend": "MooncakeStore", "MooncakeStore": mooncake},
        }
    )


def main() -> None:
    # The setting that switches every worker: actors, tasks, and the processes of data loaders.
    environment = tensorlease.transfer_queue.runtime_env()
    with Master() as master:
        ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, runtime_env=environment)
        try:
            config = tq.init(configuration(master))
            producer = Producer.remote()
            ranks = [Rank.remote(rank, config) for rank in range(RANKS)]
            trained = [rank.train.remote() for rank in ranks]
            print(f"produced {ray.get(producer.produce.remote())} samples")
            seen: list[int] = []
            for rank, (samples, client) in enumerate(ray.get(trained)):
                print(f"rank {rank} trained on {len(samples)} samples through {client}")
                assert client == "TensorleaseStoreClient"
                assert len(samples) == SAMPLES // RANKS
                seen += samples
            assert sorted(seen) == list(range(SAMPLES))
            tq.kv_clear([f"sample {sample}" for sample in range(SAMPLES)], PARTITION)
            print("every sample was trained on once; cleared")
        finally:
            tq.close()
            ray.shutdown()


if __name__ == "__main__":
    main()
