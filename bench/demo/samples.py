"""The samples that go through the store, and the checksums that prove that they came through."""

from __future__ import annotations

import random
import zlib
from dataclasses import dataclass
from typing import Any

import torch

from bench.data import ConversationLengths, conversation_lengths

# Columns whose rows are as long as the conversation.
TOKEN_FIELDS = {"input_ids": torch.int64, "response_mask": torch.bool, "logprobs": torch.float32}
FIELDS = (*TOKEN_FIELDS, "reward", "meta")
TOKEN_BYTES: int = sum(dtype.itemsize for dtype in TOKEN_FIELDS.values())
_VOCABULARY = 150_000


@dataclass(frozen=True)
class Sample:
    """One conversation of a rollout: three tensors with an entry per token, a reward, and a dict of strings."""

    tensors: dict[str, torch.Tensor]
    meta: dict[str, str]

    def values(self) -> list[torch.Tensor | dict[str, str]]:
        """In the order of `FIELDS`."""
        return [*self.tensors.values(), self.meta]

    def checksums(self) -> dict[str, int]:
        """One per tensor field."""
        return {field: checksum(tensor) for field, tensor in self.tensors.items()}


def make_sample(conversation: int, lengths: ConversationLengths, generator: torch.Generator) -> Sample:
    """Random tokens with the lengths of a real conversation; the mask is set where the answer stands."""
    mask = torch.zeros(lengths.tokens, dtype=torch.bool)
    mask[lengths.prompt :] = True
    tensors = {
        "input_ids": torch.randint(0, _VOCABULARY, (lengths.tokens,), generator=generator),
        "response_mask": mask,
        "logprobs": torch.rand(lengths.tokens, generator=generator).mul_(-4.0),
        "reward": torch.rand((), generator=generator),
    }
    finish = "stop" if lengths.answer < 1000 else "length"
    language = "日本語" if conversation % 3 == 0 else "English"
    return Sample(tensors, {"conversation": str(conversation), "finish_reason": finish, "language": language})


def sample_key(step: int, index: int, field: str) -> str:
    """Where a field of a sample lies in the store."""
    return f"step-{step}/sample-{index}/{field}"


def checksum(tensor: torch.Tensor) -> int:
    """Of the bytes, in their order."""
    # Any, because numpy's stubs do not tell that an array is a buffer.
    data: Any = tensor.reshape(-1).view(torch.uint8).numpy()
    return zlib.crc32(data)


class Plan:
    """Which conversations each step is made of. Rollout and trainer both know it, as they would from a data loader."""

    def __init__(self, steps: int, samples: int, seed: int) -> None:
        self.steps = steps
        self.samples = samples
        self._lengths = conversation_lengths()
        rng = random.Random(seed)
        self._chosen = [rng.sample(range(len(self._lengths)), samples) for _ in range(steps)]

    def conversation(self, step: int, index: int) -> int:
        """Line of the data file."""
        return self._chosen[step][index]

    def lengths(self, step: int, index: int) -> ConversationLengths:
        """Of one sample."""
        return self._lengths[self._chosen[step][index]]

    def shapes(self, step: int) -> list[tuple[int]]:
        """The row shapes of a step's token columns."""
        return [(self.lengths(step, index).tokens,) for index in range(self.samples)]

    def step_bytes(self) -> int:
        """Bytes of the largest step's token columns."""
        return max(sum(length for (length,) in self.shapes(step)) for step in range(self.steps)) * TOKEN_BYTES
