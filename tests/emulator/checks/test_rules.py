"""The rule functions of barrier_protocol and memory_safety: each rule once kept and once broken."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from emulator.checks import barrier_protocol as protocol
from emulator.checks import memory_safety as memory
from emulator.checks.findings import Problem, SourceLocation


@dataclass
class Bar:
    expected: int = 4
    pending: int = 4
    tx: int = 0
    generation: int = 0
    name: str = "full[0]"


def code(problem: Problem | None) -> str:
    if problem is None:
        return ""
    assert problem.message.endswith(".") and problem.fix.endswith(".")
    return problem.code


def test_arrivals_and_bytes() -> None:
    assert code(protocol.mbarrier_arrive(Bar(), 4)) == ""
    over = protocol.mbarrier_arrive(Bar(pending=1), 2)
    assert code(over) == "mbarrier.too-many-arrivals" and over is not None and "5 arrivals" in over.message
    assert code(protocol.mbarrier_bytes(Bar(tx=-4096))) == ""  # copies may complete before expect_tx
    assert code(protocol.mbarrier_bytes(Bar(pending=0, tx=4096))) == ""
    assert code(protocol.mbarrier_bytes(Bar(pending=0, tx=-4096))) == "mbarrier.over-delivery"
    assert code(protocol.mbarrier_bytes(Bar(tx=1 << 20))) == "mbarrier.tx-overflow"
    assert code(protocol.mbarrier_bytes(Bar(tx=(1 << 20) - 1))) == ""
    assert code(protocol.mbarrier_completion(Bar(), 0)) == ""
    assert code(protocol.mbarrier_completion(Bar(), 512)) == "mbarrier.early-completion"


def test_bounds_of_a_view() -> None:
    addr = np.arange(32) * 4
    assert code(memory.view_bounds(1024 + addr, 4, ("Asmem", 1024, 1152), "st.shared")) == ""
    outside = memory.view_bounds(1020 + addr, 4, ("Asmem", 1024, 1152), "st.shared")
    assert code(outside) == "smem.outside-view" and outside is not None and outside.data["first_byte"] == -4


def test_registers() -> None:
    assert code(memory.setmaxnreg(240, "inc", [240, 240, 24])) == ""
    assert code(memory.setmaxnreg(240, "inc", [240, 240, 128])) == "setmaxnreg.pool-exceeded"
    assert code(memory.setmaxnreg(232, "inc", [232, 104], 128 * 2 * 168)) == ""
    assert code(memory.setmaxnreg(240, "inc", [240, 104], 128 * 2 * 168)) == "setmaxnreg.pool-exceeded"
    assert [memory.launch_registers(n) for n in (128, 256, 384, 512)] == [256, 256, 168, 128]
    assert [code(memory.setmaxnreg(n, "dec", [])) for n in (20, 30, 264)] == ["setmaxnreg.bad-count"] * 3


def test_a_problem_becomes_a_finding_at_a_place() -> None:
    here = SourceLocation("k.py", 3)
    problem = protocol.mbarrier_arrive(Bar(), 5)
    assert problem is not None
    finding = problem.at((here, None, here), ("full[0]",), 2, (1,))
    assert finding.locations == (here,) and finding.cta == 2 and finding.code == problem.code
