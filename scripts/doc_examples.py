#!/usr/bin/env python3
"""Runs the Python code in the documents, so that what they show works: each file's blocks in order, in one process of its own.

Usage: scripts/doc_examples.py [FILE...]
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
END_DAEMON = (
    "import os, signal, sys; from tensorlease import host; os.kill(host.report(sys.argv[1])['pid'], signal.SIGTERM)"
)
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def program(path: Path) -> str:
    """The blocks of one document, each at the line where it stands there, so that a traceback points into the document."""
    text = path.read_text(encoding="utf-8")
    lines: list[str] = []
    for block in BLOCK.finditer(text):
        start = text.count("\n", 0, block.start(1))
        lines += [""] * (start - len(lines))
        lines += block.group(1).splitlines()
    return "\n".join(lines)


def run(path: Path) -> bool:
    code = program(path)
    if not code.strip():
        return True
    print(f"example: {path.relative_to(ROOT)}", flush=True)
    runner = f"exec(compile({code!r}, {str(path)!r}, 'exec'), {{'__name__': '__main__'}})"
    # `tensorlease.open()` starts the host's daemon in this folder, and an object that an example leaves there keeps it alive.
    with tempfile.TemporaryDirectory(prefix="tl-") as folder:
        environment = {**os.environ, "XDG_RUNTIME_DIR": folder}
        done = subprocess.run(
            [sys.executable, "-c", runner],
            cwd=ROOT,
            env=environment,
            timeout=300,
            stdout=subprocess.DEVNULL,
            check=False,
        )
        for socket in Path(folder).rglob("*.sock"):
            subprocess.run([sys.executable, "-c", END_DAEMON, str(socket)], timeout=60, check=True)
    return done.returncode == 0


def main(arguments: list[str]) -> int:
    paths = [Path(name).resolve() for name in arguments] or [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    failed = [path for path in paths if not run(path)]
    for path in failed:
        print(f"{path.relative_to(ROOT)}: its Python code fails")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
