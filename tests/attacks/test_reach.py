"""What a submission can reach from its process: nothing that could earn points, and nobody else's work."""

from __future__ import annotations

import os
import platform
import socket
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from autograder.runner.limits import landlock_version
from autograder.runner.system_calls import available

from . import reach
from .conftest import LEVELS, REPOSITORY, Tried, message, need, unprotected

CODE = Path(reach.__file__).read_text(encoding="utf-8")
PACKAGES = sysconfig.get_paths()["purelib"]
linux = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() != "x86_64",
    reason="the attacks name Linux's calls on x86_64",
)


@pytest.fixture
def targets(tmp_path: Path) -> Iterator[dict[str, Any]]:
    """Things worth reaching: a course with its history, a grader, a server."""
    course = tmp_path / "course"
    for folder in (
        "solutions",
        "oracles",
        ".git/hooks",
        ".autograde/assembly",
        "submitted/bob",
        "packages",
        "grader",
    ):
        (course / folder).mkdir(parents=True)
    for name in (
        "solutions/solution.py",
        "course.yaml",
        "oracles/gemm.py",
        "submitted/bob/k.py",
        "grader/code.py",
    ):
        (course / name).write_text("secret\n")
    server, abstract = socket.create_server(("127.0.0.1", 0)), socket.socket(socket.AF_UNIX)
    name = f"autograde-attack-{os.getpid()}"
    abstract.bind("\0" + name)
    abstract.listen()
    victim = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"])
    found = {
        "tmp": f"/tmp/autograde-attack-{os.getpid()}",
        "shm": f"/dev/shm/autograde-attack-{os.getpid()}",
        "shm_key": 0x41470000 + os.getpid() % 65536,
        "grader": os.getpid(),
        "victim": victim.pid,
        "solution": str(course / "solutions" / "solution.py"),
        "course": str(course / "course.yaml"),
        "oracle": str(course / "oracles" / "gemm.py"),
        "git": str(course / ".git"),
        "other": str(course / "submitted" / "bob" / "k.py"),
        "packages": str(course / "packages"),
        "progress": str(course / ".autograde" / "progress.json"),
        "assembly": str(course / ".autograde" / "assembly" / "key.json"),
        "grader_code": str(course / "grader" / "code.py"),
        "port": server.getsockname()[1],
        "abstract": name,
    }
    yield found
    victim.kill()
    victim.wait()
    server.close()
    abstract.close()
    for path in (found["tmp"], found["shm"]):
        Path(path).unlink(missing_ok=True)
    subprocess.run(["ipcrm", "-M", str(found["shm_key"])], capture_output=True, check=False)


def files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@linux
def test_every_attack_works_where_nothing_protects(targets: dict[str, Any], tmp_path: Path) -> None:
    """Else the tests below would prove nothing. The grader hides its own environment, so a process that does not is the target."""
    plant = "import types\nexpected = types.SimpleNamespace()\nclass Reference: pass\nkept = Reference()\n"
    own = tmp_path / "kernel.py"
    own.write_text("x = 1\n")
    unhidden = {**targets, "grader": targets["victim"]}
    code = f"{plant}{CODE}\n__file__ = {str(own)!r}\nprint(*run({unhidden!r}))"
    succeeded = unprotected(code, tmp_path / "work", AUTOGRADE_TEST_SECRET="x").split()
    refused_here = {"ptrace_of_the_grader", "clones_into_a_network_namespace", "makes_a_user_namespace"}
    missing = set(reach.ATTACKS) - set(succeeded)
    # A container may itself refuse these, and io_uring, BPF and keys may be switched off in its kernel.
    optional = refused_here | {
        "opens_sockets_through_io_uring",
        "loads_a_bpf_program",
        "keeps_a_key_in_the_kernel",
        "lets_the_graders_disk_wait",
    }
    optional |= {"process_vm_readv_of_the_grader", "mounts_over_the_course"} if os.geteuid() else set()
    assert missing <= optional, missing


# What a process cannot take away from itself. docs/integrity.md says so.
LEFT_IN_BASIC: set[str] = set()


