"""How large a process tree is (Linux, from /proc; elsewhere nothing is known of it)."""

from __future__ import annotations

import contextlib
from pathlib import Path

MAX_PROCESSES = 64


def over_limits(roots: set[int], memory_mib: int) -> str:
    """`processes` or `memory` where the trees under `roots` exceed a bound together, else empty."""
    seen: set[int] = set()
    waiting, total = list(roots), 0
    while waiting:
        pid = waiting.pop()
        if pid in seen:
            continue
        seen.add(pid)
        if len(seen) > MAX_PROCESSES + len(roots):
            return "processes"
        total += _own_kib(pid)
        waiting += children(pid)
    return "memory" if total > memory_mib << 10 else ""


def children(pid: int) -> list[int]:
    """Process ids of the children of a process, those of all its threads."""
    found: list[int] = []
    with contextlib.suppress(OSError, ValueError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            found += [int(child) for child in (task / "children").read_text().split()]
    return found


def _own_kib(pid: int) -> int:
    """Memory that a process does not share with files: anonymous pages and shared memory, in KiB."""
    total = 0
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith(("RssAnon:", "RssShmem:")):
                total += int(line.split()[1])
    return total


def out_of_memory_kills() -> int | None:
    """How many processes this machine has killed for want of memory since it started; None where that is unknown."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/vmstat").read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return None
