"""The sandbox around a process that runs a submission or its kernel: namespaces of its own, through bubblewrap.

Two levels. `full`: the process tree has its own user, mount, process, network and IPC namespaces; it sees a read-only view of
Python, its libraries and the few files of the grader that it needs, and one private empty folder in memory. `basic`: no
namespaces; limits.py takes away what a process can take away from itself (Landlock, a filter of system calls, resource limits).
The first holds also against a submission that finds a hole in the second.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from autograder.errors import MachineError

NAMESPACES = ("user", "mnt", "pid", "net", "ipc")
PACKAGE_ROOT = Path(__file__).resolve().parents[2]
# Of this repository, what the processes of a submission need: neither oracles nor checks nor course.yaml.
OWN_FILES = ("autograder/__init__.py", "autograder/errors.py", "autograder/runner", "emulator")
# What of a course folder is never shown, even if the folder itself has to be.
SECRETS = (
    "solutions",
    "exercises",
    "submitted",
    "autograded",
    "feedback",
    "results",
    "tests",
    ".git",
    ".autograde",
)
FOLDER_MIB = 256
_DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")
_SYSTEM = ("/usr", "/lib", "/lib64", "/lib32", "/bin", "/nix/store", "/etc/ld.so.cache", "/etc/localtime")
_SYSTEM_FILES = ("/sys/devices/system/cpu",)


@dataclass(frozen=True)
class Sandbox:
    """How to wrap the processes of one grade. `program`: bubblewrap, None for none. `hidden`: folders that they may not see."""

    program: str | None = None
    hidden: tuple[Path, ...] = ()

    def wrap(self, command: list[str], work: Path, readable: tuple[Path, ...] = ()) -> list[str]:
        """The command inside the sandbox, with `work` as its one writable folder, which is empty and in memory."""
        if self.program is None:
            return command
        mounts: dict[Path, list[str]] = {}
        for folder in self.hidden:
            mounts[folder] = ["--tmpfs", str(folder)]
        mounts[PACKAGE_ROOT / "autograder"] = ["--tmpfs", str(PACKAGE_ROOT / "autograder")]
        for path in (*interpreter_folders(), *(PACKAGE_ROOT / name for name in OWN_FILES), *readable):
            mounts[path] = ["--ro-bind", str(path), str(path)]
        for folder in self.hidden:  # also where the course's own folder is the virtual environment
            inside = [folder / name for name in SECRETS if mounts[folder][0] == "--ro-bind"]
            mounts |= {path: ["--tmpfs", str(path)] for path in inside if path.is_dir()}
        mounts[work] = ["--size", str(FOLDER_MIB << 20), "--tmpfs", str(work)]
        # Parents before what lies in them, so that a hidden folder may hold a visible one and the other way round.
        in_order = sorted(mounts, key=lambda path: len(path.parts))
        return [
            self.program,
            *(f"--unshare-{name}" for name in ("user", "ipc", "pid", "net", "uts", "cgroup-try")),
            *("--die-with-parent", "--cap-drop", "ALL", "--proc", "/proc"),
            *(part for device in _DEVICES for part in ("--dev-bind", device, device)),
            *(part for path in in_order for part in mounts[path]),
            *("--remount-ro", "/", "--chdir", str(work), "--"),
            *command,
        ]


@cache
def interpreter_folders() -> tuple[Path, ...]:
    """Python, its libraries and what the dynamic linker needs: the folders that exist, also under their real names."""
    own = Path(sys.executable)
    found = [sys.prefix, sys.base_prefix, sys.exec_prefix, *(p for p in sys.path if p.endswith("-packages"))]
    found += [str(own.parent), str(own.resolve().parent), *_SYSTEM, *_SYSTEM_FILES]
    found += [f for f in os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep) if os.path.isabs(f)]
    places = dict.fromkeys(
        p for name in found for p in (Path(name), Path(name).resolve()) if os.path.exists(p)
    )
    return tuple(place for place in places if place != Path("/"))


@cache
def bubblewrap() -> tuple[str | None, str]:
    """(bubblewrap's program, empty), or (None, why there is none that works), found out by starting Python in it."""
    if sys.platform != "linux":
        return None, f"{sys.platform} has no namespaces"
    program = shutil.which("bwrap")
    if program is None:
        return None, "there is no bubblewrap (bwrap) on this machine"
    command = Sandbox(program).wrap([sys.executable, "-I", "-S", "-c", ""], Path("/tmp/work"))
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=20)
    except (OSError, subprocess.TimeoutExpired) as error:
        return None, f"bubblewrap does not start ({type(error).__name__})"
    if done.returncode == 0:
        return program, ""
    last = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
    return None, f"bubblewrap cannot isolate here ({last.removeprefix('bwrap: ')[:200]})"


def choose(wanted: str, hidden: tuple[Path, ...] = ()) -> Sandbox:
    """The sandbox for `auto` (the best of this machine), `basic` or `full`.

    Raises:
        MachineError: full isolation was demanded, and this machine does not offer it.
    """
    if wanted == "basic":
        return Sandbox()
    program, problem = bubblewrap()
    if wanted == "full" and program is None:
        raise MachineError(
            f"--isolation full: {problem}; `autograde doctor` lists what is active, --isolation auto takes the best there is"
        )
    return Sandbox(program, tuple(path.resolve() for path in hidden if path.is_dir()))


def namespaces() -> dict[str, str]:
    """The names of this process's namespaces; empty where the system has none."""
    found = {}
    for name in NAMESPACES:
        try:
            found[name] = os.readlink(f"/proc/self/ns/{name}")
        except OSError:
            return {}
    return found
