"""What an instructor meets before the first grade: no active environment, zips of a class, `.py` files of other names."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from autograder.batch.collect import collect, with_submissions
from autograder.course import load_course
from autograder.nbgrader_steps import of_a_class

MOODLE = "Alice Muster_1234_assignsubmission_file"


@pytest.fixture
def folder(course: Path, tmp_path: Path) -> Path:
    for name in ("course.yaml", "nbgrader_config.py"):
        shutil.copy(course / name, tmp_path)
    for name in ("solutions", "exercises"):
        shutil.copytree(course / name / "exercise_02", tmp_path / name / "exercise_02")
    return tmp_path


def nbgrader(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """As `.venv/bin/nbgrader` runs it, without an active environment."""
    package = os.pathsep.join(filter(None, [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PATH": "/usr/bin:/bin", "PYTHONPATH": package}
    command = [sys.executable, "-m", "nbgrader", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=200)


def test_a_release_needs_no_active_environment(folder: Path) -> None:
    done = nbgrader(folder, "generate_assignment", "exercise_02", "--force")
    assert done.returncode == 0, done.stderr[-2000:]
    assert (folder / "exercises" / "exercise_02" / "exercise_02.ipynb").is_file()


@pytest.mark.parametrize(
    ("names", "refused"),
    [
        ([f"{MOODLE}/exercise_02.ipynb"], True),
        (["alice_exercise_02.ipynb", "bob_exercise_02.ipynb"], True),
        (["exercise_02_alice.py"], True),
        (["alice/exercise_02.ipynb", "bob/exercise_02.ipynb"], True),
        (["alice.zip"], True),
        (["exercise_02.ipynb"], False),
        (["exercise_02/exercise_02.ipynb", "exercise_02/exercise_02.py", "exercise_02/hints.md"], False),
        (
            ["exercise_02.ipynb", ".ipynb_checkpoints/exercise_02.ipynb", "__MACOSX/._exercise_02.ipynb"],
            False,
        ),
    ],
)
def test_which_zip_is_of_a_class(course: Path, tmp_path: Path, names: list[str], refused: bool) -> None:
    with zipfile.ZipFile(tmp_path / "one.zip", "w") as archive:
        for name in names:
            archive.writestr(name, "{}")
    assert of_a_class(tmp_path / "one.zip", load_course(course).find("exercise_02")) is refused


def test_a_class_zip_is_refused_with_one_line(folder: Path) -> None:
    """Unzipped, the same download is collected."""
    download = folder / "downloaded" / "exercise_02" / "archive"
    download.mkdir(parents=True)
    released = (folder / "exercises" / "exercise_02" / "exercise_02.ipynb").read_text(encoding="utf-8")
    with zipfile.ZipFile(download / "class.zip", "w") as archive:
        for student in ("Alice Muster_1", "Bob_2"):
            archive.writestr(f"{student}_assignsubmission_file/exercise_02.ipynb", released)
    done = nbgrader(folder, "zip_collect", "exercise_02")
    assert done.returncode != 0 and "unzip a class zip and take it out" in done.stderr
    assert "Traceback" not in done.stderr and not (folder / "submitted").exists()
    with zipfile.ZipFile(download / "class.zip") as archive:
        archive.extractall(download)
    (download / "class.zip").unlink()
    done = nbgrader(folder, "zip_collect", "exercise_02", "--force")
    assert done.returncode == 0, done.stderr[-2000:]
    assert sorted(path.name for path in (folder / "submitted").iterdir()) == ["Alice Muster", "Bob"]


def test_a_script_of_another_name_beside_a_stub(folder: Path) -> None:
    """One that defines the builder counts; several are named; beside a notebook that was worked on, none counts."""
    root, course = folder, load_course(folder)
    exercise = course.find("exercise_02")
    kernel = f"def {exercise.builder.name}(M):\n    return None\n"
    released = (root / "exercises" / "exercise_02" / exercise.notebook).read_text(encoding="utf-8")
    files = {
        "one": {"my_kernel.py": kernel, "helper.py": "x = 1\n"},
        "alone": {"my_kernel.py": kernel, exercise.notebook: ""},
        "several": {"a.py": kernel, "b.py": kernel},
        "none": {"helper.py": "x = 1\n"},
        "worked": {"my_kernel.py": kernel, exercise.notebook: released.replace("pass", "return 1")},
    }
    for student, texts in files.items():
        place = root / "submitted" / student / "exercise_02"
        place.mkdir(parents=True)
        for name, text in {exercise.notebook: released, **texts}.items():
            (place / name).write_text(text, encoding="utf-8")
    (root / "submitted" / "alone" / "exercise_02" / exercise.notebook).unlink()
    found, _ = collect(root / "submitted", course)
    read = {one.student: one for one in with_submissions(found, root, course)}
    assert {student: one.path.name for student, one in read.items() if not one.problem} == {
        "one": "my_kernel.py",
        "alone": "my_kernel.py",
        "none": exercise.notebook,
        "worked": exercise.notebook,
    }
    assert read["several"].problem == "a.py, b.py: left out; rename the one that counts to exercise_02.py"
    assert read["one"].name == "one/exercise_02/my_kernel.py"
