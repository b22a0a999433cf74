#!/usr/bin/env python3
"""Checks a wheel: the platform tag that auditwheel finds, one abi3 module, stripped, metadata, and nothing that only
tests or the repository's own `bench` need.

Usage: scripts/wheel_check.py FILE
"""

from __future__ import annotations

import email
import re
import subprocess
import sys
import zipfile
from io import BytesIO
from pathlib import Path

from elftools.elf.elffile import ELFFile

ROOT = Path(__file__).resolve().parent.parent
NEEDED = ("tensorlease/py.typed", "tensorlease/_core.pyi")
#: What is of the repository alone: modules by name, and the data.
NOT_IN_IT = ("demo", "cluster", "data", "conformance", ".csv")
#: What the feature `test-hooks` adds to the module.
HOOKS = (b"run_conformance_check", b"import_as_capsules", b"tensorlease._core._tests")


def main(arguments: list[str]) -> int:
    (wheel,) = map(Path, arguments)
    problems = [*tag_problems(wheel), *content_problems(wheel), *metadata_problems(wheel)]
    for problem in problems:
        print(f"{wheel.name}: {problem}")
    if not problems:
        print(f"{wheel.name}: {wheel.stat().st_size:,} bytes, checked")
    return 1 if problems else 0


def tag_problems(wheel: Path) -> list[str]:
    """The name must promise exactly what auditwheel finds in the module's symbols."""
    tags = wheel.stem.split("-")[2:]
    problems = [] if tags[:2] == ["cp311", "abi3"] else [f"its tags are {tags}, not cp311-abi3"]
    command = [sys.executable, "-m", "auditwheel", "show", str(wheel)]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.search(r'tag:\s+"(manylinux_[^"]+)"', shown)
    if found is None or found[1] != tags[2]:
        problems.append(f"its platform tag is {tags[2]}, and auditwheel says: {shown}")
    return problems


def content_problems(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        modules = [name for name in names if ".so" in name]
        problems = [f"{name} is missing" for name in NEEDED if name not in names]
        problems += [f"{name} is for tests" for name in names if "test" in name.lower()]
        inside = [name for name in names if name.startswith("tensorlease/")]
        problems += [f"{name} is of the repository alone" for name in inside if any(part in name for part in NOT_IN_IT)]
        if modules != ["tensorlease/_core.abi3.so"]:
            return [*problems, f"its native modules are {modules}"]
        module = archive.read(modules[0])
    problems += [f"the module has {hook.decode()}, which is for tests" for hook in HOOKS if hook in module]
    sections = [section.name for section in ELFFile(BytesIO(module)).iter_sections()]
    unstripped = [name for name in sections if name == ".symtab" or name.startswith(".debug")]
    return problems + ([f"the module is not stripped: {unstripped}"] if unstripped else [])


def metadata_problems(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = email.message_from_bytes(archive.read(name))
        licenses = [member for member in archive.namelist() if member.endswith("/licenses/LICENSE")]
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    body = metadata.get_payload(decode=True)
    problems = [] if licenses else ["the license is missing"]
    if not isinstance(body, bytes) or body.decode("utf-8").strip() != readme.strip():
        problems.append("its description is not README.md")
    if not metadata.get_all("Project-URL"):
        problems.append("it has no project URL")
    return problems


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
