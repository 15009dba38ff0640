"""What keeps a submission in its place: which level is chosen, what it shows, and that a grade and `doctor` say so."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from autograder.doctor import examine
from autograder.errors import MachineError
from autograder.report import html, terminal
from autograder.report.model import GradeReport, Isolation
from autograder.runner import sandbox
from autograder.runner.confinement import PROTECTIONS
from autograder.runner.process import ChildEnded, Pump
from autograder.runner.sandbox import Sandbox, bubblewrap, choose
from autograder.runner.system_calls import available
from autograder.runner.tree import MAX_PROCESSES, children, over_limits

from .conftest import Result, one_line

WORKS = bubblewrap()[0] is not None
needs_bubblewrap = pytest.mark.skipif(not WORKS, reason=bubblewrap()[1])


def inside(view: Sandbox, work: Path, code: str) -> str:
    """What Python prints in the sandbox."""
    work.mkdir(parents=True, exist_ok=True)
    command = view.wrap([sys.executable, "-I", "-S", "-c", code], work)
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@needs_bubblewrap
def test_the_view_holds_python_and_nothing_of_the_course(tmp_path: Path) -> None:
    root = sandbox.PACKAGE_ROOT
    places = [
        root / "solutions",
        root / "exercises",
        root / "course.yaml",
        root / "autograder" / "oracles",
        Path.home(),
    ]
    places += [root / "autograder" / "runner", root / "emulator", Path(sys.prefix)]
    text = f"import os; print([os.path.exists(p) for p in {[str(p) for p in places]!r}])"
    seen = inside(choose("full"), tmp_path / "work", text)
    visible_home = any(Path.home() in (place, *place.parents) for place in sandbox.interpreter_folders())
    assert seen == str([False, False, False, False, visible_home, True, True, True])


@needs_bubblewrap
def test_a_course_within_pythons_own_folders_is_hidden(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Say the course lies in a conda environment, and the environment of the course lies in the course."""
    prefix = tmp_path / "prefix"
    course, nested = prefix / "course", prefix / "course" / ".venv"
    nested.mkdir(parents=True)
    (course / "solution.py").write_text("x")
    (nested / "library.py").write_text("x")
    found = (*sandbox.interpreter_folders(), prefix, nested)
    monkeypatch.setattr(sandbox, "interpreter_folders", lambda: found)
    code = f"import os; print(os.listdir({str(course)!r}), os.listdir({str(nested)!r}))"
    assert inside(Sandbox(bubblewrap()[0], (course,)), tmp_path / "work", code) == "['.venv'] ['library.py']"


@needs_bubblewrap
def test_a_course_that_is_its_own_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`python -m venv .` in the course folder: Python's folders are seen, the solutions are not."""
    course = tmp_path / "course"
    for name in ("lib", "solutions", ".git"):
        (course / name).mkdir(parents=True)
        (course / name / "file").write_text("x")
    found = (*sandbox.interpreter_folders(), course)
    monkeypatch.setattr(sandbox, "interpreter_folders", lambda: found)
    code = f"import os; print([os.listdir(os.path.join({str(course)!r}, n)) for n in ('lib', 'solutions', '.git')])"
    assert inside(Sandbox(bubblewrap()[0], (course,)), tmp_path / "work", code) == "[['file'], [], []]"


@needs_bubblewrap
def test_only_the_work_folder_is_writable_and_it_is_bounded(tmp_path: Path) -> None:
    code = """
import os, sys
open("mine", "w").write("x")
refused = []
for place in ("/x", "/usr/x", sys.prefix + "/x", "/tmp/x", "/dev/shm/x"):
    try: open(place, "w")
    except OSError: refused.append(place)
print(len(refused), os.statvfs(".").f_blocks * os.statvfs(".").f_frsize >> 20)
"""
    work = tmp_path / "work"
    assert inside(choose("full"), work, code) == f"5 {sandbox.FOLDER_MIB}"
    assert list(work.iterdir()) == [], "the folder is in memory, nothing reaches the disk"


