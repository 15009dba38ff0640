"""What a process that runs a submission takes away from itself before the submission starts.

Everything here only narrows the process's own rights, needs no privileges, and is skipped where the system
lacks it. `confinement.confine` applies them in their order and tells which are in force.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import struct
import sys
import time
from collections.abc import Iterable
from pathlib import Path

_PR_SET_PDEATHSIG, _PR_SET_NO_NEW_PRIVS = 1, 38

# Landlock system calls have the same number on every architecture (Linux, include/uapi/asm-generic/unistd.h).
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_GET_VERSION, _RULE_PATH_BENEATH = 1, 1
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR, _TRUNCATE = 1 << 0, 1 << 1, 1 << 2, 1 << 3, 1 << 14
_FILE_ONLY = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | 1 << 15
_READ = _EXECUTE | _READ_FILE | _READ_DIR


def set_resource_limits(memory_mib: int, cpu_seconds: float, file_mib: int = 64) -> None:
    """Bound memory, processor time, file size, open files and processes of this process tree."""
    with contextlib.suppress(ImportError):
        import resource

        wanted = {
            "RLIMIT_AS": memory_mib << 20,
            "RLIMIT_CPU": int(time.process_time() + cpu_seconds) + 5,
            "RLIMIT_FSIZE": file_mib << 20,
            "RLIMIT_NOFILE": 256,
            "RLIMIT_CORE": 0,
        }
        tasks = _tasks_on_this_machine()
        if tasks:
            wanted["RLIMIT_NPROC"] = tasks + 64
        for name, value in wanted.items():
            kind = getattr(resource, name, None)
            if kind is None:
                continue
            hard = resource.getrlimit(kind)[1]
            value = value if hard == resource.RLIM_INFINITY else min(value, hard)
            # The hard limit of processor time comes later: SIGXCPU tells what happened, SIGKILL would not.
            ceiling = value + 10 if name == "RLIMIT_CPU" and hard == resource.RLIM_INFINITY else value
            with contextlib.suppress(OSError, ValueError):
                resource.setrlimit(kind, (value, ceiling))


def die_with_parent() -> None:
    """Linux: be killed when the grader dies, and never gain privileges by running another program."""
    if sys.platform != "linux":
        return
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)


def landlock_version() -> int:
    """Version of the kernel's Landlock, 0 where there is none."""
    if sys.platform != "linux":
        return 0
    version = int(ctypes.CDLL(None, use_errno=True).syscall(_CREATE_RULESET, None, 0, _GET_VERSION))
    return max(0, version)


def confine_files(readable: Iterable[Path], writable: Iterable[Path]) -> bool:
    """Forbid every file access outside of `readable` and `writable`, and TCP where the kernel can (Landlock).

    The solutions, other submissions and the learner's own files become unreachable. Returns whether it is
    active.
    """
    version = landlock_version()
    if version < 1:
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    files = (1 << 13) - 1
    files |= 1 << 13 if version >= 2 else 0
    files |= _TRUNCATE if version >= 3 else 0
    files |= 1 << 15 if version >= 5 else 0
    network = 3 if version >= 4 else 0
    scoped = 3 if version >= 6 else 0  # abstract sockets and signals stay inside
    attributes = struct.pack("<QQQ", files, network, scoped)[
        : 8 if version < 4 else 16 if version < 6 else 24
    ]
    ruleset = int(libc.syscall(_CREATE_RULESET, attributes, len(attributes), 0))
    if ruleset < 0:
        return False
    try:
        for paths, access in ((readable, _READ), (writable, files)):
            for path in paths:
                _allow(libc, ruleset, path, access & files)
        libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        return int(libc.syscall(_RESTRICT_SELF, ruleset, 0)) == 0
    finally:
        os.close(ruleset)


def _allow(libc: ctypes.CDLL, ruleset: int, path: Path, access: int) -> None:
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        allowed = access if path.is_dir() else access & _FILE_ONLY
        rule = struct.pack("<Qi", allowed, descriptor)
        libc.syscall(_ADD_RULE, ruleset, _RULE_PATH_BENEATH, rule, 0)
    finally:
        os.close(descriptor)


def system_folders() -> list[Path]:
    """Where Python and its libraries live, plus the few system files that imports need."""
    places = [
        sys.prefix,
        sys.base_prefix,
        sys.exec_prefix,
        "/usr",
        "/lib",
        "/lib64",
        "/bin",
        "/etc/ld.so.cache",
    ]
    places += ["/etc/localtime", "/dev/urandom", "/proc/cpuinfo", "/proc/meminfo", "/sys/devices/system/cpu"]
    places += [folder for folder in sys.path if folder.endswith("-packages")]
    return [Path(place) for place in dict.fromkeys(places)]


def sees_children() -> bool:
    """Whether /proc tells the children of a process (Linux)."""
    return any(Path("/proc/self/task").glob("*/children"))


def has_resource_limits() -> bool:
    """Whether the system bounds what a process takes."""
    try:
        import resource
    except ImportError:
        return False
    return hasattr(resource, "RLIMIT_AS")


def _tasks_on_this_machine() -> int:
    """Threads on this machine, from /proc/loadavg; 0 where unknown."""
    try:
        return int(Path("/proc/loadavg").read_text().split()[3].split("/")[1])
    except (OSError, ValueError, IndexError):
        return 0
