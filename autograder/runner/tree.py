"""How large a process tree is (Linux, from /proc; elsewhere nothing is known of it)."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

MAX_PROCESSES = 64 + (os.cpu_count() or 1)  # threads count as well, and libraries start some per core


def over_limits(roots: set[int], memory_mib: int) -> str:
    """`processes` or `memory` where the trees under `roots` exceed a bound together, else empty."""
    seen: set[int] = set()
    waiting, total, tasks = list(roots), 0, 0
    while waiting:
        pid = waiting.pop()
        if pid in seen:
            continue
        seen.add(pid)
        tasks += _threads(pid)
        if tasks > MAX_PROCESSES + 2 * len(roots):  # bubblewrap's own
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


def _threads(pid: int) -> int:
    """How many threads a process has; one where that cannot be read."""
    with contextlib.suppress(OSError, ValueError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("Threads:"):
                return int(line.split()[1])
    return 1


def _own_kib(pid: int) -> int:
    """Memory of a process that is no file's, in KiB: pages that several processes share count in part, unless it hides how many."""
    for name, fields in (
        ("smaps_rollup", ("Pss_Anon:", "Pss_Shmem:")),
        ("status", ("RssAnon:", "RssShmem:")),
    ):
        with contextlib.suppress(OSError, ValueError, IndexError):
            lines = Path(f"/proc/{pid}/{name}").read_text().splitlines()
            found = [int(line.split()[1]) for line in lines if line.startswith(fields)]
            if found:
                return sum(found)
    return 0


def out_of_memory_kills() -> int | None:
    """How many processes this machine has killed for want of memory since it started; None where that is unknown."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/vmstat").read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return None