@linux
@pytest.mark.parametrize("level", LEVELS)
def test_nothing_is_reached(
    tried: Tried, targets: dict[str, Any], level: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need(level)
    if level == "basic" and not (landlock_version() and available()):
        pytest.skip("this kernel has no Landlock, and basic isolation no file confinement")
    monkeypatch.setenv("AUTOGRADE_TEST_SECRET", "x")
    before = files(tmp_path)
    assert f"reached {[]}" == reached(tried, targets, level)
    assert files(tmp_path) == before, "nothing changed"
    assert not Path(targets["tmp"]).exists() and not Path(targets["shm"]).exists()


@linux
@pytest.mark.skipif(not available(), reason="no filter of system calls here")
@pytest.mark.parametrize("level", LEVELS)
def test_the_filter_alone_refuses_what_reaches_others(tried: Tried, level: str) -> None:
    """It needs no namespaces and no Landlock: refused for want of permission, whoever is named; the own limits stay free."""
    need(level)
    code = """
import ctypes, os, resource
libc = ctypes.CDLL(None, use_errno=True)
others = os.getppid() or 1
def refused(*call):
    return libc.syscall(*call) == -1 and ctypes.get_errno() == 1
limit = (ctypes.c_ulong * 2)(1 << 20, 1 << 20)
calls = [(302, others, 1, limit, None), (302, 1, 1, limit, None), (141, 0, others, 5), (141, 2, 0, 5), (203, others, 8, limit),
    (144, others, 5, limit), (142, others, limit), (314, others, limit, 0), (251, 1, others, 3 << 13), (256, others, 0, None, None),
    (279, others, 0, None, None, None, 0)]
reader, writer = os.pipe()
calls += [(72, reader, n, others) for n in (8, 10, 15)] + [(16, reader, n, limit) for n in (0x8901, 0x8902, 0x5410, 0x5412)]
for who in (0, os.getpid()):
    resource.prlimit(who, resource.RLIMIT_NOFILE, resource.prlimit(who, resource.RLIMIT_NOFILE))
    os.sched_setaffinity(who, os.sched_getaffinity(who))
os.set_blocking(reader, False)
raise Exception([call[:3] for call in calls if not refused(*call)])
"""
    assert message(tried(code, level)) == "Exception: []"


@linux
@pytest.mark.parametrize("level", LEVELS)
def test_the_real_targets_are_not_reached_either(
    tried: Tried, targets: dict[str, Any], level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same with this repository's own files, and the library folder of the running Python."""
    need(level)
    if level == "basic" and not (landlock_version() and available()):
        pytest.skip("this kernel has no Landlock, and basic isolation no file confinement")
    real = {
        "solution": REPOSITORY / "solutions" / "exercise_02" / "exercise_02.ipynb",
        "course": REPOSITORY / "course.yaml",
        "oracle": REPOSITORY / "autograder" / "oracles" / "gemm.py",
        "packages": PACKAGES,
        "grader_code": REPOSITORY / "autograder" / "runner" / "frames.py",
    }
    assert all(Path(path).exists() for path in real.values())
    before = {name: os.stat(path).st_mtime_ns for name, path in real.items()}
    assert reached(tried, {**targets, **{n: str(p) for n, p in real.items()}}, level) == "reached []"
    assert {name: os.stat(path).st_mtime_ns for name, path in real.items()} == before


def reached(tried: Tried, targets: dict[str, Any], level: str) -> str:
    """What a submission says to have reached, as the last words of its exception."""
    text = message(tried(f"{CODE}\nraise Exception('reached ' + str(run({targets!r})))\n", level))
    assert text.startswith("Exception: reached "), text
    return text.removeprefix("Exception: ")


def test_nothing_is_left_for_the_next_grade(tried: Tried) -> None:
    """A22: a file in its own folder, its temporary folder or its home is gone when the next submission looks."""
    code = """
import os, tempfile
places = [os.path.join(p, "answer") for p in (os.getcwd(), tempfile.gettempdir(), os.path.expanduser("~"))]
found = [os.path.exists(p) for p in places]
for place in places: open(place, "w").write("answer")
raise Exception(*found, *[os.path.exists(p) for p in places])
"""
    for _ in range(2):
        assert message(tried(code)) == "Exception: (False, False, False, True, True, True)"
