"""Figures that show behaviour are what the emulator draws today."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest


@pytest.fixture(scope="module")
def tool(load_tool: Callable[[str], ModuleType]) -> ModuleType:
    return load_tool("order_figure")


def test_figures_are_up_to_date(tool: ModuleType) -> None:
    assert tool.main(["--check"]) == 0, "run: python tools/order_figure.py"


def test_a_stale_figure_is_found(
    tool: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    draw = tool.draw

    def drawn_differently(figure: Any, bars: Any) -> str:
        return str(draw(figure, bars)).replace("MMA 0", "MMA 9")

    monkeypatch.setattr(tool, "draw", drawn_differently)
    assert tool.main(["--check"]) == 1
    assert "exercise_06/figures/order_of_events.svg is not what" in capsys.readouterr().out


def test_nothing_stays_patched(tool: ModuleType) -> None:
    from emulator.scheduler import Machine

    before = Machine.issue, Machine.step
    with pytest.raises(RuntimeError), tool.recorded(1):
        raise RuntimeError
    assert (Machine.issue, Machine.step) == before
