"""Files that the grader writes: whole or not at all, and never over somebody's work."""

from __future__ import annotations

import os
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

from autograder.errors import UsageError

_SOURCES = {".ipynb", ".py", ".yaml", ".yml", ".md", ".toml"}


def check_target(option: str, target: str) -> None:
    """Refuse a report file that cannot be written, or that would replace somebody's work, before grading.

    Raises:
        UsageError: one line.
    """
    path = Path(target)
    if target == "-":
        raise UsageError(f"{option} -: only --json goes to the terminal; give the name of a file")
    if not target.strip():
        raise UsageError(f"{option}: give the name of a file")
    if path.suffix.lower() in _SOURCES:
        raise UsageError(f"{option} {target}: a report would overwrite a source file; choose another name")
    if path.is_dir():
        raise UsageError(f"{option} {target}: that is a folder; give the name of a file")
    if not path.parent.is_dir():
        raise UsageError(f"{option} {target}: there is no folder {path.parent}")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise UsageError(f"{option} {target}: not writable")


def write_text(path: Path, text: str) -> None:
    """Write a report: a file is replaced in one step, a device or a pipe is written to.

    Raises:
        UsageError: one line.
    """
    try:
        if path.exists() and not path.is_file():  # a device, a pipe: written to, never replaced
            with open(path, "wb") as stream:
                stream.write(text.encode())
            return
        write_atomically(path.resolve(), text.encode())
    except OSError as error:
        raise UsageError(f"{path}: cannot be written ({error.strerror or error})") from None


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file so that it has either its old or its new content, whatever happens.

    Raises:
        OSError: it cannot be written; the old file is untouched.
    """
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        with suppress(OSError):
            os.chmod(name, path.stat().st_mode & 0o7777 if path.exists() else 0o644)
        os.replace(name, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(name)
        raise


def find_own_programs() -> None:
    """Put the folder of this Python first on PATH: nbgrader starts alembic by name, without an active environment, too."""
    own = str(Path(sys.executable).parent)
    known = os.environ.get("PATH", os.defpath)
    if known.split(os.pathsep)[0] != own:
        os.environ["PATH"] = os.pathsep.join([own, known])
