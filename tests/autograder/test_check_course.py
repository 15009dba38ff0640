"""`autograde check-course`: a sound course passes, and each kind of fault is one line that names it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autograder.check_course import files, jobs, kernels, run
from autograder.check_course.files import examine_course_files, examine_exercise
from autograder.check_course.links import dead_links
from autograder.check_course.model import Found, Job
from autograder.course import Course, load_course
from autograder.pool import Stuck, Worker
from autograder.report.model import Fault

from .conftest import REPOSITORY, Result, one_line

Edit = Callable[[dict[str, Any]], None]
SOURCE = "solutions/exercise_05/exercise_05.ipynb"


@pytest.fixture
def whole(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A course folder that can be released, with one exercise and one mutant."""
    shutil.copy(REPOSITORY / "nbgrader_config.py", folder)
    mutants = folder / "tests" / "mutants" / "exercise_05"
    mutants.mkdir(parents=True)
    shutil.copy(REPOSITORY / "tests" / "mutants" / "exercise_05" / "no_wait.py", mutants)
    monkeypatch.setattr(files, "FEWEST_MUTANTS", 1)
    return folder


def edit(path: Path, change: Edit) -> None:
    notebook = json.loads(path.read_text(encoding="utf-8"))
    change(notebook)
    path.write_text(json.dumps(notebook), encoding="utf-8")


