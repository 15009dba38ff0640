"""Attacks that reach out of the submission's process. `run(targets)` returns the names of those that succeed.

This text is a submission's: it runs in the builder's process, and for comparison in a process without protection.
"""

import ctypes
import gc
import os
import socket
import sys

ATTACKS = {}
libc = ctypes.CDLL(None, use_errno=True)


def attack(function):
    ATTACKS[function.__name__] = function
    return function


def reads(path):
    with open(path, "rb") as file:
        return bool(file.read(1))


def called(number, *arguments):
    """Whether a system call is allowed: it may fail for its arguments, but not for want of permission."""
    libc.syscall.restype = ctypes.c_long
    done = libc.syscall(number, *arguments)
    return done >= 0 or ctypes.get_errno() not in (1, 13, 38)


# A1, A2, A28: the answer and its tolerance among Python's objects
@attack
def garbage_collector_walk(targets):
    def is_secret(thing):
        return type(thing).__name__ in ("Reference", "Session", "Outcome", "Comparison") or (
            isinstance(thing, dict) and "accumulate_eps" in thing
        )

    return any(is_secret(thing) for thing in gc.get_objects())


# A3: the answer in the frames of the callers
@attack
def stack_frames(targets):
    frame = sys._getframe()
    while frame is not None:
        names = {*frame.f_locals, *frame.f_globals}
        if names & {"expected", "reference", "tolerance", "seed", "oracle", "secret_seed"}:
            return True
        frame = frame.f_back
    return False


# A22: replay through a file that the next grade finds
@attack
def leaves_a_file_in_tmp(targets):
    with open(targets["tmp"], "w") as file:
        file.write("answer")
    return os.path.exists(targets["tmp"])


@attack
def leaves_a_file_in_shared_memory(targets):
    with open(targets["shm"], "w") as file:
        file.write("answer")
    return True


@attack
def leaves_system_v_shared_memory(targets):
    found = libc.shmget(targets["shm_key"], 4096, 0o1000 | 0o600)
    return found >= 0


# A29, A41: the grader's memory, descriptors and environment
@attack
def reads_the_graders_environment(targets):
    return b"=" in open(f"/proc/{targets['grader']}/environ", "rb").read()


@attack
def opens_the_graders_descriptors(targets):
    return bool(os.listdir(f"/proc/{targets['grader']}/fd"))


@attack
def reads_the_graders_memory(targets):
    return reads(f"/proc/{targets['grader']}/maps")


@attack
def own_environment_holds_secrets(targets):
    return "AUTOGRADE_TEST_SECRET" in os.environ


# A18, A30: other processes
@attack
def ptrace_of_the_grader(targets):
    libc.ptrace.argtypes = [ctypes.c_long] * 4
    if libc.ptrace(16, targets["victim"], 0, 0) != 0:
        return False
    os.waitpid(targets["victim"], 0x40000000)
    libc.ptrace(17, targets["victim"], 0, 0)
    return True


@attack
def process_vm_readv_of_the_grader(targets):
    return called(310, targets["victim"], None, 0, None, 0, 0)


@attack
def signals_the_grader(targets):
    os.kill(targets["victim"], 0)
    return True


@attack
def signals_through_a_pidfd(targets):
    import signal

    signal.pidfd_send_signal(os.pidfd_open(targets["victim"]), 0)
    return True


# Limits, priority and processors of other processes
@attack
def limits_the_graders_files(targets):
    import resource

    resource.prlimit(targets["victim"], resource.RLIMIT_FSIZE, (1 << 40, 1 << 40))
    return True


@attack
def lowers_the_graders_priority(targets):
    os.setpriority(os.PRIO_PROCESS, targets["victim"], 5)
    return True


@attack
def lowers_everybodys_priority(targets):
    return libc.setpriority(2, 0, 5) == 0


@attack
def moves_the_grader_to_one_processor(targets):
    os.sched_setaffinity(targets["victim"], [min(os.sched_getaffinity(0))])
    return True


@attack
def makes_the_grader_run_when_idle(targets):
    os.sched_setscheduler(targets["victim"], os.SCHED_IDLE, os.sched_param(0))
    return True


@attack
def sets_the_graders_scheduling(targets):
    import struct

    wanted = ctypes.create_string_buffer(struct.pack("IIQiIQQQ", 48, 3, 0, 0, 0, 0, 0, 0))
    return libc.syscall(314, targets["victim"], wanted, 0) == 0


@attack
def lets_the_graders_disk_wait(targets):
    return libc.syscall(251, 1, targets["victim"], 3 << 13) == 0