def test_full_isolation_can_be_demanded(
    autograde: Callable[..., Result], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Without bubblewrap, or where it cannot work, that is one clear line and exit status 3; auto takes what there is."""
    broken = tmp_path / "bwrap"
    broken.write_text("#!/bin/sh\necho 'bwrap: setting up uid map: Permission denied' >&2\nexit 1\n")
    broken.chmod(0o755)
    reasons = {None: "there is no bubblewrap", str(broken): "setting up uid map: Permission denied"}
    for program, reason in reasons.items():
        bubblewrap.cache_clear()
        with monkeypatch.context() as patch:
            patch.setattr(shutil, "which", lambda name, program=program: program)
            for command in (["exercise_05", "--solution"], ["batch", "."]):
                result = autograde(*command, "--isolation", "full")
                assert (result.code, one_line(result.err)) == (3, True)
                assert "--isolation full: " in result.err and reason in result.err
            assert choose("auto") == Sandbox()
            (finding,) = [f for f in examine() if f.name == "isolation"]
            assert not finding.good and finding.optional and finding.text.startswith("basic, not full: ")
    bubblewrap.cache_clear()


def test_other_systems_say_what_they_lack(monkeypatch: pytest.MonkeyPatch) -> None:
    bubblewrap.cache_clear()
    monkeypatch.setattr(sys, "platform", "darwin")
    assert choose("auto") == Sandbox()
    with pytest.raises(MachineError, match="darwin has no namespaces"):
        choose("full")
    monkeypatch.undo()
    bubblewrap.cache_clear()


@needs_bubblewrap
def test_doctor_lists_what_is_in_force() -> None:
    findings = {f.name: f for f in examine() if f.name.startswith("isolation")}
    assert findings["isolation"].text == "full"
    assert set(findings) == {"isolation", *(f"isolation, {name}" for name in PROTECTIONS)}
    missing = {name for name, finding in findings.items() if not finding.good}
    assert missing == (set() if available() else {"isolation, system calls"})


def test_every_view_of_a_report_names_the_isolation(autograde: Callable[..., Result]) -> None:
    result = autograde("exercise_05", "--solution", "--quick", "--isolation", "basic", "--json", "-")
    report = GradeReport.model_validate(result.report)
    assert report.isolation is not None and report.isolation.level == "basic"
    assert "namespaces" in report.isolation.missing and "resource limits" in report.isolation.active
    words = "basic isolation; not active: namespaces"
    assert words in html.page(report)
    console = terminal.make_console(True, width=200)
    with console.capture() as shown:
        terminal.show(report, console, True)
    assert words in shown.get()
    assert Isolation(level="full", active=["x"]).sentence() == "full isolation"


def test_the_size_of_a_process_tree() -> None:
    """Processes and memory of all descendants count, of the parent alone too."""
    code = """
import os, sys, time
for _ in range(int(sys.argv[1])):
    if os.fork() == 0:
        if int(sys.argv[2]): held = bytearray(os.urandom(1 << 20) * int(sys.argv[2]))
        print(1, flush=True)
        time.sleep(100)
time.sleep(100)
"""
    if not Path(f"/proc/{os.getpid()}/status").exists():
        pytest.skip("no /proc here")
    for processes, mib, found in ((3, 0, ""), (3, 40, "memory"), (MAX_PROCESSES + 2, 0, "processes")):
        tree = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", code, str(processes), str(mib)],
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        assert tree.stdout is not None
        for _ in range(processes):
            tree.stdout.readline()
        try:
            assert over_limits({tree.pid}, 120) == found
        finally:
            os.killpg(tree.pid, 9)
            tree.wait()
            tree.stdout.close()


ESCAPE = """
import os, sys, time
from autograder.runner.frames import read_frame, encode

def main(channel):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.setsid()
            os.write(channel, encode({"stage": "there"}))
            while True: time.sleep(1)
        time.sleep(60)
    how = read_frame(sys.stdin.buffer).stage
    if how == "leave": os._exit(3)
    time.sleep(60)
"""


@pytest.mark.parametrize("level", ["full", "basic"])
@pytest.mark.parametrize("how", ["leave", "stay"])
def test_children_that_leave_the_group_are_killed_too(tmp_path: Path, level: str, how: str) -> None:
    """Where no filter forbids new processes: a grandchild in a session of its own dies with its tree."""
    if level == "full" and not WORKS:
        pytest.skip(bubblewrap()[1])
    for name in ("autograder", "autograder/runner"):
        (tmp_path / name).mkdir()
        place = sandbox.PACKAGE_ROOT / name
        (tmp_path / name / "__init__.py").write_text(f"__path__.append({str(place)!r})\n")
    (tmp_path / "autograder" / "runner" / "escape.py").write_text(ESCAPE)
    with Pump(choose(level)) as pump:
        child = pump.start("escape", "escape", pump.private_folder("work"), roots=(tmp_path,), confined=True)
        assert pump.receive(child, 60).stage == "there"
        tree = {child.process.pid} | descendants(child.process.pid)
        assert len(tree) >= 3
        pump.send(child, {"stage": how})
        with pytest.raises(ChildEnded) as ended:
            pump.receive(child, 1 if how == "stay" else 60)
        assert ended.value.status == (3 if how == "leave" else None)
        assert not tree & descendants(os.getpid())
        assert not [pid for pid in tree if Path(f"/proc/{pid}").exists()]


def descendants(pid: int) -> set[int]:
    found = set(children(pid))
    return found.union(*(descendants(child) for child in found))
