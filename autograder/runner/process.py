"""Child processes under watch: bounded output, deadlines, and a kill that reaches every descendant.

One thread drives all children. Each child leads its own session, has an empty private folder as working
directory, an
environment of a few chosen variables, and three pipes: standard output, standard error, and a channel for
    frames.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import Any

from autograder.errors import MachineError
from autograder.runner.frames import Decoder, Frame, FrameError, encode
from autograder.runner.sandbox import PACKAGE_ROOT, Sandbox
from autograder.runner.tree import out_of_memory_kills, over_limits

_KEEP_VARIABLES = ("PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "SYSTEMROOT")
_KEEP_FOR_GPU = ("CUDA_HOME", "CUDA_PATH", "TVM_CUDA_COMPILE_MODE")
_KEPT_OUTPUT = 16 << 10
_CHUNK = 1 << 18
_PR_SET_DUMPABLE, _PR_SET_CHILD_SUBREAPER = 4, 36
_WATCH_SECONDS = 0.1
# The packages of the grader come from their own folder, whatever lies beside it or on the import path.
_BOOTSTRAP = """
import sys
from importlib.machinery import PathFinder

class Own:
    @staticmethod
    def find_spec(name, path=None, target=None):
        return PathFinder.find_spec(name, {search!r}) if name in ("autograder", "emulator") else None

