"""A filter of system calls (seccomp), which a process puts on itself and all its threads and children for good.

Refused are new processes (threads are allowed), and calls that reach other processes, the network, or parts of the kernel that
no kernel builder needs. Everything else is allowed, so that Python, TVM and PyTorch work as usual. It needs no privileges.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import signal
import struct
import sys

# name: (number on x86_64, number on aarch64); None where the architecture has no such call.
# Linux, arch/x86/entry/syscalls/syscall_64.tbl and include/uapi/asm-generic/unistd.h.
REFUSED: dict[str, tuple[int | None, int | None]] = {
    # other programs
    "execve": (59, 221),
    "execveat": (322, 281),
    # more processes; `clone` is allowed for threads, see below
    "fork": (57, None),
    "vfork": (58, None),
    # other processes
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "kcmp": (312, 272),
    "pidfd_getfd": (438, 438),
    "pidfd_send_signal": (424, 424),
    "tkill": (200, 130),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "setpriority": (141, 140),
    "ioprio_set": (251, 30),
    "sched_setparam": (142, 118),
    "sched_setscheduler": (144, 119),
    "sched_setattr": (314, 274),
    "migrate_pages": (256, 238),
    "move_pages": (279, 239),
    "process_mrelease": (448, 448),
    # what outlives the process, where the next one finds it
    "shmget": (29, 194),
    "semget": (64, 190),
    "msgget": (68, 186),
    "mq_open": (240, 180),
    # the network; io_uring opens sockets without socket()
    "socket": (41, 198),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    # namespaces and mounts
    "unshare": (272, 97),
    "setns": (308, 268),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "open_by_handle_at": (304, 265),
    # parts of the kernel
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "fanotify_init": (300, 262),
    "kexec_load": (246, 104),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "acct": (163, 89),
    "quotactl": (179, 60),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "adjtimex": (159, 171),
    "clock_adjtime": (305, 266),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "syslog": (103, 116),
    "vhangup": (153, 58),
    "iopl": (172, None),
    "ioperm": (173, None),
}
# Allowed for the process itself only: argument 0 is 0 or its own number. glibc's setrlimit is prlimit64.
_OWN_ONLY: dict[str, tuple[int, int]] = {"prlimit64": (302, 261), "sched_setaffinity": (203, 122)}
# call: (its numbers, the values of argument 1 that are refused). An owner of a file gets its signals, SIGKILL where it is
# told so. linux/fcntl.h and asm-generic/ioctls.h, the same on both architectures.
_REFUSED_COMMANDS: dict[str, tuple[tuple[int, int], dict[str, int]]] = {
    "fcntl": ((72, 25), {"F_SETOWN": 8, "F_SETSIG": 10, "F_SETOWN_EX": 15}),
    "ioctl": (
        (16, 29),
        {
            "FIOSETOWN": 0x8901,
            "SIOCSPGRP": 0x8902,
            "TIOCSPGRP": 0x5410,
            "TIOCSTI": 0x5412,
            "TIOCLINUX": 0x541C,
        },
    ),
}
_ARCHITECTURES = {
    "x86_64": (0, 0xC000003E, 317),
    "aarch64": (1, 0xC00000B7, 277),
}  # column, AUDIT_ARCH, seccomp
_KILL, _TGKILL, _CLONE, _CLONE3 = (62, 129), (234, 131), (56, 220), (435, 435)
_THREAD = 0x00010000
_NEW_NAMESPACE = 0x7E020000  # CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06  # classic BPF
_ALLOW, _ERRNO, _KILL_PROCESS = 0x7FFF0000, 0x00050000, 0x80000000
_NUMBER, _ARCHITECTURE, _ARGUMENT_0, _ARGUMENT_1, _ARGUMENT_2 = (
    0,
    4,
    16,
    24,
    32,
)  # offsets in struct seccomp_data
_X32 = 0x40000000
_SET_FILTER, _ALL_THREADS = 1, 1
_PR_SET_NO_NEW_PRIVS = 38


def available() -> bool:
    """Whether the filter is written for this machine, and its kernel takes filters."""
    return (
        sys.platform == "linux"
        and platform.machine() in _ARCHITECTURES
        and os.path.exists("/proc/sys/kernel/seccomp")
    )


def confine_system_calls() -> bool:
    """Put the filter on this process, all its threads and what they will start. Returns whether it is active."""
    if not available():
        return False
    column, architecture, call = _ARCHITECTURES[platform.machine()]
    code = _program(column, architecture, os.getpid())
    instructions = ctypes.create_string_buffer(code, len(code))
    program = struct.pack("HxxxxxxP", len(code) // 8, ctypes.addressof(instructions))
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    return int(libc.syscall(call, _SET_FILTER, _ALL_THREADS, program)) == 0


def _program(column: int, architecture: int, own: int) -> bytes:
    """The filter. Signals and limits are for the process itself only, and SIGKILL for nobody: it tells that
    the machine ran out of memory. New namespaces and the x32 calls are missing."""
    refuse = _ERRNO | errno.EPERM
    missing = _ERRNO | errno.ENOSYS  # libc then uses clone, whose flags can be looked at
    lines = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUAL, 1, 0, architecture),
        (_RETURN, 0, 0, _KILL_PROCESS),
        (_LOAD, 0, 0, _NUMBER),
        (_AT_LEAST, 0, 1, _X32),
        (_RETURN, 0, 0, missing),
        (_EQUAL, 0, 1, _CLONE3[column]),
        (_RETURN, 0, 0, missing),
        (_EQUAL, 0, 4, _CLONE[column]),
        (_LOAD, 0, 0, _ARGUMENT_0),
        (_ANY_BIT, 0, 1, _THREAD),
        (_ANY_BIT, 0, 1, _NEW_NAMESPACE),
        (_RETURN, 0, 0, refuse),
    ]
    # After `clone` with ordinary flags the accumulator holds these: load the number again.
    lines += [(_LOAD, 0, 0, _NUMBER)]
    for numbers, signal_argument in ((_KILL, _ARGUMENT_1), (_TGKILL, _ARGUMENT_2)):
        lines += [
            (_EQUAL, 0, 6, numbers[column]),
            (_LOAD, 0, 0, _ARGUMENT_0),
            (_EQUAL, 0, 2, own),
            (_LOAD, 0, 0, signal_argument),
            (_EQUAL, 0, 1, int(signal.SIGKILL)),
            (_RETURN, 0, 0, refuse),
            (_RETURN, 0, 0, _ALLOW),
        ]
    for numbers in _OWN_ONLY.values():
        lines += [
            (_EQUAL, 0, 5, numbers[column]),
            (_LOAD, 0, 0, _ARGUMENT_0),
            (_EQUAL, 1, 0, 0),
            (_EQUAL, 0, 1, own),
            (_RETURN, 0, 0, _ALLOW),
            (_RETURN, 0, 0, refuse),
        ]
    for numbers, commands in _REFUSED_COMMANDS.values():
        tests = [
            line for value in commands.values() for line in ((_EQUAL, 0, 1, value), (_RETURN, 0, 0, refuse))
        ]
        lines += [
            (_EQUAL, 0, len(tests) + 2, numbers[column]),
            (_LOAD, 0, 0, _ARGUMENT_1),
            *tests,
            (_RETURN, 0, 0, _ALLOW),
        ]
    for number in (numbers[column] for numbers in REFUSED.values()):
        if number is not None:
            lines += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, refuse)]
    lines += [(_RETURN, 0, 0, _ALLOW)]
    return b"".join(struct.pack("HBBI", *line) for line in lines)
