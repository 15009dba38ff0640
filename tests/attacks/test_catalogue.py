"""docs/integrity.md names a test for every attack, and each of them exists."""

from __future__ import annotations

import re
from pathlib import Path

HERE = Path(__file__).resolve().parent
PAGE = HERE.parents[1] / "docs" / "integrity.md"


def rows() -> dict[str, str]:
    """Number of an attack -> the test that tries it."""
    text = (
        PAGE.read_text(encoding="utf-8").split("<!-- attacks: begin -->")[1].split("<!-- attacks: end -->")[0]
    )
    found = re.findall(r"^\| ([AB]\d+) \|.*\| `([^`]+)` \|$", text, re.MULTILINE)
    assert len(found) == len(dict(found)), "a number occurs twice"
    return dict(found)


def test_every_attack_has_a_test() -> None:
    found = rows()
    assert [number for number in found if number[0] == "A"] == [f"A{n}" for n in range(1, 53)]
    own = [number for number in found if number[0] == "B"]
    assert own == [f"B{n}" for n in range(1, len(own) + 1)] and len(own) >= 15
    for number, test in found.items():
        file, name = test.split("::")
        assert f"def {name}(" in (HERE / file).read_text(encoding="utf-8"), (number, test)


def test_every_attack_of_this_folder_is_on_the_page() -> None:
    """A new test file, or an attack that nobody named, is noticed."""
    files = {test.split("::")[0] for test in rows().values()}
    mine = {p.name for p in HERE.glob("test_*.py")} - {"test_catalogue.py", "test_faults.py"}
    assert mine <= files
