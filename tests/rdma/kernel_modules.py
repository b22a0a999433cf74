#!/usr/bin/env python3
"""Copies kernel modules and all that they depend on to one folder, and writes the order in which to load them.

Usage: kernel_modules.py MODULES_FOLDER DESTINATION MODULE...

A kernel package that is not installed has no `modules.dep`, so this reads each module's own `depends=`.
"""

from __future__ import annotations

import lzma
import re
import sys
from pathlib import Path

_DEPENDS = re.compile(rb"\0depends=([^\0]*)\0")
_SUFFIXES = (".ko", ".ko.xz")


class Modules:
    """The modules of one unpacked kernel."""

    def __init__(self, folder: Path) -> None:
        self._files = {_name(path): path for path in folder.rglob("*.ko*") if path.name.endswith(_SUFFIXES)}
        listed = next(folder.rglob("modules.builtin"), None)
        if not self._files or listed is None:
            raise SystemExit(f"{folder} holds no kernel modules, or not the list of those that are built in")
        self._built_in = {_name(Path(line)) for line in listed.read_text().splitlines()}

    def copy(self, wanted: list[str], destination: Path) -> None:
        """With their dependencies, each after those that it needs; `order` lists them."""
        order: dict[str, bytes] = {}
        for name in wanted:
            self._add(name.replace("-", "_"), order)
        destination.mkdir(parents=True, exist_ok=True)
        for name, content in order.items():
            (destination / f"{name}.ko").write_bytes(content)
        (destination / "order").write_text("".join(f"{name}.ko\n" for name in order))

    def _add(self, name: str, order: dict[str, bytes]) -> None:
        if name in self._built_in or name in order:
            return
        if name not in self._files:
            raise SystemExit(f"this kernel has no module {name}; the RDMA tests can't run without it")
        content = _content(self._files[name])
        depends = _DEPENDS.search(content)
        for needed in depends[1].decode().split(",") if depends else []:
            if needed:
                self._add(needed.replace("-", "_"), order)
        order[name] = content


def _name(path: Path) -> str:
    return path.name.removesuffix(".xz").removesuffix(".ko").replace("-", "_")


def _content(path: Path) -> bytes:
    content = path.read_bytes()
    return lzma.decompress(content) if path.suffix == ".xz" else content


if __name__ == "__main__":
    Modules(Path(sys.argv[1])).copy(sys.argv[3:], Path(sys.argv[2]))
