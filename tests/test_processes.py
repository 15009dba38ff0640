"""How the tests are spread over processes: what a file sets up is set up once."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

SUITE = """
import os, pytest

@pytest.fixture(scope="module")
def once():
    with open({log!r}, "a") as log:
        log.write(f"{{__name__}} {{os.getpid()}}\\n")

@pytest.mark.parametrize("what", {what!r})
def test_one(once, what):
    import time
    time.sleep(0.05)
"""


def test_a_file_is_set_up_once(tmp_path: Path) -> None:
    log = tmp_path / "log"
    shutil.copy(Path(__file__).with_name("conftest.py"), tmp_path)
    for name in ("test_a", "test_b", "test_c"):
        what = [str(number) for number in range(5)]
        (tmp_path / f"{name}.py").write_text(SUITE.format(log=str(log), what=what))
    mutants = [f"exercise_{number:02}/{name}" for number in (1, 2) for name in "abc"]
    (tmp_path / "test_mutants.py").write_text(SUITE.format(log=str(log), what=mutants))
    command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "-p", "no:cacheprovider", str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0 and "21 passed" in done.stdout, done.stdout
    seen = [line.split() for line in log.read_text().splitlines()]
    assert sorted(name for name, _ in seen if name != "test_mutants") == ["test_a", "test_b", "test_c"]
    assert len({process for _, process in seen}) == 2
    assert 1 <= sum(name == "test_mutants" for name, _ in seen) <= 2
