"""What a process takes away from itself before it touches a submission, and what is in force then, looked at from inside."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from autograder.runner import limits
from autograder.runner.sandbox import NAMESPACES, namespaces
from autograder.runner.system_calls import confine_system_calls

# Every protection that a report names, in its words.
PROTECTIONS = {
    "namespaces": "own user, mount, process, network and IPC namespaces (bubblewrap)",
    "files": "a read-only view without solutions, oracles and your files",
    "private folder": "one empty folder of its own, removed afterwards",
    "no network": "no connection can be opened",
    "system calls": "new processes, and calls that reach others or parts of the kernel, are refused (seccomp)",
    "signals": "signals reach only the submission itself",
    "resource limits": "bounded memory, processor time, size of files, open files",
    "tree limits": "bounded memory and number of processes of the whole process tree",
    "process tree": "the process tree dies whole",
    "dies with the grader": "nothing outlives an interrupted grade",
}


def confine(own: Iterable[Path], work: Path, outside: dict[str, str]) -> dict[str, bool]:
    """Confine this process for good, before it imports what may start threads; which protections are in force.

    own: files and folders that it still reads. work: its one writable folder. outside: namespaces of the grader.
    """
    limits.die_with_parent()
    inside, counted = namespaces(), limits.sees_children()  # asked while /proc can be read
    apart = {name for name in NAMESPACES if inside.get(name, "") != outside.get(name, "") and outside}
    landlock = limits.confine_files([*limits.system_folders(), *own], [work, Path("/dev/null")])
    filtered = confine_system_calls()
    return {
        "namespaces": apart == set(NAMESPACES),
        "files": landlock or "mnt" in apart,
        "private folder": True,
        "no network": "net" in apart or filtered,
        "system calls": filtered,
        "signals": "pid" in apart or filtered or limits.landlock_version() >= 6,
        "resource limits": limits.has_resource_limits(),
        "tree limits": counted,
        "process tree": "pid" in apart or counted,
        "dies with the grader": sys.platform == "linux",
    }


def level(active: dict[str, bool]) -> Literal["full", "basic", "none"]:
    """`full` with namespaces, `basic` with less, `none` where not even resources are bounded."""
    if active.get("namespaces") and active.get("resource limits"):
        return "full"
    return "basic" if active.get("resource limits") else "none"
