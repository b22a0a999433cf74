"""Row lengths of real conversations; README.md in this folder names the source and its licence."""

from __future__ import annotations

import csv
from importlib import resources
from typing import NamedTuple


class ConversationLengths(NamedTuple):
    """Tokens of one conversation."""

    prompt: int
    answer: int

    @property
    def tokens(self) -> int:
        """Prompt and answer together."""
        return self.prompt + self.answer


def conversation_lengths() -> list[ConversationLengths]:
    """The 6,000 conversations, in the order of the file."""
    text = (resources.files("bench.data") / "conversation_lengths.csv").read_text(encoding="ascii")
    rows = csv.DictReader(text.splitlines())
    return [ConversationLengths(int(row["input_length"]), int(row["output_length"])) for row in rows]
