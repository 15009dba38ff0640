"""A released exercise in a real JupyterLab, in a real browser, by mouse and keyboard: wrong first, then right, and the pictures.

Chromium comes from the system (Debian: `apt-get install chromium`). Screenshots are kept in build/screenshots.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
SHOTS = REPOSITORY / "build" / "screenshots"
EXERCISE = "exercise_02"
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
TOKEN = "desk"
SECONDS = 120

pytestmark = [
    pytest.mark.skipif(BROWSER is None, reason="no browser here: install Debian's chromium to run this test"),
    pytest.mark.skipif(
        not (importlib.util.find_spec("jupyterlab") and importlib.util.find_spec("playwright")),
        reason="JupyterLab or Playwright is not installed: pip install -e '.[dev]'",
    ),
]


def cell_of(path: Path, grade_id: str) -> str:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    (cell,) = (c for c in cells if c["metadata"].get("nbgrader", {}).get("grade_id") == grade_id)
    return "".join(cell["source"])


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """(address, course folder) of a running JupyterLab that holds what a learner gets: no solutions."""
    root = tmp_path_factory.mktemp("course")
    shutil.copy(REPOSITORY / "course.yaml", root)
    shutil.copytree(REPOSITORY / "exercises" / EXERCISE, root / "exercises" / EXERCISE)
    runtime = tmp_path_factory.mktemp("jupyter")
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH")])),
        "JUPYTER_RUNTIME_DIR": str(runtime),
        "JUPYTER_CONFIG_DIR": str(runtime / "config"),
        "IPYTHONDIR": str(runtime / "ipython"),
        "CUDA_VISIBLE_DEVICES": "",
    }
    options = ["--no-browser", "--ip=127.0.0.1", "--port=0", "--allow-root", "--expose-app-in-browser"]
    settings = runtime / "config/labconfig"
    settings.mkdir(parents=True)
    (settings / "page_config.json").write_text(
        '{"disabledExtensions": {"@jupyterlab/apputils-extension:announcements": true}}', encoding="utf-8"
    )
    command = [sys.executable, "-m", "jupyterlab", *options, f"--IdentityProvider.token={TOKEN}"]
    log = (runtime / "log").open("w+")
    server = subprocess.Popen(command, cwd=root, env=environment, stdout=log, stderr=subprocess.STDOUT)
    try:
        yield _address(runtime, server), root
    finally:
        server.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.wait(timeout=20)
        server.kill()


def _address(runtime: Path, server: subprocess.Popen[bytes]) -> str:
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline and server.poll() is None:
        for path in runtime.glob("jpserver-*.json"):
            with contextlib.suppress(OSError, ValueError):
                url = str(json.loads(path.read_text())["url"])
                urllib.request.urlopen(f"{url}api/status?token={TOKEN}", timeout=5).read()
                return url
        time.sleep(0.3)
    pytest.fail((runtime / "log").read_text()[-2000:])


class Notebook:
    """The open notebook, used as a person does: click, type, Shift+Enter, look."""

    def __init__(self, page: Any) -> None:
        self.page = page

    def open(self, url: str) -> None:
        self.page.goto(f"{url}lab/tree/exercises/{EXERCISE}/{EXERCISE}.ipynb?token={TOKEN}", timeout=120_000)
        self.page.wait_for_selector(".jp-Notebook .jp-Cell", timeout=120_000)
        ready = "window.jupyterapp.shell.currentWidget?.sessionContext?.session?.kernel?.status === 'idle'"
        self.page.wait_for_function(ready, timeout=120_000)

    def select(self, grade_id: str) -> None:
        """Scroll to a cell and make it the active one."""
        found = self.page.evaluate(
            """async id => { const n = window.jupyterapp.shell.currentWidget.content;
            const i = n.widgets.findIndex(w => (w.model.getMetadata('nbgrader') || {}).grade_id === id);
            n.activeCellIndex = i; n.mode = 'command'; await n.scrollToItem(i); n.node.focus(); return i; }""",
            grade_id,
        )
        assert found >= 0, f"no cell {grade_id}"

    def select_next(self, grade_id: str) -> None:
        """The cell after the one with this id."""
        self.select(grade_id)
        self.page.keyboard.press("ArrowDown")

    def paste(self, text: str) -> None:
        """Replace the text of the active cell."""
        self.page.keyboard.press("Enter")
        self.page.keyboard.press("Control+a")
        self.page.keyboard.insert_text(text)
        self.page.keyboard.press("Escape")

    def run(self) -> None:
        """Run the active cell and wait until the kernel is idle; stays on the cell."""
        self.page.keyboard.press("Control+Enter")
        self.page.wait_for_timeout(500)
        idle = "window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.status === 'idle'"
        self.page.wait_for_function(idle, timeout=180_000)

    def output(self) -> Any:
        """What the active cell shows."""
        return self.page.locator(".jp-Notebook .jp-Cell.jp-mod-active .jp-OutputArea")

    def expect(self, text: str) -> None:
        from playwright.sync_api import TimeoutError as TimedOut

        try:
            self.output().get_by_text(re.compile(text)).first.wait_for(timeout=SECONDS * 1000)
        except TimedOut:
            self.shot("failed")
            pytest.fail(f"no {text!r} in the output:\n{self.output().first.inner_text()[:3000]}")

    def shot(self, name: str, of: Any = None) -> None:
        """Keep a picture of the window, with an element (by default whatever there is) in view."""
        SHOTS.mkdir(parents=True, exist_ok=True)
        if of is not None:
            of.evaluate("e => e.scrollIntoView({block: 'start'})")
        self.page.wait_for_timeout(300)
        self.page.screenshot(path=str(SHOTS / f"{name}.png"))


@pytest.fixture
def notebook(lab: tuple[str, Path]) -> Iterator[Notebook]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as player:
        options = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        browser = player.chromium.launch(executable_path=BROWSER, args=options)
        page = browser.new_page(viewport={"width": 1280, "height": 1000})
        yield Notebook(page)
        browser.close()


def test_a_whole_exercise_without_a_terminal(notebook: Notebook, lab: tuple[str, Path]) -> None:
    url, root = lab
    notebook.open(url)
    notebook.shot("1_as_released")

    # The stub, run as it is: kindly refused.
    notebook.select("kernel")
    notebook.run()
    notebook.select_next("try")
    notebook.run()
    notebook.expect("still the released stub")
    notebook.expect("0 of 100 points")
    assert "Traceback" not in notebook.output().inner_text()
    notebook.shot("2_the_stub")

    # A hint, in a cell of the learner's own.
    notebook.page.keyboard.press("b")
    notebook.paste("from autograder.notebook import check, hint, reset, step, timeline\n\nhint(1)")
    notebook.run()
    notebook.expect("hint 1 of 3")
    notebook.shot("3_a_hint")

    # The solution, without its proxy fence: the right numbers, and a finding.
    solution = REPOSITORY / "solutions" / EXERCISE / f"{EXERCISE}.ipynb"
    kernel = cell_of(solution, "kernel")
    fences = [
        line for line in kernel.splitlines() if "fence.proxy.async" in line or "fence_proxy_async" in line
    ]
    assert fences, "the solution has changed: which line is the proxy fence?"
    notebook.select("answers")
    notebook.paste(cell_of(solution, "answers"))
    notebook.run()
    notebook.select("kernel")
    notebook.paste(kernel.replace(fences[0].strip(), "pass"))
    notebook.run()
    notebook.select_next("try")
    notebook.run()
    notebook.expect("missing-fence")
    notebook.shot("4_a_finding")

    # The solution: full marks.
    seen: list[str] = []
    notebook.page.on("request", lambda request: seen.append(request.url))
    notebook.select("kernel")
    notebook.paste(kernel)
    notebook.run()
    notebook.select_next("try")
    notebook.run()
    notebook.expect("100 of 100 points")
    notebook.shot("5_full_marks")
    notebook.select("correctness")
    notebook.run()
    notebook.expect("Correctness")

    # The timeline, and a walk through the run by keyboard.
    notebook.select_next("try")
    notebook.page.keyboard.press("b")
    notebook.paste("timeline()")
    notebook.run()
    picture = notebook.output().locator("svg").first
    picture.wait_for(timeout=180_000)
    notebook.shot("6_timeline", picture)
    notebook.page.keyboard.press("b")
    notebook.paste("step()")
    notebook.run()
    notebook.expect("step 1 of ")
    section = notebook.output().locator("section[aria-label^='Step through']")
    section.focus()
    notebook.page.keyboard.press("ArrowRight")
    notebook.expect("step 2 of ")
    notebook.page.keyboard.press("End")
    assert re.search(r"step (\d+) of \1:", section.inner_text()), "the last one"
    notebook.page.keyboard.press("Home")
    options = section.locator("option").all_inner_texts()
    (barrier,) = (text for text in options if text.startswith("barrier") and text.endswith("[0]"))
    section.locator("select").select_option(label=barrier)
    section.get_by_role("button", name="on").click()
    assert re.search(r"step \d+ of", section.inner_text())
    notebook.shot("7_step", section)

    strangers = [
        address for address in seen if not address.startswith((url, "data:", "blob:", "ws://127.0.0.1"))
    ]
    assert not strangers, "a report loads something from the network"
    reached = json.loads((root / ".autograde/progress.json").read_text())
    assert reached["reached"][EXERCISE]["full_marks"] and reached["hints"] == {EXERCISE: 1}
    assert list((root / ".autograde/checkpoints" / EXERCISE).iterdir()), "what passed is kept"


CELLS_AT_THE_END = ("from autograder.notebook import step, timeline\ntimeline()", "step()")
OTHERS = {"notebook": "notebooks", "nbclassic": "nbclassic/notebooks"}


@pytest.mark.parametrize("package", OTHERS)
def test_a_solved_notebook_in_other_programs(notebook: Notebook, lab: tuple[str, Path], package: str) -> None:
    """Jupyter Notebook 7 and, where it is installed, the classic notebook: the report, the timeline and the steps are the same."""
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    url, root = lab
    course = root / package
    course.mkdir()
    shutil.copy(REPOSITORY / "course.yaml", course)
    folder = course / "exercises" / EXERCISE
    shutil.copytree(REPOSITORY / "exercises" / EXERCISE, folder)
    path = folder / f"{EXERCISE}.ipynb"
    document = json.loads(path.read_text(encoding="utf-8"))
    for cell in document["cells"]:
        grade_id = cell["metadata"].get("nbgrader", {}).get("grade_id")
        if grade_id in ("kernel", "answers"):
            cell["source"] = cell_of(REPOSITORY / "solutions" / EXERCISE / f"{EXERCISE}.ipynb", grade_id)
    scored = [c for c in document["cells"] if c["metadata"].get("nbgrader", {}).get("grade")]
    document["cells"] = [cell for cell in document["cells"] if cell not in scored[1:]]
    code = {"cell_type": "code", "execution_count": None, "metadata": {}, "outputs": []}
    document["cells"] += [
        {**code, "id": f"more-{n}", "source": text} for n, text in enumerate(CELLS_AT_THE_END)
    ]
    path.write_text(json.dumps(document), encoding="utf-8")
    page = notebook.page
    address = f"{url}{OTHERS[package]}/{path.relative_to(root).as_posix()}?token={TOKEN}"
    page.goto(address, timeout=120_000)
    if package == "nbclassic":
        page.wait_for_function("window.Jupyter?.notebook?.kernel?.is_connected()", timeout=120_000)
        page.evaluate("Jupyter.notebook.execute_all_cells()")
    else:
        idle = ".jp-Notebook-ExecutionIndicator[data-status='idle']"
        page.wait_for_selector(idle, state="attached", timeout=120_000)
        begun = page.locator(".jp-InputPrompt").filter(has_text=re.compile(r"\[[*\d]"))
        deadline = time.monotonic() + SECONDS
        while (
            not begun.count() and time.monotonic() < deadline
        ):  # until the kernel is connected, nothing happens
            page.get_by_role("menuitem", name="Run", exact=True).click()
            page.get_by_role("menuitem", name=re.compile("^Run All Cells")).first.click()
            page.wait_for_timeout(3000)
    section = page.locator("section[aria-label^='Step through']").last
    try:
        section.get_by_text(re.compile("step 1 of ")).first.wait_for(timeout=300_000)
        assert page.get_by_text("100 of 100 points").first.is_visible()
        page.locator(".jp-OutputArea svg, .output_area svg").first.wait_for(state="attached")
    finally:
        notebook.shot(f"10_{package}", section if section.count() else None)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_report_page_in_light_and_dark(notebook: Notebook, scheme: str, tmp_path: Path) -> None:
    """Text and ground differ enough in both, and nothing is wider than a small window."""
    from autograder.report.html import page as html_page

    spec = importlib.util.spec_from_file_location("desk_html", Path(__file__).with_name("test_html.py"))
    assert spec is not None and spec.loader is not None
    examples = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(examples)
    path = tmp_path / "report.html"
    path.write_text(html_page(examples.a_report()), encoding="utf-8")
    page = notebook.page
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size({"width": 480, "height": 900})
    page.goto(path.as_uri())
    style = "e => { const s = getComputedStyle(document.body); return [s.color, s.backgroundColor]; }"
    text, ground = (sum(map(int, re.findall(r"\d+", colour)[:3])) for colour in page.evaluate(style, None))
    assert (ground - text > 500) if scheme == "light" else (text - ground > 500)
    notebook.shot(f"8_report_{scheme}")
    if scheme == "light":
        page.emulate_media(media="print")
        page.pdf(path=str(SHOTS / "9_report_printed.pdf"))
