"""The course site builds without a warning, its links lead somewhere, and it holds no solution."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
import yaml

COURSE = Path(__file__).resolve().parents[2]
EXERCISES = [
    e["id"] for e in yaml.safe_load((COURSE / "course.yaml").read_text(encoding="utf-8"))["exercises"]
]
RELEASED = [name for name in EXERCISES if (COURSE / "exercises" / name).is_dir()]

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("sphinx") is None or importlib.util.find_spec("furo") is None,
    reason="the site's tools are not installed (pip install -e '.[docs]')",
)


class Page(HTMLParser):
    """Links, images and anchors of one HTML page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.anchors: set[str] = set()
        self.without_alt: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if values.get("id"):
            self.anchors.add(str(values["id"]))
        if tag == "a" and values.get("href"):
            self.links.append(str(values["href"]))
        if tag in ("img", "script", "iframe") and values.get("src"):
            self.loads.append(str(values["src"]))
        if tag == "link" and values.get("rel") == "stylesheet":
            self.loads.append(str(values["href"]))
        if tag == "img" and not values.get("alt"):
            self.without_alt.append(str(values.get("src")))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html", "docs", str(out)]
    done = subprocess.run(command, cwd=COURSE, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return out


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    return {path: Page(path) for path in site.rglob("*.html") if "_static" not in path.parts}


def test_every_released_exercise_has_a_lesson(site: Path) -> None:
    assert RELEASED
    assert [name for name in RELEASED if not (site / "lessons" / name / "index.html").is_file()] == []


def test_internal_links_and_images_exist(pages: dict[Path, Page]) -> None:
    dead = []
    for path, page in pages.items():
        for link in page.links + page.loads:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not target.exists():
                dead.append(f"{path.name}: {link}")
            elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].anchors:
                dead.append(f"{path.name}: {link} (no such anchor)")
    assert dead == []


def test_a_page_loads_nothing_from_the_network(pages: dict[Path, Page]) -> None:
    assert [load for page in pages.values() for load in page.loads if urlsplit(load).netloc] == []


def test_every_picture_has_a_text(pages: dict[Path, Page]) -> None:
    assert {path.parent.name: page.without_alt for path, page in pages.items() if page.without_alt} == {}


def test_lessons_show_stubs_and_no_solution(site: Path) -> None:
    for name in RELEASED:
        html = (site / "lessons" / name / "index.html").read_text(encoding="utf-8")
        text = re.sub(r"<[^>]+>", "", html)
        assert "YOUR CODE HERE" in text, name
        assert "BEGIN SOLUTION" not in text and "BEGIN HIDDEN" not in text, name


def test_commands_are_described(site: Path) -> None:
    from autograder.cli import cli

    text = (site / "commands.html").read_text(encoding="utf-8")
    for name, command in cli.commands.items():
        if not command.hidden or name == "grade":
            assert f"autograde-{name}" in text, name
