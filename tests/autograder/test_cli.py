"""The command line: exit codes, one-line errors, and that a learner's files stay as they are."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import jsonschema
import pytest

from autograder.report.write_schema import SCHEMA

from .conftest import REPOSITORY, SMALL_KERNEL, Result, one_line, run_command

Autograde = Callable[..., Result]
FillIn = Callable[..., Path]
ANSWERS = "answers = {'q1': 2 * 128 * 64 * 2, 'q2': 64 // 16, 'q3': 0, 'q4': 3 ^ (13 % 8)}\n"
NOTEBOOK = Path("exercises/exercise_05/exercise_05.ipynb")


def test_help_and_list(autograde: Autograde) -> None:
    result = autograde("--help")
    assert result.code == 0
    for word in (
        "EX",
        "--solution",
        "--file",
        "--device",
        "--seed",
        "--json",
        "--plain",
        "hint",
        "doctor",
        "reset",
    ):
        assert word in result.out
    result = autograde("list")
    assert (result.code, result.err) == (0, "")
    assert result.out == "exercise_05     -/100  One tcgen05 MMA tile\n"


def test_light_commands_import_nothing_heavy(folder: Path) -> None:
    """What makes `autograde --help` and `autograde list` start in a fraction of a second."""
    script = """
import sys
from autograder.cli import main
try:
    main()
except SystemExit as end:
    assert end.code in (0, None), end.code