sys.meta_path.insert(0, Own)
sys.path[:0] = {roots!r}
from autograder.runner.{module} import main
main({channel})
"""


class End(StrEnum):
    """Why a child is over before it said what was asked."""

    EXITED = "exited"
    TIMEOUT = "timeout"
    OUTPUT = "output"
    MEMORY = "memory"
    PROCESSES = "processes"
    GARBAGE = "garbage"


class ChildEnded(Exception):
    """A child ended without the awaited frame.

    status: exit status, or minus a signal number. out_of_memory: whether the machine may have killed it for want of memory.
    """

    def __init__(self, end: End, status: int | None, detail: str = "", out_of_memory: bool = True) -> None:
        super().__init__(f"{end} {status} {detail}")
        self.end, self.status, self.detail, self.out_of_memory = end, status, detail, out_of_memory


@dataclass
class Child:
    """One process. `printed` is the tail of its standard output and error together."""

    name: str
    process: subprocess.Popen[bytes]
    channel: int
    decoder: Decoder
    max_output: int
    sandboxed: bool = False
    kills_before: int | None = None  # how often this machine had run out of memory when the child started
    max_tree_mib: int | None = None
    isolation: dict[str, bool] = field(
        default_factory=dict
    )  # what it said to be in force before a submission ran
    frames: deque[Frame] = field(default_factory=deque)
    printed: bytearray = field(default_factory=bytearray)
    printed_bytes: int = 0
    open_pipes: set[int] = field(default_factory=set)
    outbox: bytearray = field(default_factory=bytearray)
    end: End | None = None
    detail: str = ""

    def killed_from_outside(self, kills: int | None) -> bool:
        """Whether SIGKILL may have come from the machine: the submission cannot send it, or memory ran out since the start."""
        return self.isolation.get("system calls", False) or kills is None or kills != self.kills_before

    @property
    def status(self) -> int | None:
        """Exit status, or minus the number of the signal that ended it; bubblewrap reports that as 128 plus the number."""
        status = self.process.returncode
        return 128 - status if self.sandboxed and status is not None and status > 128 else status

    @property
    def tail(self) -> str:
        """The last part of what the child printed, as text."""
        return bytes(self.printed).decode("utf-8", "replace")


_STARTED: set[int] = set()  # process ids of the children of every pump here: none of them is another's orphan


class Pump:
    """Starts children and moves their bytes. Use as a context manager: leaving it kills what still runs.

    heartbeat: called at least twice a second while a child is awaited; what it raises ends the wait.
    """

    def __init__(self, sandbox: Sandbox | None = None) -> None:
        self.sandbox = sandbox or Sandbox()
        self._selector = selectors.DefaultSelector()
        self._children: list[Child] = []
        self.heartbeat: Callable[[], None] | None = None
        self._spares: dict[str, Child] = {}
        self._strangers = _children_of_this_process()
        self._folder = tempfile.TemporaryDirectory(prefix="autograde-", ignore_cleanup_errors=True)
        self._watched = 0.0
        _prepare_this_process()

    def __enter__(self) -> Pump:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for child in self._children:
            self.kill(child)
        self._selector.close()
        self._folder.cleanup()

    def private_folder(self, name: str) -> Path:
        """A new empty folder that is removed with the pump."""
        folder = Path(self._folder.name) / name
        folder.mkdir(exist_ok=True)
        return folder

    def start(
        self,
        name: str,
        module: str,
        folder: Path,
        *,
        roots: tuple[Path, ...] = (),
        confined: bool = False,
        readable: tuple[Path, ...] = (),
        max_tree_mib: int | None = None,
        max_json: int = 16 << 20,
        max_raw: int = 1 << 30,
        max_output: int = 1 << 20,
        gpu: str | None = None,
    ) -> Child:
        """Start `autograder.runner.<module>.main(channel)` in a fresh isolated interpreter.

        roots: folders that come first on its import path.
        confined: start it in the pump's sandbox; `readable`: what it sees there beyond Python and its own files.
        max_tree_mib: memory of its process tree, which then is also bounded in number.
        max_output: bytes that it may print before it is killed.
        gpu: CUDA_VISIBLE_DEVICES of a trusted child that uses a GPU; all others see none.

        Raises:
            MachineError: the process cannot be started.
        """
        receive, send = os.pipe()
        sandboxed = confined and self.sandbox.program is not None
        try:
            process = self._spawn(module, send, folder, roots, readable if sandboxed else None, gpu)
        except OSError as error:
            os.close(receive)
            raise MachineError(f"cannot start a process ({error.strerror or error})") from None
        finally:
            os.close(send)
        _STARTED.add(process.pid)
        child = Child(name, process, receive, Decoder(max_json, max_raw), max_output)
        child.sandboxed, child.max_tree_mib = sandboxed, max_tree_mib
        child.kills_before = out_of_memory_kills()
        assert process.stdin and process.stdout and process.stderr
        os.set_blocking(process.stdin.fileno(), False)
        for pipe in (receive, process.stdout.fileno(), process.stderr.fileno()):
            os.set_blocking(pipe, False)
            child.open_pipes.add(pipe)
            self._selector.register(pipe, selectors.EVENT_READ, child)
        self._children.append(child)
        return child

    def keep_as_spare(self, child: Child, **ahead: Any) -> None:
        """Let a child import what it will need; the grade that asks for a child of this name by `spare` gets it.

        ahead: what it has to know of its place before that.
        """
        self.send(child, {"stage": "warm", **ahead})
        self._spares[child.name] = child

    def spare(self, name: str) -> Child | None:
        """The child of this name that was started ahead, once; None where there is none or it has ended."""
        child = self._spares.pop(name, None)
        return child if child is not None and child.end is None and not _is_over(child.process) else None

    def _spawn(
        self,
        module: str,
        channel: int,
        folder: Path,
        roots: tuple[Path, ...],
        readable: tuple[Path, ...] | None,
        gpu: str | None,
    ) -> subprocess.Popen[bytes]:
        """The process itself, in the sandbox unless `readable` is None, with its three pipes and the end of the channel."""
        own, paths = [*map(str, roots), str(PACKAGE_ROOT)], [str(root) for root in roots]
        code = _BOOTSTRAP.format(search=own, roots=paths, module=module, channel=channel)
        command = [sys.executable, "-I", "-B", "-u", "-X", "utf8", "-c", code]
        if readable is not None:
            command = self.sandbox.wrap(command, folder, (*roots, *readable))
        return subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=(channel,),
            cwd=folder,
            env=_environment(folder, gpu),
            start_new_session=True,
        )

    def send(self, child: Child, header: dict[str, Any], raw: bytes = b"") -> None:
        """Queue a frame for a child's standard input; it leaves while the pump runs."""
        child.outbox += encode(header, raw)
        self._flush(child)

    def receive(self, child: Child, seconds: float) -> Frame:
        """The child's next frame.

        Raises:
            ChildEnded: the child exited, exceeded a bound, or `seconds` passed. It and its descendants are
                dead then.
        """
        deadline = time.monotonic() + seconds
        while not child.frames:
            if child.end is None and _is_over(child.process):
                self._drain(child)  # what it wrote before its end; its own children may hold the pipe open
                child.end = None if child.frames else child.end or End.EXITED
                continue
            if child.end is None and time.monotonic() >= deadline:
                child.end = End.TIMEOUT
            if child.end is not None:
                self.kill(child)
                status = child.status if child.end is End.EXITED else None
                kills = out_of_memory_kills()
                raise ChildEnded(child.end, status, child.detail, child.killed_from_outside(kills))
            self._step(max(0.0, deadline - time.monotonic()))
            if self.heartbeat is not None:
                self.heartbeat()
        return child.frames.popleft()

    def kill(self, child: Child) -> None:
        """Kill a child, its process group, and whatever of its descendants left the group. Safe to repeat."""
        if child.process.returncode is None:
            # A dead leader is not reaped before this, so its number still means this group.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(child.process.pid, signal.SIGKILL)
            child.process.wait()
        _STARTED.discard(child.process.pid)
        self._kill_orphans()
        self._drain(child)
        child.end = child.end or End.EXITED
        for pipe in list(child.open_pipes):
            self._drop(child, pipe)
        for stream in (child.process.stdin, child.process.stdout, child.process.stderr):
            if stream is not None and not stream.closed:
                self._forget(stream.fileno())
                with contextlib.suppress(OSError):
                    stream.close()

    def _kill_orphans(self) -> None:
        """Kill processes that became our children although we did not start them, until there are none."""
        for _ in range(100):
            orphans = self._orphans()
            for pid in orphans:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
                with contextlib.suppress(OSError):
                    os.waitpid(pid, 0)
            if not orphans:
                return

    def _watch_trees(self) -> None:
        """Stop a child whose process tree outgrows its bounds."""
        now = time.monotonic()
        if now - self._watched < _WATCH_SECONDS:
            return
        self._watched = now
        for child in self._children:
            if child.max_tree_mib is not None and child.end is None and child.process.returncode is None:
                strays = set() if child.sandboxed else self._orphans()
                found = over_limits({child.process.pid} | strays, child.max_tree_mib)
                child.end = End(found) if found else None

    def _orphans(self) -> set[int]:
        """Processes that became our children although we did not start them."""
        return _children_of_this_process() - _STARTED - self._strangers

    # Bytes ---------------------------------------------------------------------------------------

    def _step(self, seconds: float) -> None:
        """Wait for bytes to move, at most `seconds`, and move them."""
        self._watch_trees()
        for key, events in self._selector.select(min(seconds, _WATCH_SECONDS)):
            child: Child = key.data
            if events & selectors.EVENT_WRITE:
                self._flush(child)
            elif key.fd in child.open_pipes:
                self._read(child, key.fd)

    def _drain(self, child: Child) -> None:
        """Read what is in a dead child's pipes now; at most a pipe's capacity, should someone still write."""
        for pipe in list(child.open_pipes):
            for _ in range(16):
                if pipe not in child.open_pipes or not self._read(child, pipe):
                    break

    def _read(self, child: Child, pipe: int) -> bool:
        """Read one piece; False when there is nothing now."""
        try:
            data = os.read(pipe, _CHUNK)
        except BlockingIOError:
            return False
        if not data:
            self._drop(child, pipe)
        elif pipe != child.channel:
            child.printed_bytes += len(data)
            child.printed += data
            del child.printed[:-_KEPT_OUTPUT]
            if child.printed_bytes > child.max_output:
                child.end = child.end or End.OUTPUT
        else:
            try:
                child.frames.extend(child.decoder.feed(data))
            except FrameError as error:
                child.end, child.detail = child.end or End.GARBAGE, str(error)
        return True

    def _flush(self, child: Child) -> None:
        """Write what the child's standard input takes now; wait for room by the selector."""
        stream = child.process.stdin
        if stream is None or stream.closed:
            child.outbox.clear()
            return
        pipe = stream.fileno()
        try:
            while child.outbox:
                del child.outbox[: os.write(pipe, child.outbox[:_CHUNK])]
        except BlockingIOError:
            pass
        except OSError:  # the child is gone; `receive` reports it
            child.outbox.clear()
        watched = pipe in self._selector.get_map()
        if child.outbox and not watched:
            self._selector.register(pipe, selectors.EVENT_WRITE, child)
        elif watched and not child.outbox:
            self._selector.unregister(pipe)

    def _drop(self, child: Child, pipe: int) -> None:
        """Read no more from a pipe of a child."""
        child.open_pipes.discard(pipe)
        self._forget(pipe)
        if pipe == child.channel:
            os.close(pipe)

    def _forget(self, pipe: int) -> None:
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(pipe)