# Signals of files: the kernel sends them to whoever is named as the file's owner
def owned(targets, command, argument):
    import fcntl

    reader, writer = os.pipe()
    try:
        fcntl.fcntl(reader, command, argument)
        return True
    finally:
        os.close(reader)
        os.close(writer)


@attack
def makes_the_grader_the_owner_of_a_pipe(targets):
    return owned(targets, 8, targets["victim"])


@attack
def makes_the_grader_the_owner_by_f_setown_ex(targets):
    import struct

    return owned(targets, 15, struct.pack("ii", 1, targets["victim"]))


@attack
def makes_a_pipe_send_sigkill(targets):
    return owned(targets, 10, 9)


def owned_by_ioctl(targets, request):
    import fcntl
    import struct

    one, other = socket.socketpair()
    with one, other:
        fcntl.ioctl(one, request, struct.pack("i", targets["victim"]))
        return True


@attack
def makes_the_grader_the_owner_by_fiosetown(targets):
    return owned_by_ioctl(targets, 0x8901)


@attack
def makes_the_grader_the_owner_by_siocspgrp(targets):
    return owned_by_ioctl(targets, 0x8902)


# A39, A46: what others wrote
@attack
def reads_a_solution(targets):
    return reads(targets["solution"])


@attack
def reads_the_course(targets):
    return reads(targets["course"])


@attack
def reads_an_oracle(targets):
    return reads(targets["oracle"])


@attack
def reads_the_history(targets):
    return bool(os.listdir(targets["git"]))


@attack
def reads_another_submission(targets):
    return reads(targets["other"])


@attack
def reads_a_solution_through_a_link(targets):
    os.symlink(targets["solution"], "link")
    return reads("link")


@attack
def reads_a_solution_through_a_hard_link(targets):
    os.link(targets["solution"], "hard")
    return reads("hard")


# A42 and our own: code that a later process would run
@attack
def plants_a_pth_file(targets):
    with open(os.path.join(targets["packages"], "autograde_attack.pth"), "w") as file:
        file.write("import os\n")
    return True


@attack
def plants_sitecustomize(targets):
    with open(os.path.join(targets["packages"], "sitecustomize.py"), "x") as file:
        file.write("pass\n")
    return True


@attack
def plants_a_git_hook(targets):
    with open(os.path.join(targets["git"], "hooks", "post-checkout"), "w") as file:
        file.write("#!/bin/sh\n")
    return True


@attack
def plants_a_course_in_the_parent(targets):
    with open(targets["course"], "a") as file:
        file.write("# mine\n")
    return True


@attack
def forges_progress(targets):
    with open(targets["progress"], "w") as file:
        file.write('{"reached": {"exercise_02": {"best": 100}}}')
    return True


@attack
def forges_what_nvcc_said(targets):
    with open(targets["assembly"], "w") as file:
        file.write('{"used": {"registers": 1}}')
    return True


@attack
def changes_the_grader(targets):
    with open(targets["grader_code"], "a") as file:
        file.write("\n")
    return True


@attack
def changes_its_own_snapshot(targets):
    path = globals().get("__file__", "nothing")
    os.chmod(path, 0o600)
    with open(path, "a") as file:
        file.write("\n# after the check\n")
    return True


# The network
@attack
def connects_by_tcp(targets):
    socket.create_connection(("127.0.0.1", targets["port"]), timeout=2).close()
    return True


@attack
def sends_by_udp(targets):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as out:
        return out.sendto(b"answer", ("127.0.0.1", targets["port"])) > 0


@attack
def connects_to_an_abstract_socket(targets):
    with socket.socket(socket.AF_UNIX) as out:
        out.connect("\0" + targets["abstract"])
    return True


@attack
def opens_sockets_through_io_uring(targets):
    return called(425, 1, ctypes.create_string_buffer(200))


# More of the kernel than Python needs
@attack
def makes_a_user_namespace(targets):
    pid = os.fork()
    if pid == 0:
        os._exit(0 if called(272, 0x10000000) else 1)
    return os.waitpid(pid, 0)[1] == 0


@attack
def clones_into_a_network_namespace(targets):
    pid = libc.syscall(56, 0x40000000 | 17, 0, 0, 0, 0)
    if pid == 0:
        os._exit(0)
    if pid > 0:
        os.waitpid(pid, 0)
    return pid > 0


@attack
def mounts_over_the_course(targets):
    return called(165, None, None, None, 0, None)


@attack
def loads_a_bpf_program(targets):
    return called(321, 0, None, 0)


@attack
def keeps_a_key_in_the_kernel(targets):
    return called(250, 0, -1, 0)


def run(targets):
    succeeded = []
    for name, function in ATTACKS.items():
        try:
            if function(targets):
                succeeded.append(name)
        except (OSError, AttributeError, ValueError):
            pass
    return succeeded