heavy = {"torch", "tvm", "numpy", "rich", "emulator", "nbformat", "subprocess", "pydantic", "yaml"} & set(sys.modules)
assert not heavy, heavy
"""
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    assert run_command("list", cwd=folder).code == 0  # validates the course once
    for arguments in (["--help"], ["list"], []):
        done = subprocess.run(
            [sys.executable, "-c", script, *arguments], cwd=folder, env=environment, capture_output=True
        )
        assert done.returncode == 0, done.stderr.decode()


def test_where_you_are(autograde: Autograde) -> None:
    result = autograde()
    assert result.code == 0
    assert "next: exercise_05" in result.out and f"open {NOTEBOOK}" in result.out


def test_the_released_stub(autograde: Autograde, folder: Path) -> None:
    before = (folder / NOTEBOOK).read_bytes()
    result = autograde("exercise_05")
    assert result.code == 1
    assert "0 of 100 points" in result.out
    assert "still the released stub" in result.out
    assert 'open cell 6 ("kernel") of exercise_05.ipynb and fill in build_kernel' in " ".join(
        result.out.split()
    )
    assert (folder / NOTEBOOK).read_bytes() == before
    assert (
        json.loads((folder / ".autograde/progress.json").read_text())["reached"]["exercise_05"]["best"] == 0
    )


def test_a_stub_with_answers_keeps_their_points(autograde: Autograde, fill_in: FillIn) -> None:
    fill_in(answers=ANSWERS)
    result = autograde("5", "--json", "-")
    assert result.code == 1
    assert result.report["points"] == 10


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["exercise_50"], "there is no exercise 'exercise_50' in course.yaml; did you mean 'exercise_05'?"),
        (["lits"], "there is no exercise and no command 'lits'; did you mean 'list'?"),
        (["hint", "99"], "there is no exercise '99'"),
        (["hnt", "exercise_05"], "there is no command 'hnt'; did you mean 'hint'?"),
        (["timelin", "5", "--solution"], "there is no command 'timelin'; did you mean 'timeline'?"),
        (["exercise_5", "6"], "unexpected extra argument"),
        (
            ["exercises/exercise_05/exercise_05.ipynb"],
            "`autograde exercise_05 --file exercises/exercise_05/exercise_05.ipynb` this file",
        ),
        (["hint", "exercise_05.py"], "`autograde exercise_05` grades your notebook"),
        (["elsewhere.py"], "`autograde EXERCISE --file elsewhere.py` this file"),
        (["hint", "5", "9"], "exercise_05 has 3 hint levels, there is no 9"),
        (["5", "--solution", "--file", "x.py"], "give either --solution or --file, not both"),
        (["all", "--file", "x.py"], "--file needs one exercise, not 'all'"),
        (["5", "--file", "missing.py"], "missing.py: there is no such file"),
        (["5", "--file", "kernel.cu"], "kernel.cu: give a notebook (.ipynb) or a Python file (.py)"),
        (["5", "--json", "no/such/folder/x.json"], "there is no folder no/such/folder"),
        (["reset", "x"], "there is no exercise"),
    ],
)
def test_usage_errors_are_one_line(autograde: Autograde, arguments: list[str], message: str) -> None:
    result = autograde(*arguments)
    assert result.code == 2
    assert one_line(result.err), result.err
    assert message in result.err


def test_options_that_do_not_exist(autograde: Autograde) -> None:
    for arguments in (
        ["5", "--devise", "cuda"],
        ["5", "--device", "tpu"],
        ["5", "--seed", "-1"],
        ["5", "--seed", "x"],
    ):
        result = autograde(*arguments)
        assert result.code == 2
        assert one_line(result.err), result.err


def test_no_gpu_backend_is_said_plainly(autograde: Autograde) -> None:
    result = autograde("5", "--device", "cuda")
    assert result.code == 3
    assert one_line(result.err) and "--device emulated" in result.err


def test_no_course_and_broken_courses(tmp_path: Path, autograde: Autograde, folder: Path) -> None:
    empty = tmp_path / "elsewhere"
    empty.mkdir()
    result = run_command("5", cwd=empty)
    assert result.code == 2 and one_line(result.err)
    assert "no course.yaml in" in result.err
    assert run_command("list", "--course", str(folder), cwd=empty).code == 0
    text = (folder / "course.yaml").read_text(encoding="utf-8")
    for broken, message in {
        text.replace("points: 40", "pionts: 40"): "unknown key; did you mean 'points'?",
        "a: [": "line 2: ",
        "": "must be a mapping",
    }.items():
        (folder / "course.yaml").write_text(broken, encoding="utf-8")
        result = autograde("5")
        assert result.code == 2 and one_line(result.err)
        assert "course.yaml: " in result.err and message in result.err


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "there is no such notebook; `autograde reset exercise_05` brings it back"),
        (b"", "is empty"),
        (b"{'cells': []}", "not valid JSON"),
        (b'{"cells": "\xff"}', "is not UTF-8 text"),
    ],
)
def test_notebooks_that_cannot_be_read(
    autograde: Autograde, folder: Path, content: bytes | None, message: str
) -> None:
    path = folder / NOTEBOOK
    path.unlink() if content is None else path.write_bytes(content)
    result = autograde("5")
    assert result.code == 2 and one_line(result.err)
    assert message in result.err
    assert content is None or path.read_bytes() == content
    result = autograde("reset", "5")
    assert result.code == 0
    assert json.loads(path.read_text(encoding="utf-8"))["nbformat"] == 4
    kept = list((folder / ".autograde/kept/exercise_05").glob("*")) if content is not None else []
    assert [file.read_bytes() for file in kept] == ([content] if content is not None else [])
    assert autograde("5").code == 1


def test_a_syntax_error_is_shown_at_its_line(autograde: Autograde, fill_in: FillIn) -> None:
    path = fill_in(kernel="x = 1\ndef build_kernel(M, N, K:\n    pass\n")
    before = path.read_bytes()
    result = autograde("5", "--plain")
    assert result.code == 1
    assert "syntax error: " in result.out
    assert "at notebook cell 6 line 2: def build_kernel(M, N, K:" in result.out
    assert path.read_bytes() == before


def test_a_narrow_terminal_and_a_pipe(autograde: Autograde, fill_in: FillIn) -> None:
    fill_in(kernel="x = 'ö' * 5 +\n", answers="answers = {'q1': f()}")
    result = autograde("5", env={"COLUMNS": "40"})
    assert result.code == 1
    assert max(len(line) for line in result.out.splitlines()) <= 40
    assert "\x1b" not in result.out
    assert all(line == line.rstrip() for line in result.out.splitlines())


@pytest.mark.parametrize(
    "arguments", [("hint", "5"), ("doctor",), ("list",), ("5", "--quick"), ("5", "--plain")]
)
def test_plain_may_stand_ahead_of_everything(
    autograde: Autograde, fill_in: FillIn, arguments: tuple[str, ...]
) -> None:
    """Also where a command has no such option: what it prints is plain anyway."""
    fill_in(kernel="x = 'ö 漢' +\n")
    ahead, behind = autograde("--plain", *arguments), autograde(*arguments)
    assert ahead.code == behind.code
    assert ahead.out.isascii() and ahead.err == behind.err


def test_plain_is_ascii_and_streams_that_are_not_utf8_do_not_matter(
    autograde: Autograde, fill_in: FillIn
) -> None:
    fill_in(kernel="x = 'ö 漢' +\n")
    result = autograde("5", "--plain")
    assert result.out.isascii() and "FAIL" in result.out
    result = autograde("5", env={"PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii", "LC_ALL": "C"})
    assert result.code == 1
    assert result.out.isascii() and "Traceback" not in result.err
    result = autograde("exercise_öß", env={"PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii", "LC_ALL": "C"})
    assert result.code == 2 and one_line(result.err)


def test_the_reader_of_the_output_may_leave(folder: Path) -> None:
    command = f"'{sys.executable}' -m autograder 5 | true"
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(
        ["bash", "-c", command], cwd=folder, env=environment, capture_output=True, text=True
    )
    assert "Traceback" not in done.stderr and "Exception" not in done.stderr


def test_json_and_html_files(autograde: Autograde, folder: Path) -> None:
    result = autograde("5", "--json", "report.json", "--html", "report.html", "--seed", "7")
    assert result.code == 1 and "0 of 100 points" in result.out
    report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    jsonschema.validate(report, json.loads(SCHEMA.read_text(encoding="utf-8")))
    assert report["seed"] == 7
    html = (folder / "report.html").read_text(encoding="utf-8")
    assert html.startswith("<!DOCTYPE html>") and "still the released stub" in html
    result = autograde("all", "--json", "-")
    assert [r["exercise"] for r in json.loads(result.out)] == ["exercise_05"]


@pytest.mark.skipif(
    os.geteuid() == 0 and not Path("/usr/bin/setpriv").exists(), reason="root writes everywhere"
)
def test_a_read_only_folder(folder: Path) -> None:
    """The grade works, nothing is remembered, and one line says so."""
    as_user = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"] if os.geteuid() == 0 else []
    probe = [*as_user, sys.executable, "-c", "import click, tvm_ffi"]
    if as_user and (not shutil.which("setpriv") or subprocess.run(probe, capture_output=True).returncode):
        pytest.skip("root writes everywhere, and no other user can run this Python")
    with tempfile.TemporaryDirectory() as place:
        root = Path(shutil.copytree(folder, Path(place) / folder.name))
        for path in [root, *root.rglob("*")]:
            path.chmod(0o555 if path.is_dir() else 0o444)
        Path(place).chmod(0o755)
        try:
            for arguments, code in ((["5"], 1), (["reset", "5"], 2), (["hint", "5"], 0), (["list"], 0)):
                done = subprocess.run(
                    [*as_user, sys.executable, "-B", "-m", "autograder", *arguments],
                    cwd=root,
                    env={**os.environ, "PYTHONPATH": str(REPOSITORY), "HOME": "/tmp"},
                    capture_output=True,
                    text=True,
                )
                assert done.returncode == code, done.stderr
                assert "Traceback" not in done.stderr
                if arguments == ["5"]:
                    assert "not writable, so this grade is not remembered" in done.stderr
                    assert "0 of 100 points" in done.stdout
                if code == 2:
                    assert one_line(done.stderr)
            assert not (root / ".autograde").exists()
        finally:
            for path in [root, *root.rglob("*")]:
                path.chmod(0o755)


def test_a_py_file_beside_the_notebook(autograde: Autograde, folder: Path) -> None:
    """The later one of notebook and .py counts."""
    script = (folder / NOTEBOOK).with_suffix(".py")
    script.write_text("def build_kernel(:\n")
    os.utime(folder / NOTEBOOK, (1, 1))
    assert "exercise_05.py on emulated sm_100a" in autograde("5").out
    os.utime(script, (0, 0))
    assert "exercise_05.ipynb on emulated sm_100a" in autograde("5").out


def test_hints(autograde: Autograde, folder: Path) -> None:
    first, second = autograde("hint", "5"), autograde("hint", "exercise_05", "2")
    assert first.code == second.code == 0
    assert "hint 1 of 3" in first.out and "more: autograde hint exercise_05 2" in first.out
    assert "hint 2 of 3" in second.out and first.out.splitlines()[2] not in second.out
    assert json.loads((folder / ".autograde/progress.json").read_text())["hints"] == {"exercise_05": 2}
    for step in ("exercises", "solutions"):
        (folder / step / "exercise_05/hints.md").unlink()
    result = autograde("hint", "5")
    assert result.code == 2 and one_line(result.err) and "there are no hints" in result.err


def test_hints_and_lists_fit_a_narrow_terminal(autograde: Autograde) -> None:
    for arguments in (["hint", "5"], ["hint", "5", "3"], ["list"]):
        for width in (40, 80):
            result = autograde(*arguments, env={"COLUMNS": str(width)})
            assert result.code == 0
            assert max(len(line) for line in result.out.splitlines()) <= width


def test_hints_are_filled_like_a_text() -> None:
    """A paragraph and an item are one line, however the file breaks them; in code every line stays one."""
    from autograder import hints

    text = "One two\nthree.\n\n- item, which\n  goes on\n- next\n1. first\n   line\n\n```text\na     b\n      c\n```\nend\n"
    lines = list(hints.lines(text))
    assert [line for line, code in lines if not code] == [
        "One two three.", "", "- item, which goes on", "- next", "1. first line", "", "end",
    ]  # fmt: skip
    assert [line for line, code in lines if code] == ["```text", "a     b", "      c", "```"]
    assert hints.indent("- item", False) == 2 and hints.indent("a     b and more", True) == 6
    assert hints.indent("    code without columns", True) == 4 and hints.indent("", True) == 0


@pytest.mark.parametrize("exercise", [f"exercise_{n:02}" for n in range(1, 11)])
def test_no_word_of_a_hint_is_lost(exercise: str) -> None:
    from autograder import hints

    text = (REPOSITORY / "solutions" / exercise / "hints.md").read_text(encoding="utf-8")
    lines = list(hints.lines(text))
    assert " ".join(line for line, _ in lines).split() == text.split()
    for (before, code), (after, more_code) in itertools.pairwise(lines):
        assert code or more_code or not before or not after or hints._BEGINS.match(after), after


def test_a_folder_that_is_gone(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    command = f"cd '{gone}' && rmdir '{gone}' && '{sys.executable}' -m autograder list"
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(["bash", "-c", command], env=environment, capture_output=True, text=True)
    assert done.returncode == 2 and one_line(done.stderr), done.stderr


def test_reset_keeps_the_work(autograde: Autograde, fill_in: FillIn, folder: Path) -> None:
    released = (folder / NOTEBOOK).read_bytes()
    path = fill_in(kernel="my = 'work'\n")
    mine = path.read_bytes()
    assert autograde("reset", "5").code == 0
    (kept,) = (folder / ".autograde/kept/exercise_05").glob("*.ipynb")
    assert kept.read_bytes() == mine
    cells = [json.loads(text)["cells"] for text in (released, path.read_bytes())]
    sources = [["".join(c["source"]) for c in part] for part in cells]
    assert sources[0] == sources[1], "the notebook is as released"
    assert autograde("reset", "5").code == 0
    assert len(list((folder / ".autograde/kept/exercise_05").glob("*.ipynb"))) <= 2


def test_reset_without_anything_to_reset_from(autograde: Autograde, folder: Path) -> None:
    shutil.rmtree(folder / "solutions")
    before = (folder / NOTEBOOK).read_bytes()
    result = autograde("reset", "5")
    assert result.code == 2 and one_line(result.err)
    assert (folder / NOTEBOOK).read_bytes() == before


def test_a_missing_solution(autograde: Autograde, folder: Path) -> None:
    shutil.rmtree(folder / "solutions")
    result = autograde("5", "--solution")
    assert result.code == 2 and one_line(result.err) and "no solution of exercise_05" in result.err


def test_the_solution_gets_full_marks(autograde: Autograde, folder: Path) -> None:
    """The real thing, once, through the command line, from a folder with blanks and non-ASCII letters."""
    result = autograde("exercise_05", "--solution", "--json", "-")
    assert result.code == 0, result.out
    report = result.report
    assert report["points"] == report["max_points"] == 100
    assert report["device"] == "emulated sm_100a"
    jsonschema.validate(report, json.loads(SCHEMA.read_text(encoding="utf-8")))
    assert not (folder / ".autograde").exists(), "a grade of the solution is not the learner's"


def test_a_learners_kernel_and_its_output(autograde: Autograde, fill_in: FillIn, folder: Path) -> None:
    """A kernel that builds and is wrong: graded, its prints shown, remembered."""
    fill_in(kernel=SMALL_KERNEL + "print('hello from my cell')\n", answers=ANSWERS)
    result = autograde("5")
    assert result.code == 1
    assert "printed by your code" in result.out and "hello from my cell" in result.out
    assert "20 of 100 points" in result.out
    assert "exercise_05    20/100" in autograde("list").out
    assert "(20 of 100 points so far)" in autograde().out


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_a_terminated_grade_leaves_nothing_behind(folder: Path, fill_in: FillIn, tmp_path: Path) -> None:
    """SIGTERM while a submission loops: no process and no temporary folder stays."""
    fill_in(kernel="print('looping', flush=True)\nwhile True: pass\n")
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "TMPDIR": str(tmp_path)}
    grade = subprocess.Popen([sys.executable, "-m", "autograder", "5"], cwd=folder, env=environment)
    children: set[int] = set()
    deadline = time.monotonic() + 60
    while len(children) < 3 or not list(tmp_path.glob("autograde-*/builder")):
        assert time.monotonic() < deadline, f"only {children} were started"
        time.sleep(0.05)
        for task in Path(f"/proc/{grade.pid}/task").glob("*/children"):
            with contextlib.suppress(OSError):  # the thread has ended
                children |= {int(pid) for pid in task.read_text().split()}
    grade.terminate()
    assert grade.wait(timeout=30) == 143
    assert list(tmp_path.glob("autograde-*")) == []
    for pid in children:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_doctor(autograde: Autograde) -> None:
    result = autograde("doctor", "--plain")
    assert result.code == 0, result.out
    for word in ("python", "apache-tvm", "torch", "GPU", "nvcc", "emulator", "isolation"):
        assert word in result.out
    assert result.out.isascii()
    assert "self-test passed" in result.out