def _is_over(process: subprocess.Popen[bytes]) -> bool:
    """Whether a process has ended; not reaped where waitid exists (everywhere but macOS before 3.13)."""
    if process.returncode is not None or not hasattr(os, "waitid"):
        return process.poll() is not None
    try:
        return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True


def _environment(folder: Path, gpu: str | None = None) -> dict[str, str]:
    """The allow-list of variables, one thread per library, and a private home and temporary folder."""
    names = _KEEP_VARIABLES if gpu is None else _KEEP_VARIABLES + _KEEP_FOR_GPU
    kept = {name: os.environ[name] for name in names if name in os.environ}
    return kept | {
        "HOME": str(folder),
        "TMPDIR": str(folder),
        "LANG": "C.UTF-8",
        "OPENBLAS_NUM_THREADS": "1",
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": gpu or "",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",  # the order of nvidia-smi
    }


def _prepare_this_process() -> None:
    """Linux: descendants that lose their parent become our children, so that a kill can find them; and no other process of
    this user may read our memory or environment.
    """
    if sys.platform == "linux":
        import ctypes

        with contextlib.suppress(OSError, AttributeError):
            libc = ctypes.CDLL(None, use_errno=True)
            libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
            libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def _children_of_this_process() -> set[int]:
    """Process ids of our children (Linux; elsewhere empty)."""
    found: set[int] = set()
    with contextlib.suppress(OSError):
        for task in os.listdir("/proc/self/task"):
            with contextlib.suppress(OSError):
                found |= {int(pid) for pid in Path(f"/proc/self/task/{task}/children").read_text().split()}
    return found
