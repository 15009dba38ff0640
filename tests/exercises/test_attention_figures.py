"""The figures of exercise 15 are what the emulator draws today."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import pytest


@pytest.fixture(scope="module")
def tool(load_tool: Callable[[str], ModuleType]) -> ModuleType:
    return load_tool("attention_figures")


def test_figures_are_up_to_date(tool: ModuleType) -> None:
    assert tool.main(["--check"]) == 0, "run: python tools/attention_figures.py"


def test_a_stale_figure_is_found(
    tool: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tool, "figures", lambda scratch: {"roles.svg": tool.Drawing(1, 1, "", "")})
    assert tool.main(["--check"]) == 1
    assert "exercise_15/figures/roles.svg is not what" in capsys.readouterr().out


def test_who_writes_and_reads_a_column(tool: ModuleType) -> None:
    """S until softmax has read it, P over it until P V has read it, O through products and rescales."""

    def touch(first: int, write: bool, fresh: bool, start: int, warp: int) -> object:
        return tool.Touch(tool.Columns(first, 16, write, fresh), start, start + 1, warp)

    scores = [touch(0, True, True, 0, 12), touch(0, False, False, 4, 0)]
    weights = [touch(0, True, True, 6, 0), touch(0, False, False, 9, 12)]
    assert tool.lives([*scores, *weights], 0) == [tool.Life("S", 0, 5), tool.Life("P", 6, 10)]
    product, more = touch(256, True, True, 0, 12), touch(256, True, False, 8, 12)
    rescale = touch(256, True, True, 5, 8)
    assert tool.lives([product, rescale, more], 32) == [tool.Life("O", 0, 9)]


def test_an_arrival_count_that_does_not_add_up_is_no_figure(tool: ModuleType) -> None:
    """A barrier that expects more than what its roles bring per phase."""
    trace = tool.ClusterTrace(0, 1, names={(0, 0): "p_rest[0]"})
    strand = {"events": [("init", -1, (0, 0), 64), ("arrive", -1, (0, 0), 32, 0)]}
    trace.strands.append(type("Strand", (), {"warps": (0,), **strand})())
    with pytest.raises(AssertionError, match=r"p_rest\[0\]"):
        tool.barriers(tool.Recorded(trace, [], {}, {}))