def cell(notebook: dict[str, Any], name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(c for c in notebook["cells"] if c["id"] == name)
    found["source"] = "".join(found["source"])
    return found


def replaced(name: str, old: str, new: str) -> Edit:
    """Text of one cell exchanged."""

    def change(notebook: dict[str, Any]) -> None:
        found = cell(notebook, name)
        assert old in found["source"]
        found["source"] = found["source"].replace(old, new)

    return change


def test_a_sound_course_a_stale_release_and_what_is_known(
    whole: Path, autograde: Callable[..., Result]
) -> None:
    """All of it from the command line: everything passes, is not done twice, and --fix mends the release."""
    done = autograde("check-course", "--plain", "--progress", "--jobs", "2")
    assert done.code == 0, done
    assert "1 solution, 1 assembly, 1 stub, 1 release, 1 mutant (0 known" in done.out
    assert "no fault: it can be released" in done.out and "5 of 5 examined" in done.err
    hints = whole / "exercises" / "exercise_05" / "hints.md"
    hints.write_text("edited by hand\n", encoding="utf-8")
    done = autograde("check-course", "5", "--plain")
    assert done.code == 1, done
    line = "-- exercise_05: release: exercises/exercise_05/hints.md is not what solutions/ generates"
    assert line in done.out.splitlines() and "(4 known" in done.out and "1 fault" in done.out
    done = autograde("check-course", "--fix", "--plain")
    assert done.code == 0 and "released exercises/exercise_05 anew" in done.out and "(4 known" in done.out
    assert hints.read_bytes() == (REPOSITORY / "exercises" / "exercise_05" / "hints.md").read_bytes()


STATIC: dict[str, tuple[Edit, str]] = {
    "a check without a cell": (
        lambda n: n["cells"].remove(cell(n, "resources")),
        "notebook: its scored cells are predictions, build, correctness, synchronization, mechanism; the checks",
    ),
    "a scored cell that scores another check": (
        replaced("build", '"build"', '"mechanism"'),
        'notebook: the scored cell build does not end in check("exercise_05", "build")',
    ),
    "an unlocked scored cell": (
        lambda n: cell(n, "build")["metadata"]["nbgrader"].update(locked=False),
        "notebook: the scored cell build is not locked",
    ),
    "no solution cell": (
        lambda n: cell(n, "kernel")["metadata"]["nbgrader"].update(grade_id="kernel2"),
        "notebook: it has no solution cell kernel",
    ),
    "outputs": (
        lambda n: cell(n, "report").update(
            outputs=[{"output_type": "stream", "name": "stdout", "text": "x"}]
        ),
        "notebook: cell 8 has outputs",
    ),
    "a blank end": (
        lambda n: cell(n, "kernel").update(source=cell(n, "kernel")["source"] + "\n"),
        "notebook: cell 6 ends in blanks",
    ),
    "a wrong answer": (
        replaced("answers", '"q2": 64 // 16', '"q2": 64 // 8'),
        "questions: q2: the solution's answer 8 is not the one",
    ),
    "no answer": (
        replaced("answers", '"q2": 64 // 16,', ""),
        "questions: q2: the solution does not answer it",
    ),
    "a question in other words": (
        replaced("predict", "How many bytes", "How  many bytes"),
        "questions: q1: the notebook does not ask it in the words of course.yaml",
    ),
    "a dead link": (
        replaced("lesson", "# Exercise", "[more](more.md)\n\n# Exercise"),
        "links: exercise_05.ipynb: the link more.md leads nowhere",
    ),
    "a picture without words": (
        replaced("lesson", "# Exercise", "![it](figures/tmem_lanes.svg)\n\n# Exercise"),
        "links: exercise_05.ipynb: the picture figures/tmem_lanes.svg has no description",
    ),
    "a TODO": (
        replaced("lesson", "# Exercise", "TODO(author): write the lesson\n\n# Exercise"),
        "todo: solutions/exercise_05/exercise_05.ipynb: write the lesson",
    ),
    "no notebook": (lambda n: n.update(nbformat=3), "notebook: "),
}


@pytest.mark.parametrize("what", STATIC)
def test_a_fault_of_the_notebook(what: str, whole: Path) -> None:
    """Exactly the fault that was made, and a sound notebook has none."""
    course = load_course(whole)
    assert list(examine_exercise(whole, course.exercises[0])) == []
    change, wanted = STATIC[what]
    edit(whole / SOURCE, change)
    found = [str(fault) for fault in examine_exercise(whole, course.exercises[0])]
    assert found and found[0].startswith(f"exercise_05: {wanted}"), found
    assert len(found) == (2 if what == "no solution cell" else 1), found


OTHER_FILES: dict[str, tuple[str, str, str]] = {
    "a hint too few": ("hints.md", "## Level 1\n\nThink.\n", "hints: hints.md has the headings Level 1; it needs"),
    "a module": ("helper.py", "x = 1\n", "notebook: solutions/exercise_05/helper.py would be handed out"),
    "a dead link": ("instructor_notes.md", "[x](#nowhere)\n", "links: instructor_notes.md: the link #nowhere leads to no"),
    "a TODO": ("instructor_notes.md", "TODO(author): answers\n", "todo: solutions/exercise_05/instructor_notes.md: answers"),
}  # fmt: skip


@pytest.mark.parametrize("what", OTHER_FILES)
def test_a_fault_of_another_file(what: str, whole: Path) -> None:
    name, text, wanted = OTHER_FILES[what]
    (whole / "solutions" / "exercise_05" / name).write_text(text, encoding="utf-8")
    course = load_course(whole)
    [fault] = examine_exercise(whole, course.exercises[0])
    assert str(fault).startswith(f"exercise_05: {wanted}")


def test_bounds_in_the_wrong_order(whole: Path) -> None:
    path = whole / "course.yaml"
    text = path.read_text(encoding="utf-8")
    assert "        at_least:" in text
    path.write_text(
        text.replace("        at_least:", "        at_most: {tcgen05.mma: 3}\n        at_least:", 1)
    )
    [fault] = examine_exercise(whole, load_course(whole).exercises[0])
    assert str(fault) == "exercise_05: thresholds: mechanism, tcgen05.mma: at_least is 4 and at_most 3"


def test_too_few_mutants_and_folders_of_no_exercise(whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "FEWEST_MUTANTS", 8)
    course = load_course(whole)
    [fault] = examine_exercise(whole, course.exercises[0])
    assert str(fault) == "exercise_05: todo: tests/mutants/exercise_05 has 1 mutant; an exercise needs 8"
    (whole / "exercises" / "exercise_77").mkdir()
    (whole / "README.md").write_text("[the docs](docs/none.md), [here](#top)\n\n# Top\n", encoding="utf-8")
    assert [str(fault) for fault in examine_course_files(whole, course)] == [
        "course: course.yaml: exercises/exercise_77 is no exercise of course.yaml",
        "course: links: README.md: the link docs/none.md leads nowhere",
    ]


def test_links(tmp_path: Path) -> None:
    """Files, folders, headings and blanks; what stands in code or leads into the network is left alone."""
    (tmp_path / "a b.md").write_text("## One, *two*: `x`\n", encoding="utf-8")
    text = (
        "# Top\n[1](a%20b.md#one-two-x) [2](<#top>) [3](https://x.org/y) `[4](none.md)` [5](mailto:a@b)\n"
        '```\n[6](none.md)\n```\n[7](a%20b.md#three) [8](none.png "title")\n'
    )
    (tmp_path / "c.md").write_text(text, encoding="utf-8")
    assert list(dead_links(tmp_path / "c.md", text)) == [
        "the link a%20b.md#three leads to no heading",
        "the link none.png leads nowhere",
    ]


def test_a_course_yaml_that_is_wrong(whole: Path, autograde: Callable[..., Result]) -> None:
    path = whole / "course.yaml"
    path.write_text(path.read_text(encoding="utf-8").replace("title: GPU", "titel: GPU"), encoding="utf-8")
    done = autograde("check-course")
    assert done.code == 2 and one_line(done.err) and "titel" in done.err


def course_of(folder: Path) -> tuple[Course, Any]:
    course = load_course(folder)
    return course, course.exercises[0]


def test_a_stub_that_does_not_parse(whole: Path) -> None:
    """Given code that needs what only the solution defines: the stub fails for another reason than being empty."""
    for step in ("solutions", "exercises"):
        edit(
            whole / step / "exercise_05" / "exercise_05.ipynb",
            replaced("kernel", "pool.commit()", "A_smem[0, 0] = 0"),
        )
    [fault] = kernels.stub(whole, *course_of(whole)).faults
    assert fault.startswith("its kernel is not refused for being empty, but because") and "A_smem" in fault


def test_a_release_that_is_not_the_solution_without_its_regions(whole: Path) -> None:
    edit(whole / "exercises/exercise_05/exercise_05.ipynb", replaced("kernel", "pool.commit()", "pass"))
    [fault] = kernels.stub(whole, *course_of(whole)).faults
    assert fault == "the released kernel is not the solution's without its regions; --fix releases it again"


def test_a_release_that_earns_points(whole: Path) -> None:
    """A stub that was handed out with the answers."""
    answers = "answers = {'q1': 32768, 'q2': 4, 'q3': 0, 'q4': 6}"
    edit(
        whole / "exercises/exercise_05/exercise_05.ipynb", lambda n: cell(n, "answers").update(source=answers)
    )
    faults = kernels.stub(whole, *course_of(whole)).faults
    assert faults == ("it earns 10 points", "as it stands it earns points in predictions")


def test_a_solution_that_is_broken(whole: Path) -> None:
    edit(whole / SOURCE, replaced("kernel", "pool.commit()", "pool.commit("))
    faults = kernels.solution(whole, *course_of(whole)).faults
    assert faults[0].startswith("it earns 10 of 100 points (build: syntax error")
    assert kernels.assembly(whole, *course_of(whole)).faults or not kernels.find_nvcc()


def test_a_notebook_that_differs_from_its_file(whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What only works in the notebook: here, the reader of .py files loses the answers."""
    given = kernels.from_python
    monkeypatch.setattr(
        kernels, "from_python", lambda name, source: given(name, source.replace("answers", "a"))
    )
    edit(whole / SOURCE, replaced("kernel", "pool.commit()", "pool.commit("))  # a grade without processes
    faults = kernels.solution(whole, *course_of(whole)).faults
    assert faults[1].startswith("as a .py file it earns 0 points, as a notebook 10 (predictions:")


def test_no_nvcc_is_said(whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "find_nvcc", lambda: None)
    found = kernels.assembly(whole, *course_of(whole))
    assert found == Found(notes=("not assembled: there is no nvcc on this machine",))


MUTANTS = {
    "no header": ("# mutant: x\n# check: build\n", "its header has no line `# finding: ...`"),
    "another check": ("# mutant: x\n# check: speeed\n# finding: -\n", "its header names the check speeed"),
    "no mark": ("# mutant: x\n# check: build\n# finding: -\nx = 1\n", "0 of its lines end in `# <- here`"),
    "no Python": ("# mutant: x\n# check: build\n# finding: -\nx = (  # <- here\n", "it is no Python (line 4"),
}


@pytest.mark.parametrize("what", MUTANTS)
def test_a_mutant_without_a_sound_header(what: str, whole: Path) -> None:
    text, wanted = MUTANTS[what]
    (whole / "tests/mutants/exercise_05/broken.py").write_text(text, encoding="utf-8")
    [fault] = kernels.mutant(whole, *course_of(whole), "broken").faults
    assert fault.startswith(f"broken: {wanted}")


def test_a_mutant_that_is_no_mistake(whole: Path, solution: str) -> None:
    text = f"# mutant: nothing\n# check: correctness\n# finding: -\n{solution}\nx = 1  # <- here\n"
    (whole / "tests/mutants/exercise_05/harmless.py").write_text(text, encoding="utf-8")
    [fault] = kernels.mutant(whole, *course_of(whole), "harmless").faults
    assert fault == "harmless (nothing) is not caught: correctness keeps its points"


def test_what_a_report_lacks_of_what_a_mutant_promises(whole: Path) -> None:
    """The check, the finding, the line, and who is to blame."""
    course, exercise = course_of(whole)
    mutant = kernels.read_mutant(
        (whole / "tests/mutants/exercise_05/no_wait.py").read_text("utf-8"), exercise
    )
    assert isinstance(mutant, kernels.Mutant)
    submission = kernels.from_python("no_wait.py", mutant.source)
    report = kernels.grade(exercise, submission, course.limits, kernels.Settings(seed=1, quick=True))
    assert kernels._escapes(mutant, report) == []
    lacking = {
        "build keeps its points": replace(mutant, check="build"),
        "there is no finding deadlock (found: race.tmem.write-read, race.tmem.write-write)": replace(
            mutant, finding="deadlock"
        ),
        "no message names line 1": replace(mutant, line=1),
    }
    assert {text: kernels._escapes(changed, report) for text, changed in lacking.items()} == {
        text: [text] for text in lacking
    }
    check = report.check("synchronization")
    assert check is not None
    check.fault = Fault.GRADER
    assert kernels._escapes(mutant, report) == ["synchronization blames the grader"]


def test_feedback_that_shows_the_solution(whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A report with a line of the solution that the learner has not written."""
    monkeypatch.setattr(
        kernels, "fragment", lambda report: "<p>try <b>Tx.cta.copy(A_smem[:, :],  A[:, :])</b></p>"
    )
    [fault] = kernels.stub(whole, *course_of(whole)).faults
    assert fault == "its report, which is the feedback, shows solution text: Tx.cta.copy(A_smem[:,:],A[:,:])"


def test_a_release_with_solution_text(whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hint that quotes the solution, also where it is released as it should be."""
    for step in ("solutions", "exercises"):
        hints = whole / step / "exercise_05" / "hints.md"
        hints.write_text(
            hints.read_text(encoding="utf-8") + "\nTx.cta.copy(A_smem[:, :], A[:, :])\n", encoding="utf-8"
        )

    def generate(_: Path, names: list[str], into: Path) -> None:
        """What nbgrader would write, without its three seconds."""
        shutil.copytree(whole / "exercises" / names[0], into / names[0])

    monkeypatch.setattr(jobs.release, "generate", generate)
    found = jobs.released(whole, load_course(whole).exercises[0])
    assert found.faults == ("hints.md shows solution text: Tx.cta.copy(A_smem[:,:],A[:,:])",)


def test_what_the_machine_owes(
    whole: Path, autograde: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Processes that die: nothing is known, nothing is kept, and the exit status says so."""
    monkeypatch.setattr(Worker, "ask", lambda *_: (_ for _ in ()).throw(Stuck("it died")))
    done = autograde("check-course", "--plain")
    assert done.code == 3 and "?? exercise_05, mutant no_wait: it died, 2 times" in done.out
    assert "5 not examined" in done.out and not list(run._all_kept(whole))


def test_an_unforeseen_error_is_owed(whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "stub", lambda *_: 1 / 0)
    found = jobs.do(Job("stub", str(whole), "exercise_05"))
    assert found.owed == "the grader failed: ZeroDivisionError: division by zero" and not found.faults


def test_a_result_depends_on_what_it_looked_at(whole: Path) -> None:
    """A hint belongs to the release only; the kernel to everything; a mutant to itself."""

    def keys() -> dict[str, str]:
        course, exercise = course_of(whole)
        return {job.kind: job.key for job in jobs.jobs_of(whole, course, [exercise])}

    def changed(before: dict[str, str]) -> set[str]:
        return {kind for kind, key in keys().items() if before[kind] != key}

    before = keys()
    (whole / "solutions/exercise_05/hints.md").write_text("x")
    assert changed(before) == {"release"}
    before = keys()
    with (whole / "tests/mutants/exercise_05/no_wait.py").open("a") as file:
        file.write("# x\n")
    assert changed(before) == {"mutant"}
    before = keys()
    edit(whole / SOURCE, lambda n: n["cells"].pop())
    assert changed(before) == {"solution", "assembly", "stub", "release", "mutant"}
