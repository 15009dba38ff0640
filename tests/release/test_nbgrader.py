"""A class goes through all of nbgrader's steps, with a real exchange: honest, broken and hostile submissions, and their scores."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from autograder.nbgrader_bridge import _SECONDS

POINTS = {
    "predictions": 10,
    "build": 10,
    "correctness": 40,
    "synchronization": 20,
    "mechanism": 10,
    "resources": 10,
}
NOTHING = dict.fromkeys(POINTS, 0)
UNANSWERED = {**POINTS, "predictions": 0}
FENCE = 'T.ptx["fence.proxy.async.shared::cta"]()'
HERE = Path(__file__).parent

# Code of a learner that would change scores, or end the class, if it ran beside the cells that score it.
PATCHES = """
import sys, types
fake = types.ModuleType("autograder")
fake.check = lambda *_, **__: 10.0
sys.modules["autograder"] = fake
try:
    get_ipython().input_transformers_cleanup.append(lambda lines: ["10.0\\n"] if "check(" in "".join(lines) else lines)
except NameError:
    pass
"""
HANGS = "import signal, time\nsignal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])\ntime.sleep(1e6)\n"
CRASHES = "import ctypes\nctypes.string_at(0)\n"
EXITS = "import os\nos._exit(0)\n"
WARNS = "import sys, warnings\nwarnings.warn('careful')\nprint('a word', file=sys.stderr)\n"
SYNTAX = "def build_kernel(M, N, K):\n    return (\n"
NAN = "class Nan(float):\n    __repr__ = lambda self: 'nan'\n\ndef check(*_):\n    return Nan('nan')\n"

# What nbgrader, and `autograde`, give for each.
EXPECTED: dict[str, dict[str, float]] = {
    "alice": POINTS,  # the solution, through the exchange
    "mallory": NOTHING,  # patches `check` and IPython, through the exchange
    "bob": {
        **POINTS,
        "synchronization": 0,
        "predictions": 8,
    },  # no fence, one wrong answer, the second of two attempts
    "carol": POINTS,  # a .py file in the flat download
    "dave": POINTS,  # a zip in the download
    "erin": UNANSWERED,  # a .py file beside the untouched notebook
    "frank": NOTHING,  # a .py file beside a notebook that was worked on, which counts
    "grace": NOTHING,  # hangs, with signals blocked
    "heidi": NOTHING,  # segfault
    "ivan": POINTS,  # deleted two scored cells, wrote 500 points into another, and emptied one
    "judy": POINTS,  # right, but noisy on stderr
    "kim": NOTHING,  # no JSON
    "leo": NOTHING,  # hopes for NaN as credit
    "mia": NOTHING,  # the kernel cell twice
    "nina": POINTS,  # nbgrader metadata of an old version
    "olaf": NOTHING,  # os._exit
    "pat": NOTHING,  # the stub
    "quin": NOTHING,  # a link to the solution
    "rosa": UNANSWERED,  # deleted every marked cell but the kernel, the answers, too
    "sam": UNANSWERED,  # a .py file and no notebook
    "tess": POINTS,  # a notebook of another name
    "uwe": POINTS,  # deleted the first scored cell and the text ahead of it
    "vera": POINTS,  # the second attempt, `exercise_05_vera (2).ipynb`
    "wim": POINTS,  # a zip that names the exercise
}


def nbgrader(*steps: tuple[Path, str]) -> None:
    """Run these steps, (folder, arguments), and demand exit status 0 of each."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    package = os.pathsep.join(filter(None, [str(HERE.parents[1]), os.environ.get("PYTHONPATH")]))
    request = json.dumps([[str(folder), *arguments.split()] for folder, arguments in steps])
    done = subprocess.run(
        [sys.executable, str(HERE / "nbgrader_process.py")],
        input=request,
        env={**os.environ, "PATH": path, "PYTHONPATH": package},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    codes = json.loads(done.stdout.splitlines()[-1])
    assert codes == [0] * len(steps), (codes, steps, done.stderr[-4000:])


def with_cells(notebook: Path, **texts: str) -> dict[str, Any]:
    """A notebook, the cells of these grade_ids replaced."""
    content: dict[str, Any] = json.loads(notebook.read_text(encoding="utf-8"))
    for cell in content["cells"]:
        name = cell["metadata"].get("nbgrader", {}).get("grade_id")
        if name in texts:
            cell["source"] = texts[name]
    return content


def put(path: Path, content: dict[str, Any] | str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")


def marked(notebook: dict[str, Any], name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(
        c for c in notebook["cells"] if c["metadata"].get("nbgrader", {}).get("grade_id") == name
    )
    return found


def tampered(notebook: dict[str, Any]) -> dict[str, Any]:
    """Scored cells deleted, emptied, and worth 500 points."""
    for name in ("mechanism", "resources"):
        notebook["cells"].remove(marked(notebook, name))
    marked(notebook, "build")["source"] = "10.0"
    marked(notebook, "correctness")["metadata"]["nbgrader"]["points"] = 500
    return notebook


def without(notebook: dict[str, Any], goes: Callable[[str | None], bool]) -> dict[str, Any]:
    """The notebook without the cells of these grade_ids."""
    kept = [c for c in notebook["cells"] if not goes(c["metadata"].get("nbgrader", {}).get("grade_id"))]
    return {**notebook, "cells": kept}


def twice(notebook: dict[str, Any]) -> dict[str, Any]:
    """A second kernel cell."""
    notebook["cells"].append(marked(notebook, "kernel"))
    return notebook


def old(notebook: dict[str, Any]) -> dict[str, Any]:
    """Metadata of schema version 1."""
    for cell in notebook["cells"]:
        if "nbgrader" in cell["metadata"]:
            cell["metadata"]["nbgrader"]["schema_version"] = 1
    return notebook


@pytest.fixture(scope="module")
def classroom(course: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A course folder after all steps: released, collected in three ways, graded, with feedback and grades.csv."""
    top = tmp_path_factory.mktemp("class")
    folder, exchange = top / "course", top / "exchange"
    folder.mkdir()
    exchange.mkdir()
    exchange.chmod(0o777)
    text = (course / "course.yaml").read_text(encoding="utf-8")
    (folder / "course.yaml").write_text(
        re.sub(r"build_seconds: \d+", "build_seconds: 4", text), encoding="utf-8"
    )
    config = (course / "nbgrader_config.py").read_text(encoding="utf-8")
    rest = f"\nc.Exchange.root = {str(exchange)!r}\nc.Exchange.cache = {str(top / 'cache')!r}\n"
    (folder / "nbgrader_config.py").write_text(config + rest, encoding="utf-8")
    shutil.copytree(course / "solutions" / "exercise_05", folder / "solutions" / "exercise_05")
    students = {name: top / name for name in ("alice", "mallory")}
    for home in students.values():
        put(
            home / "nbgrader_config.py",
            f"c = get_config()\nc.CourseDirectory.course_id = 'tirx-kernel-course'{rest}",
        )
    alice, mallory = students.values()
    nbgrader(
        (folder, "generate_assignment exercise_05"),
        (folder, "release_assignment exercise_05"),
        (alice, "fetch_assignment exercise_05"),
        (mallory, "fetch_assignment exercise_05"),
    )
    hand_in(folder, students, course / "solutions/exercise_05/exercise_05.ipynb")
    nbgrader(
        (alice, "submit exercise_05 --student alice"),
        (mallory, "submit exercise_05 --student mallory"),
        (folder, "list exercise_05 --inbound"),
        (folder, "collect exercise_05"),
        (folder, "zip_collect exercise_05"),
    )
    command = [sys.executable, "-m", "autograder", "batch", "submitted", "--jobs", "2", "--no-progress"]
    package = os.pathsep.join(filter(None, [str(course), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": package, "PYTHONUTF8": "1"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    (folder / "results" / "records" / table(folder)["bob"]["record"]).unlink()  # one for nbgrader's own step
    nbgrader(
        (folder, "autograde exercise_05"),
        (folder, "generate_feedback exercise_05"),
        (folder, "release_feedback exercise_05 --student alice"),
        (alice, "fetch_feedback exercise_05 --student alice"),
        (folder, "export"),
    )
    return folder


def hand_in(folder: Path, students: dict[str, Path], solution: Path) -> None:
    """Everybody's work: two in the exchange, three in a flat download, the others in `submitted`."""
    released = folder / "exercises" / "exercise_05" / "exercise_05.ipynb"
    right = json.loads(solution.read_text(encoding="utf-8"))
    kernel, answers = ("".join(marked(right, name)["source"]) for name in ("kernel", "answers"))
    good = {"kernel": kernel, "answers": answers}
    put(students["alice"] / "exercise_05/exercise_05.ipynb", with_cells(released, **good))
    put(students["mallory"] / "exercise_05/exercise_05.ipynb", with_cells(released, kernel=PATCHES))

    download = folder / "downloaded" / "exercise_05" / "archive"
    wrong = {"kernel": kernel.replace(FENCE, "pass"), "answers": answers.replace('"q3": 0,', '"q3": 1,')}
    put(download / "bob_exercise_05.ipynb", with_cells(released, **good))
    put(download / "bob_exercise_05-2.ipynb", with_cells(released, **wrong))
    put(download / "carol_exercise_05.py", f"{kernel}\n\n{answers}\n")
    put(download / "report.txt", "not a submission")
    put(download / "exercise_05_vera.ipynb", with_cells(released))
    put(download / "exercise_05_vera (2).ipynb", with_cells(released, **good))
    with zipfile.ZipFile(download / "wim_exercise_05.zip", "w") as archive:
        archive.writestr("exercise_05/exercise_05.ipynb", json.dumps(with_cells(released, **good)))
    with zipfile.ZipFile(download / "dave_17_assignsubmission_file.zip", "w") as archive:
        archive.writestr("exercise_05.ipynb", json.dumps(with_cells(released, **good)))

    def place(student: str, content: dict[str, Any] | str, suffix: str = ".ipynb") -> None:
        put(folder / "submitted" / student / "exercise_05" / f"exercise_05{suffix}", content)

    place("erin", with_cells(released))
    place("erin", kernel, ".py")
    place("frank", with_cells(released, kernel=SYNTAX))
    place("frank", kernel, ".py")
    place("grace", with_cells(released, kernel=HANGS))
    place("heidi", with_cells(released, kernel=CRASHES))
    place("ivan", tampered(with_cells(released, **good)))
    place("judy", with_cells(released, kernel=WARNS + kernel, answers=answers))
    place("kim", "{")
    place("leo", with_cells(released, kernel=NAN, answers="answers = {'q1': float('nan')}"))
    place("mia", twice(with_cells(released, **good)))
    place("nina", old(with_cells(released, **good)))
    place("olaf", with_cells(released, kernel=EXITS))
    place("pat", with_cells(released))
    place("rosa", without(with_cells(released, **good), lambda name: name not in (None, "kernel")))
    put(folder / "submitted/sam/exercise_05/exercise_05.py", kernel)
    put(folder / "submitted/tess/exercise_05/Exercise 5 (final).ipynb", with_cells(released, **good))
    place("uwe", without(with_cells(released, **good), lambda name: name in ("build", "scored")))
    place("quin", "")
    link = folder / "submitted" / "quin" / "exercise_05" / "exercise_05.ipynb"
    link.unlink()
    link.symlink_to(folder / "solutions" / "exercise_05" / "exercise_05.ipynb")


def scores(folder: Path, student: str) -> dict[str, float]:
    """grade_id -> what nbgrader wrote into its gradebook. None of them waits for a person."""
    from nbgrader.api import Gradebook

    with Gradebook(f"sqlite:///{folder / 'gradebook.db'}") as gradebook:
        [notebook] = gradebook.find_submission("exercise_05", student).notebooks
        assert not any(grade.needs_manual_grade for grade in notebook.grades)
        return {grade.name: grade.auto_score for grade in notebook.grades}


def table(folder: Path) -> dict[str, dict[str, str]]:
    """`autograde batch`'s results.csv by student."""
    with (folder / "results" / "results.csv").open(encoding="utf-8") as file:
        return {row["student"]: row for row in csv.DictReader(file)}


def feedback(folder: Path, student: str) -> str:
    return (folder / "feedback" / student / "exercise_05" / "exercise_05.html").read_text(encoding="utf-8")


def test_gradebook_release_equals_the_release_tool(classroom: Path, course: Path) -> None:
    """`nbgrader generate_assignment` with a gradebook writes the files that tools/release.py writes."""
    for path in sorted(p for p in (course / "exercises" / "exercise_05").rglob("*") if p.is_file()):
        other = classroom / path.relative_to(course)
        assert other.read_bytes() == path.read_bytes(), path.name


def test_scores_of_everybody(classroom: Path) -> None:
    assert {student: scores(classroom, student) for student in EXPECTED} == EXPECTED


def test_scores_equal_autogrades(classroom: Path) -> None:
    """Check by check, as `autograde batch` writes them."""
    rows = table(classroom)
    assert set(rows) == set(EXPECTED)
    for student, expected in EXPECTED.items():
        assert {check: float(rows[student][check]) for check in expected} == expected, student


def test_export(classroom: Path) -> None:
    with (classroom / "grades.csv").open(encoding="utf-8") as file:
        rows = {row["student_id"]: row for row in csv.DictReader(file)}
    assert {student: float(row["score"]) for student, row in rows.items()} == {
        student: sum(points.values()) for student, points in EXPECTED.items()
    }
    assert {row["max_score"] for row in rows.values()} == {"100.0"}


def test_feedback_explains_and_works_offline(classroom: Path) -> None:
    """The report with its reasons, the figures inside, nothing from the network, and no traceback."""
    for student in EXPECTED:
        page = feedback(classroom, student)
        loads = re.findall(
            r"""<(?:script|link|img|iframe)[^>]*?\s(?:src|href)=["']?(?!data:)([^"'> ]+)""", page
        )
        assert [load for load in loads if not load.startswith("#")] == [], student
        assert not re.findall(r"""(?:@import|import\s*\(|url\()\s*["']?(?:https?:)?//""", page), student
        assert "Traceback (most recent call last)" not in page
        assert page.count("data:image/svg+xml") >= 3
    assert "fence.proxy.async" in feedback(classroom, "bob")
    assert "after 4 s" in feedback(classroom, "grace")
    assert "not valid JSON" in feedback(classroom, "kim")
    assert "cells 6 and 16 have the same grade_id" in feedback(classroom, "mia")
    assert (classroom.parent / "alice" / "exercise_05" / "feedback").is_dir()


def test_feedback_shows_no_solution_and_no_hidden_test(classroom: Path, course: Path) -> None:
    """Hidden checks are there in words: their inputs, the oracle and the solution are not."""
    from autograder import release

    secret = release.solution_lines(course / "solutions" / "exercise_05" / "exercise_05.ipynb")
    for student in set(EXPECTED) - {
        "alice",
        "bob",
        "carol",
        "dave",
        "ivan",
        "judy",
        "mia",
        "nina",
        *("rosa", "sam", "tess", "uwe", "vera", "wim"),
    }:  # they wrote it
        page = feedback(classroom, student)
        text = release.squeeze(re.sub(r"<[^>]+>", "", page))
        own = SYNTAX if student == "frank" else ""
        assert [line for line in secret if line in text and line not in release.squeeze(own)] == [], student
        assert "HIDDEN" not in page and "SOLUTION" not in page


def test_what_nbgrader_cannot_process_is_kept(classroom: Path) -> None:
    aside = classroom / "submitted" / ".as_submitted" / "kim" / "exercise_05" / "exercise_05.ipynb"
    assert aside.read_text(encoding="utf-8") == "{"


def test_time_limits_are_in_the_right_order(course: Path) -> None:
    """nbgrader's limit for a cell is above the notebook's, and that above all that one grade may take."""
    limits = yaml.safe_load((course / "course.yaml").read_text(encoding="utf-8"))["limits"]
    text = (course / "nbgrader_config.py").read_text(encoding="utf-8")
    [timeout] = re.findall(r"ExecutePreprocessor\.timeout = (\d+)", text)
    grade = 2 * limits["start_seconds"] + limits["build_seconds"] + 2 * limits["run_seconds"]
    assert grade < _SECONDS < int(timeout)


@pytest.fixture
def server(classroom: Path, unused_port: int) -> Iterator[str]:
    """A Jupyter server in the course folder; its address."""
    command = [
        sys.executable,
        "-m",
        "jupyter",
        "server",
        "--no-browser",
        "--allow-root",
        f"--port={unused_port}",
    ]
    options = ["--ServerApp.token=", "--ServerApp.password=", "--ServerApp.disable_check_xsrf=True"]
    package = os.pathsep.join(filter(None, [str(HERE.parents[1]), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": package}
    process = subprocess.Popen(
        [*command, *options],
        cwd=classroom,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    yield f"http://127.0.0.1:{unused_port}"
    process.terminate()
    process.wait(timeout=30)


@pytest.fixture
def unused_port() -> int:
    import socket

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def read(address: str, seconds: float = 180) -> str:
    """A page, as soon as the server answers."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            with urllib.request.urlopen(address, timeout=10) as answer:
                return str(answer.read().decode())
        except urllib.error.HTTPError:
            raise
        except OSError:
            assert time.monotonic() < deadline, "the server does not answer"
            time.sleep(0.2)


def test_formgrader_serves_the_class(server: str) -> None:
    """Its page, its list of assignments, and a graded notebook."""
    assert "formgrader" in read(f"{server}/formgrader").lower()
    [assignment] = json.loads(read(f"{server}/formgrader/api/assignments"))
    assert (assignment["name"], assignment["num_submissions"], assignment["max_score"]) == (
        "exercise_05",
        len(EXPECTED),
        100,
    )
    found = json.loads(read(f"{server}/formgrader/api/submissions/exercise_05"))
    assert {one["student"]: one["score"] for one in found}["bob"] == 78
    assert not any(one["needs_manual_grade"] for one in found)


# Points that changed after a release ------------------------------------------------------------


def test_points_that_differ_from_the_gradebook_are_no_points(classroom: Path, tmp_path: Path) -> None:
    """One clear line instead of scores that fit neither: the instructor releases again."""
    from autograder import nbgrader_steps as steps
    from autograder.course import load_course
    from autograder.errors import CourseError

    course = load_course(classroom)
    exercise = course.find("5")
    checks = [c.model_copy(update={"points": 12 if c.id == "build" else c.points}) for c in exercise.checks]
    changed = exercise.model_copy(update={"checks": checks})
    record = steps.grade_folder(classroom, course, exercise, "pat", classroom / "submitted/pat/exercise_05")
    cells = json.loads((classroom / "autograded/pat/exercise_05/exercise_05.ipynb").read_text("utf-8"))[
        "cells"
    ]
    with pytest.raises(CourseError, match="build: 10 points in the gradebook, 12 in course"):
        steps.write_outputs(cells, changed, record)


def test_points_that_changed_end_the_step_before_anything_is_removed(classroom: Path) -> None:
    """`nbgrader autograde --force` removes earlier results first: not when it could not grade again."""
    path = classroom / "course.yaml"
    before = path.read_text(encoding="utf-8")
    head, five = before.split("  - id: exercise_05\n")
    old = "      - id: build\n        title: Build\n        points: 10\n"
    assert old in five
    path.write_text(
        f"{head}  - id: exercise_05\n{five.replace(old, old.replace('10', '12'), 1)}", encoding="utf-8"
    )
    graded = classroom / "autograded" / "pat" / "exercise_05" / "exercise_05.ipynb"
    kept = graded.read_bytes()
    package = os.pathsep.join(filter(None, [str(HERE.parents[1]), os.environ.get("PYTHONPATH")]))
    try:
        done = subprocess.run(
            [sys.executable, "-m", "nbgrader", "autograde", "exercise_05", "--student", "pat", "--force"],
            cwd=classroom, env={**os.environ, "PYTHONPATH": package}, capture_output=True, text=True, timeout=200,
        )  # fmt: skip
    finally:
        path.write_text(before, encoding="utf-8")
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "build: 10 points in the gradebook, 12 in course.yaml" in done.stderr
    assert "nothing was changed" in done.stderr and graded.read_bytes() == kept


def test_what_the_machine_owes_is_no_score(classroom: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import nbformat

    from autograder import nbgrader_steps as steps
    from autograder.batch.grading import failed
    from autograder.errors import MachineError

    monkeypatch.chdir(classroom)
    monkeypatch.setattr(steps, "run_task", lambda todo: failed(todo, "the process died"))
    monkeypatch.setattr(steps, "kept_record", lambda *_: None)

    class Parent:
        class parent:
            class coursedir:
                submitted_directory = "submitted"
                format_path = staticmethod(lambda step, student, name: f"{step}/{student}/{name}")

    step = steps.GradeCells()
    step.parent = None
    monkeypatch.setattr(steps.GradeCells, "parent", Parent)
    about = {"nbgrader": {"student": "pat", "assignment": "exercise_05", "notebook": "exercise_05"}}
    with pytest.raises(MachineError, match="pat, exercise_05: not graded, the process died"):
        step.preprocess(nbformat.v4.new_notebook(), about)


def test_a_wrong_course_is_one_line(course: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """nbgrader_config.py ends nbgrader before it has begun."""
    from autograder import nbgrader_steps as steps

    text = (course / "course.yaml").read_text(encoding="utf-8")
    (tmp_path / "course.yaml").write_text(text.replace("smem_bytes:", "smem_byte:", 1), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        steps.need_a_course()
    assert re.fullmatch(r"nbgrader_config\.py: .*course\.yaml.*smem_byte.*", str(ended.value.code))
    assert re.search(r"(?m)^need_a_course\(\)$", (course / "nbgrader_config.py").read_text(encoding="utf-8"))


def test_deleted_cells_come_back_into_their_places() -> None:
    from autograder import nbgrader_steps as steps

    def cells(names: str) -> list[dict[str, Any]]:
        return [
            {"n": name, "metadata": {"nbgrader": {"grade_id": name}} if name.isalpha() else {}}
            for name in names
        ]

    for own, whole in (
        ("", "abc"),
        ("abc", "abc"),
        ("1b2", "a1bc2"),
        ("c1", "abc1"),
        ("1a2c3", "1ab2c3"),
        ("ca", "abca"[1:]),
    ):
        found = "".join(cell["n"] for cell in steps.with_released_cells(cells(own), cells("abc")))
        assert sorted(found) == sorted(whole) and [n for n in found if n in own] == list(own), (own, found)
        if own != "ca":
            assert found == whole
