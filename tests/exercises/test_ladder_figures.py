"""The figures of exercises 09 to 11 are what the emulator draws today."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import pytest


@pytest.fixture(scope="module")
def tool(load_tool: Callable[[str], ModuleType]) -> ModuleType:
    return load_tool("ladder_figures")


def test_figures_are_up_to_date(tool: ModuleType) -> None:
    assert tool.main(["--check"]) == 0, "run: python tools/ladder_figures.py"


def test_a_stale_figure_is_found(
    tool: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    blank = {"order.svg": tool.Drawing(1, 1, "", "")}
    monkeypatch.setattr(tool, "EXERCISES", {"exercise_09": lambda folder: blank})
    assert tool.main(["--check"]) == 1
    assert "exercise_09/figures/order.svg is not what" in capsys.readouterr().out


def test_nothing_stays_patched(tool: ModuleType) -> None:
    from emulator.machine.mbarrier import Mbarrier
    from emulator.scheduler import Machine

    before = Machine.issue, Mbarrier.update
    with pytest.raises(RuntimeError), tool.recording([]):
        raise RuntimeError
    assert (Machine.issue, Mbarrier.update) == before
