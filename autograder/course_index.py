"""What `autograde list` shows of the course, without importing the validation each time.

course.yaml is validated once per content; its table of contents is then kept in .autograde/course.json together with a
digest of everything it was made from. Losing that file costs a tenth of a second.
"""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from autograder import __version__, progress
from autograder.course_folder import COURSE_FILE
from autograder.errors import CourseError
from autograder.files import write_atomically

_FILE = "course.json"


@dataclass(frozen=True)
class Entry:
    """One exercise in the table of contents."""

    id: str
    title: str
    teaches: str
    notebook: str
    total: float


@dataclass(frozen=True)
class Index:
    """The course's title and its exercises in order."""

    title: str
    entries: tuple[Entry, ...]


def load_index(root: Path) -> Index:
    """The table of contents of a valid course.

    Raises:
        CourseError: course.yaml is missing or wrong; says where and how.
    """
    try:
        key = _key(root / COURSE_FILE)
    except OSError as error:
        raise CourseError(f"{root / COURSE_FILE}: cannot be read ({error.strerror or error})") from None
    kept = root / progress.FOLDER / _FILE
    with suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
        data = json.loads(kept.read_bytes())
        if data["key"] == key:
            return Index(data["title"], tuple(Entry(**entry) for entry in data["entries"]))
    from autograder.course import load_course

    course = load_course(root)
    entries = tuple(Entry(e.id, e.title, e.teaches, e.notebook, e.total) for e in course.exercises)
    content = {"key": key, "title": course.title, "entries": [asdict(entry) for entry in entries]}
    with suppress(OSError):
        kept.parent.mkdir(exist_ok=True)
        write_atomically(kept, json.dumps(content).encode())
    return Index(course.title, entries)


def _key(path: Path) -> str:
    """Digest of the course, of the grader's version, and of the rules by which the course was validated."""
    rules = Path(__file__).with_name("course.py").stat()
    text = f"{__version__} {rules.st_size} {rules.st_mtime_ns} ".encode()
    return hashlib.sha256(text + path.read_bytes()).hexdigest()
