"""The figures of exercise 12 are what the emulator draws today."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import pytest


@pytest.fixture(scope="module")
def tool(load_tool: Callable[[str], ModuleType]) -> ModuleType:
    return load_tool("consumer_figures")


def test_figures_are_up_to_date(tool: ModuleType) -> None:
    assert tool.main(["--check"]) == 0, "run: python tools/consumer_figures.py"


def test_a_stale_figure_is_found(
    tool: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    blank = {"events.svg": tool.Drawing(1, 1, "", "")}
    monkeypatch.setattr(tool, "figures", lambda scratch: blank)
    assert tool.main(["--check"]) == 1
    assert "exercise_12/figures/events.svg is not what" in capsys.readouterr().out


def test_overlap_is_told_from_its_absence(tool: ModuleType) -> None:
    """Consumer 0's first MMA of the next tile: while write-back has accumulator 1, or after that."""
    full, empty, mma = (
        tool.Mark("acc_full[1]", 0, ""),
        tool.Mark("acc_empty[1]", 0, ""),
        tool.Mark("mma 0", 1, "0"),
    )
    rest = [tool.Mark(name, tile, "") for tile in (1, 2) for name in ("acc_full[1]", "acc_empty[1]")]
    assert tool.overlaps([full, mma, empty, *rest])
    assert not tool.overlaps([full, empty, mma, *rest])
