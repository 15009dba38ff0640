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
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import Any

from autograder.errors import MachineError
from autograder.runner.frames import Decoder, Frame, FrameError, encode

PACKAGE_ROOT = Path(__file__).resolve().parents[2]
_KEEP_VARIABLES = ("PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "SYSTEMROOT")
_KEEP_FOR_GPU = ("CUDA_HOME", "CUDA_PATH", "TVM_CUDA_COMPILE_MODE")
_KEPT_OUTPUT = 16 << 10
_CHUNK = 1 << 18
_PR_SET_CHILD_SUBREAPER = 36


class End(StrEnum):
    """Why a child is over before it said what was asked."""

    EXITED = "exited"
    TIMEOUT = "timeout"
    OUTPUT = "output"
    GARBAGE = "garbage"


class ChildEnded(Exception):
    """A child ended without the awaited frame. `status`: exit status, or minus a signal number."""

    def __init__(self, end: End, status: int | None, detail: str = "") -> None:
        super().__init__(f"{end} {status} {detail}")
        self.end, self.status, self.detail = end, status, detail


@dataclass
class Child:
    """One process. `printed` is the tail of its standard output and error together."""

    name: str
    process: subprocess.Popen[bytes]
    channel: int
    decoder: Decoder
    max_output: int
    frames: deque[Frame] = field(default_factory=deque)
    printed: bytearray = field(default_factory=bytearray)
    printed_bytes: int = 0
    open_pipes: set[int] = field(default_factory=set)
    outbox: bytearray = field(default_factory=bytearray)
    end: End | None = None
    detail: str = ""

    @property
    def tail(self) -> str:
        """The last part of what the child printed, as text."""
        return bytes(self.printed).decode("utf-8", "replace")


class Pump:
    """Starts children and moves their bytes. Use as a context manager: leaving it kills what still runs."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._children: list[Child] = []
        self._strangers = _children_of_this_process()
        self._folder = tempfile.TemporaryDirectory(prefix="autograde-", ignore_cleanup_errors=True)
        _adopt_orphans()

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
        folder.mkdir()
        return folder

    def start(
        self,
        name: str,
        module: str,
        folder: Path,
        *,
        roots: tuple[Path, ...] = (),
        trusted: bool = True,
        max_json: int = 16 << 20,
        max_raw: int = 1 << 30,
        max_output: int = 1 << 20,
        gpu: str | None = None,
    ) -> Child:
        """Start `autograder.runner.<module>.main(channel)` in a fresh isolated interpreter.

        roots: folders that come first on its import path (last for an untrusted child).
        max_output: bytes that it may print before it is killed.
        gpu: CUDA_VISIBLE_DEVICES of a trusted child that uses a GPU; all others see none.

        Raises:
            MachineError: the process cannot be started.
        """
        receive, send = os.pipe()
        search = [str(root) for root in (*roots, PACKAGE_ROOT)]
        place = "sys.path[:0] = " if trusted else "sys.path += "
        code = f"import sys; {place}{search!r}; from autograder.runner.{module} import main; main({send})"
        flags = ["-I", "-B", "-u", "-X", "utf8"]
        try:
            process = subprocess.Popen(
                [sys.executable, *flags, "-c", code],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=(send,),
                cwd=folder,
                env=_environment(folder, gpu),
                start_new_session=True,
            )
        except OSError as error:
            os.close(receive)
            raise MachineError(f"cannot start a process ({error.strerror or error})") from None
        finally:
            os.close(send)
        child = Child(name, process, receive, Decoder(max_json, max_raw), max_output)
        assert process.stdin and process.stdout and process.stderr
        os.set_blocking(process.stdin.fileno(), False)
        for pipe in (receive, process.stdout.fileno(), process.stderr.fileno()):
            os.set_blocking(pipe, False)
            child.open_pipes.add(pipe)
            self._selector.register(pipe, selectors.EVENT_READ, child)
        self._children.append(child)
        return child

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
                status = child.process.returncode if child.end is End.EXITED else None
                raise ChildEnded(child.end, status, child.detail)
            self._step(max(0.0, deadline - time.monotonic()))
        return child.frames.popleft()

    def kill(self, child: Child) -> None:
        """Kill a child, its process group, and whatever of its descendants left the group. Safe to repeat."""
        if child.process.returncode is None:
            # A dead leader is not reaped before this, so its number still means this group.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(child.process.pid, signal.SIGKILL)
            child.process.wait()
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
        known = {c.process.pid for c in self._children}
        for _ in range(100):
            orphans = _children_of_this_process() - known - self._strangers
            for pid in orphans:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
                with contextlib.suppress(OSError):
                    os.waitpid(pid, 0)
            if not orphans:
                return

    # Bytes ---------------------------------------------------------------------------------------

    def _step(self, seconds: float) -> None:
        """Wait for bytes to move, at most `seconds`, and move them."""
        for key, events in self._selector.select(min(seconds, 0.5)):
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


def _adopt_orphans() -> None:
    """Linux: descendants that lose their parent become our children, so that a kill can find them."""
    if sys.platform == "linux":
        import ctypes

        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _children_of_this_process() -> set[int]:
    """Process ids of our children (Linux; elsewhere empty)."""
    found: set[int] = set()
    with contextlib.suppress(OSError):
        for task in os.listdir("/proc/self/task"):
            with contextlib.suppress(OSError):
                found |= {int(pid) for pid in Path(f"/proc/self/task/{task}/children").read_text().split()}
    return found
