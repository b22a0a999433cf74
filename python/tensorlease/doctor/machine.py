"""What /proc and /sys say about this machine and this process. Nothing here can hang or change anything."""

import os
import platform
import re
import resource
from dataclasses import dataclass
from pathlib import Path

_CAP_IPC_LOCK = 14
_CAP_SYS_RESOURCE = 24
#: The user namespace that the kernel's own checks mean maps every identifier to itself.
_FIRST_NAMESPACE = ["0", "0", "4294967295"]
#: Control groups of version 1 say a number near 2^63 for "no limit".
_NO_LIMIT = 1 << 62


@dataclass(frozen=True)
class Port:
    """One port of an RDMA device."""

    device: str
    number: int
    #: "ACTIVE", "DOWN", ...
    state: str
    rate: str
    link_layer: str


@dataclass(frozen=True)
class Machine:
    """Answers from the files under a root, which a test may make itself."""

    root: Path = Path("/")

    @property
    def kernel(self) -> tuple[int, int]:
        match = re.match(r"(\d+)\.(\d+)", platform.release())
        return (int(match[1]), int(match[2])) if match else (0, 0)

    def memory_bytes(self) -> int:
        return self._meminfo_bytes("MemTotal") or 0

    def available_bytes(self) -> int | None:
        """What this process may still take: the least of the kernel's estimate and of what each of its control groups has left."""
        available = self._meminfo_bytes("MemAvailable")
        left = [group for group in map(self._left_bytes, self._memory_groups()) if group is not None]
        return min([*left, *([] if available is None else [available])], default=None)

    def cgroup_limit_bytes(self) -> int | None:
        """The least limit of its control groups; None where there is none."""
        limits = [self._limit_bytes(group) for group in self._memory_groups()]
        return min((limit for limit in limits if limit is not None), default=None)

    def huge_pages(self) -> tuple[int, int]:
        """How many are free, and the bytes of one."""
        free = re.search(r"^HugePages_Free:\s+(\d+)", self._read("proc/meminfo") or "", re.MULTILINE)
        return int(free[1]) if free else 0, self._meminfo_bytes("Hugepagesize") or 0

    def _memory_groups(self) -> list[Path]:
        """The directory of its memory group and of all parents, of either version, as far as they are mounted here."""
        groups = []
        for line in (self._read("proc/self/cgroup") or "").splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers and "memory" not in controllers.split(","):
                continue
            top = Path("sys/fs/cgroup") / controllers
            # A path that leads out of the mounted tree means its root.
            inside = Path(os.path.normpath(path).lstrip("/"))
            groups += [top / part for part in (inside, *inside.parents)]
        return groups

    def _limit_bytes(self, group: Path) -> int | None:
        limits = (self._number(group / name) for name in ("memory.max", "memory.limit_in_bytes"))
        return next((limit for limit in limits if limit is not None and limit < _NO_LIMIT), None)

    def _left_bytes(self, group: Path) -> int | None:
        limit = self._limit_bytes(group)
        if limit is None:
            return None
        used = self._number(group / "memory.current") or self._number(group / "memory.usage_in_bytes") or 0
        # File pages that the kernel drops first are no use. Version 1 has the sum over its children beside its own.
        stat = dict(line.split(" ", 1) for line in (self._read(group / "memory.stat") or "").splitlines())
        dropped = int(stat.get("total_inactive_file", stat.get("inactive_file", "0")))
        return max(limit - max(used - dropped, 0), 0)

    def memlock_bytes(self) -> int | None:
        """How much it may pin; None: any amount. A capability of a user namespace of its own does not count for the kernel."""
        if self.has_ipc_lock():
            return None
        limit, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
        return None if limit == resource.RLIM_INFINITY else limit

    def may_raise_memlock_to(self, size: int) -> bool:
        _, most = resource.getrlimit(resource.RLIMIT_MEMLOCK)
        return most == resource.RLIM_INFINITY or size <= most or self._has_capability(_CAP_SYS_RESOURCE)

    def has_ipc_lock(self) -> bool:
        return self._has_capability(_CAP_IPC_LOCK)

    def io_uring_disabled(self) -> int | None:
        """kernel.io_uring_disabled; None where this kernel has no such setting."""
        return self._number("proc/sys/kernel/io_uring_disabled")

    def is_filtered(self) -> bool:
        """Does a seccomp filter look at its system calls?"""
        return self._status("Seccomp") == "2"

    def _has_capability(self, bit: int) -> bool:
        held = int(self._status("CapEff") or "0", 16) >> bit & 1 == 1
        return held and (self._read("proc/self/uid_map") or "").split() in ([], _FIRST_NAMESPACE)

    def _status(self, name: str) -> str | None:
        match = re.search(rf"^{name}:\s*(\S+)", self._read("proc/self/status") or "", re.MULTILINE)
        return match[1] if match else None

    def rdma_ports(self) -> list[Port]:
        """Every port of every device that the kernel has."""
        found = []
        for folder in sorted((self.root / "sys/class/infiniband").glob("*/ports/*")):
            said = [self._read(folder / name) or "" for name in ("state", "rate", "link_layer")]
            # The state is told as "4: ACTIVE".
            state, rate, layer = (text.strip() for text in said)
            device = folder.parent.parent.name
            found.append(Port(device, int(folder.name), state.rpartition(" ")[2] or "unknown", rate, layer))
        return found

    def closed_verbs_files(self) -> list[str]:
        """Device files of verbs that this process may not use."""
        files = sorted((self.root / "dev/infiniband").glob("uverbs*"))
        return [f"/{file.relative_to(self.root)}" for file in files if not os.access(file, os.R_OK | os.W_OK)]

    def netdev_of(self, device: str) -> str:
        """The network interface under a RoCE device."""
        names = (self._read(f"sys/class/infiniband/{device}/ports/1/gid_attrs/ndevs/0") or "").split()
        return names[0] if names else "eth0"

    def _read(self, path: str | Path) -> str | None:
        try:
            return (self.root / path).read_text(encoding="ascii", errors="replace")
        except OSError:
            return None

    def _number(self, path: str | Path) -> int | None:
        text = (self._read(path) or "").strip()
        return int(text) if text.isdigit() else None

    def _meminfo_bytes(self, name: str) -> int | None:
        match = re.search(rf"^{name}:\s+(\d+) kB", self._read("proc/meminfo") or "", re.MULTILINE)
        return int(match[1]) * 1024 if match else None
