"""Exceptions of the emulator.

A finding about the learner's kernel (a race, a hang, a read of poison) is never an exception: it is a
:class:`emulator.Finding` in the :class:`emulator.Run`.  Exceptions say that the kernel could not be run at all.
"""

from __future__ import annotations

from emulator.checks.findings import SourceLocation


class EmulatorError(Exception):
    """Base of everything the emulator raises; itself: the emulator is wrong, it met an error of Python or NumPy.

    Attributes:
        message: one sentence for the learner.
        location: the learner's line, where known.
    """

    def __init__(self, message: str, location: SourceLocation | None = None) -> None:
        self.message = message
        self.location = location
        super().__init__(f"{location.file}:{location.line}: {message}" if location else message)


class LoweringError(EmulatorError):
    """TVM rejected the kernel while lowering it."""


class UnsupportedInstruction(EmulatorError):
    """The lowered kernel contains something the emulator does not know. It never guesses."""

    def __init__(self, op: str, location: SourceLocation | None = None, why: str = "") -> None:
        self.op = op
        self.why = why
        super().__init__(f"the emulator does not support `{op}`" + (f": {why}" if why else ""), location)


class LaunchError(EmulatorError):
    """The launch is illegal: wrong tensors, too much shared memory, too many threads, a bad tensor map."""


class Unfinished(EmulatorError):
    """A launch that was recorded for the timing model hung, or was stopped by a fault: it has no time."""


class DeviceFault(EmulatorError):
    """The kernel did something that stops a real GPU (illegal address, illegal instruction operand).

    Raised inside the machine and turned into a finding of strength ``error`` by :mod:`emulator.kernel`.
    """

    def __init__(self, code: str, message: str, fix: str = "", site: int = -1, **context: object) -> None:
        super().__init__(message)
        self.code = code
        self.fix = fix
        self.site = site
        self.context = context
