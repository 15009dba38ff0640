"""The rule functions of barrier_protocol and memory_safety: each rule once kept and once broken."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

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


@pytest.mark.parametrize(
    ("offset", "count", "existing", "expected"),
    [
        (8, 1, None, ""),
        (12, 1, None, "mbarrier.misaligned"),
        (8, 0, None, "mbarrier.bad-count"),
        (8, 1 << 20, None, "mbarrier.bad-count"),
        (8, (1 << 20) - 1, None, ""),
        (8, 1, Bar(), ""),
        (8, 1, Bar(pending=3), "mbarrier.reinit-in-use"),
        (8, 1, Bar(tx=-64), "mbarrier.reinit-in-use"),
    ],
)
def test_init(offset: int, count: int, existing: Bar | None, expected: str) -> None:
    assert code(protocol.mbarrier_init(offset, count, existing)) == expected


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


@pytest.mark.parametrize(
    ("parity", "expected"), [(0, ""), (1, ""), (2, "mbarrier.bad-parity"), (-1, "mbarrier.bad-parity")]
)
def test_parity(parity: int, expected: str) -> None:
    assert code(protocol.mbarrier_parity(Bar(), parity)) == expected


@pytest.mark.parametrize(
    ("barrier_id", "threads", "others", "expected"),
    [
        (0, None, None, ""),
        (15, 128, 128, ""),
        (16, 128, None, "barrier.bad-id"),
        (1, 100, None, "barrier.bad-count"),
        (1, 0, None, "barrier.bad-count"),
        (1, 512, None, "barrier.count-too-large"),
        (1, 64, 128, "barrier.mixed-counts"),
        (1, None, 128, "barrier.mixed-counts"),
    ],
)
def test_named_barriers(barrier_id: int, threads: int | None, others: int | None, expected: str) -> None:
    assert code(protocol.named_barrier(barrier_id, threads, others, 256)) == expected


def test_bounds() -> None:
    addr = np.arange(32) * 4
    assert code(memory.lane_bounds("smem", addr, 4, 128, "st.shared")) == ""
    over = memory.lane_bounds("gmem", addr + 8, 4, 128, "ld.global", "A")
    assert code(over) == "gmem.out-of-bounds" and over is not None
    assert over.data == {"first_byte": 128, "size": 128, "count": 2} and "`A`" in over.message
    assert code(memory.lane_bounds("smem", -4, 4, 128, "ld.shared")) == "smem.out-of-bounds"
    assert code(memory.view_bounds(1024 + addr, 4, ("Asmem", 1024, 1152), "st.shared")) == ""
    outside = memory.view_bounds(1020 + addr, 4, ("Asmem", 1024, 1152), "st.shared")
    assert code(outside) == "smem.outside-view" and outside is not None and outside.data["first_byte"] == -4


@pytest.mark.parametrize(
    ("what", "addr", "nbytes", "expected"),
    [
        ("cp.async.bulk.tensor", 1024, 0, ""),
        ("cp.async.bulk.tensor", 1040, 0, "smem.misaligned"),
        ("cp.async.bulk", 1040, 0, ""),
        ("mbarrier", 12, 0, "smem.misaligned"),
        ("ld.global", 24, 16, "memory.misaligned"),
        ("ld.global", 32, 16, ""),
    ],
)
def test_alignment(what: str, addr: int, nbytes: int, expected: str) -> None:
    assert code(memory.alignment(what, addr, nbytes)) == expected


def test_bulk_sizes() -> None:
    assert [code(memory.bulk_size(n)) for n in (16, 0, 24)] == ["", "bulk.bad-size", "bulk.bad-size"]


def test_tmem_columns_and_lanes() -> None:
    held = [(0, 128), (256, 64)]
    assert code(memory.tmem_columns(64, 64, held, "tcgen05.ld")) == ""
    assert code(memory.tmem_columns(64, 65, held, "tcgen05.ld")) == "tmem.not-allocated"
    assert code(memory.tmem_columns(500, 32, held, "tcgen05.ld")) == "tmem.out-of-bounds"
    assert code(memory.tmem_lanes(6, 64)) == code(memory.tmem_lanes(6, 16)) == ""
    assert code(memory.tmem_lanes(6, 32)) == "tmem.wrong-lanes"


def test_tmem_allocation() -> None:
    assert [code(memory.tmem_alloc(n, False)) for n in (32, 48, 16, 1024)] == ["", *["tmem.bad-size"] * 3]
    assert code(memory.tmem_alloc(64, True)) == "tmem.alloc-after-relinquish"
    held = {0: (128, 1)}
    assert code(memory.tmem_dealloc(0, 128, 1, held)) == ""
    assert (
        code(memory.tmem_dealloc(0, 64, 1, held))
        == code(memory.tmem_dealloc(32, 128, 1, held))
        == "tmem.bad-dealloc"
    )
    assert code(memory.tmem_dealloc(0, 128, 2, held)) == "tmem.mixed-cta-group"
    assert code(memory.tmem_leak({})) == "" and code(memory.tmem_leak(held)) == "tmem.leak"


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
