"""The files that the house rules look at, and the breaches found in them."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Tree:
    """The files under version control (or about to be), and the breaches found in them."""

    root: Path
    paths: list[str]
    breaches: list[str] = field(default_factory=list)

    @classmethod
    def at(cls, root: Path) -> Tree:
        return cls(root, sorted(path for path in _listed(root) if (root / path).is_file()))

    def files(self, *suffixes: str) -> Iterator[tuple[str, str]]:
        for path in self.paths:
            if path.endswith(suffixes):
                yield path, (self.root / path).read_text(encoding="utf-8")

    def report(self, path: str, line: int, message: str) -> None:
        self.breaches.append(f"{path}:{line}: {message}")


def _listed(root: Path) -> list[str]:
    command = ["git", "-C", str(root), "ls-files", "--cached", "--others", "--exclude-standard"]
    listing = subprocess.run(command, capture_output=True, text=True, check=False)
    if listing.returncode == 0:
        return listing.stdout.splitlines()
    return [str(path.relative_to(root)) for path in root.rglob("*")]
