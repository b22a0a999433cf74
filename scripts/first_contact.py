#!/usr/bin/env python3
"""What a newcomer does, with nothing of this project but the wheel: pastes README.md's lines for two processes into two terminals, in both orders.

Makes a new environment for each framework. pip installs the wheel into it, with what that depends on, and numpy as the extra of that name; torch, which is
gigabytes with CUDA, is linked from the environment that runs this, with what it depends on. Runs README.md's blocks that name the framework, as two
processes one after the other, then the second before the first, and `tensorlease doctor`.

Usage: scripts/first_contact.py --wheel FILE FRAMEWORK...
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import re
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
SECONDS = 120
#: The sum of the numbers that the first terminal puts.
PRINTED = "499999500000"
END_DAEMON = "import os, signal, sys; from tensorlease import host; os.kill(host.report(None)['pid'], signal.SIGTERM)"


def main() -> int:
    parser = argparse.ArgumentParser(prog="first_contact", description=__doc__.splitlines()[0])
    parser.add_argument("frameworks", nargs="+", choices=("numpy", "torch"), metavar="FRAMEWORK")
    parser.add_argument("--wheel", type=Path, required=True)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tl-") as folder:
        for framework in options.frameworks:
            python = environment(Path(folder) / framework, options.wheel.resolve(), framework)
            try_out(python, framework, Path(folder))
    return 0


def environment(folder: Path, wheel: Path, framework: str) -> Path:
    """The interpreter of a new environment."""
    venv.create(folder, symlinks=True, with_pip=True)
    python = folder / "bin" / "python"
    wanted = f"{wheel}[numpy]" if framework == "numpy" else str(wheel)
    subprocess.run([str(python), "-m", "pip", "install", "--quiet", wanted], check=True)
    if framework == "torch":
        (packages,) = folder.glob("lib/python*/site-packages")
        for package in everything({"torch"}):
            link(package, packages)
    return python


def everything(wanted: set[str]) -> set[str]:
    """These packages, and all that they depend on without an extra. numpy is no dependency of torch."""
    found: set[str] = set()
    while wanted:
        package = wanted.pop()
        if package in found:
            continue
        found.add(package)
        lines = importlib.metadata.requires(package) or []
        names = {re.split(r"[^A-Za-z0-9_.-]", line)[0] for line in lines if "extra ==" not in line}
        wanted |= {name for name in names if is_installed(name)}
    return found


def is_installed(package: str) -> bool:
    try:
        importlib.metadata.distribution(package)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def link(package: str, packages: Path) -> None:
    """Its folders and modules, as they are installed here."""
    files = importlib.metadata.files(package) or []
    tops = {file.parts[0] for file in files if file.parts[0] not in ("..", "__pycache__")}
    for top in tops:
        source = Path(str(files[0].locate())).parents[len(files[0].parts) - 1] / top
        if not (packages / top).exists():
            (packages / top).symlink_to(source)


def terminals(framework: str) -> tuple[str, str]:
    """README.md's block for the first terminal, with this framework, and the one for the second, which names none."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    blocks = [block.group(1) for block in BLOCK.finditer(text)]
    first = [block for block in blocks if f" {framework}" in block.splitlines()[0] and "# terminal 1" in block]
    second = [block for block in blocks if "# terminal 2" in block.splitlines()[0]]
    if len(first) != 1 or len(second) != 1:
        sys.exit(
            f"README.md has {len(first)} blocks for terminal 1 with {framework}, {len(second)} for terminal 2, not one each"
        )
    return first[0], second[0]


def try_out(python: Path, framework: str, folder: Path) -> None:
    """Both orders, each with a daemon of its own; then the command."""
    first, second = terminals(framework)
    print(f"first contact, {framework} alone:", flush=True)
    with place(python, folder / f"{framework}-1") as home:
        expect(pasted(python, first, home), status=0, printed="")
        expect(pasted(python, second, home), status=0, printed=PRINTED)
    with place(python, folder / f"{framework}-2") as home, ThreadPoolExecutor(1) as terminal:
        # Nothing is there yet: the second waits for the first.
        waiting = terminal.submit(pasted, python, second, home)
        time.sleep(2)
        expect(pasted(python, first, home), status=0, printed="")
        expect(waiting.result(), status=0, printed=PRINTED)
    with place(python, folder / f"{framework}-3") as home:
        expect(said([str(python.with_name("tensorlease")), "doctor"], home), status=0, printed="no problem for host://")


@contextmanager
def place(python: Path, folder: Path) -> Iterator[Path]:
    """A folder for sockets and nothing else of the user's; its daemon is ended."""
    folder.mkdir()
    try:
        yield folder
    finally:
        subprocess.run([str(python), "-c", END_DAEMON], env=clean(folder), timeout=SECONDS, check=False)


def clean(folder: Path) -> dict[str, str]:
    """No variable points to this project, or to the user's daemon."""
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "LD_LIBRARY_PATH") if name in os.environ}
    return {**kept, "HOME": str(folder), "XDG_RUNTIME_DIR": str(folder)}


def pasted(python: Path, code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Into an interpreter of its own."""
    return said([str(python), "-"], folder, code)


def said(command: list[str], folder: Path, typed: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        input=typed,
        env=clean(folder),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )


def expect(done: subprocess.CompletedProcess[str], *, status: int, printed: str) -> None:
    """Fails with all that was printed. torch warns, by itself, where numpy is missing."""
    said = (done.stderr if status else done.stdout).strip()
    print("   ", said.splitlines()[-1] if said else "(nothing)", flush=True)
    wrong = bool(said) if printed == "" else printed not in said
    if done.returncode != status or wrong:
        sys.exit(f"expected status {status} and {printed!r}, got {done.returncode} and:\n{done.stdout}{done.stderr}")


if __name__ == "__main__":
    sys.exit(main())
