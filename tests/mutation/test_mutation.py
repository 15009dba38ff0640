"""The mutation benchmark in small: a fixed part of its draw, and the parts that it is made of.

``benchmarks/mutation_benchmark.py`` runs all of it.
"""

from __future__ import annotations

import ast
from functools import cache

import pytest

from emulator import checks
from mutation.equivalent import EQUIVALENT, reason
from mutation.mutants import Mutant, all_mutants, draw
from mutation.operators import OPERATORS
from mutation.runner import LETTER, Outcome, Report, Workers
from mutation.source import Kernel
from mutation.subjects import SUBJECTS

# Small kernels, and those operators that are most often a learner's mistake.
FAST = ("step1", "step4", "ring_scale", "transpose", "named_barriers", "cluster_exchange", "cp_async_ring")
COMMON = (
    "drop_wait",
    "drop_sync",
    "drop_arrive",
    "drop_commit",
    "flip_phase",
    "change_count",
    "change_bytes",
)
SCHEDULES = (("late", 0), ("eager", 0), ("random", 1))


@cache
def whole_draw() -> tuple[Mutant, ...]:
    return tuple(draw())


def fast_draw() -> list[Mutant]:
    drawn = draw(FAST, per_operator=1)
    return [m for m in drawn if m.operator in COMMON and reason(m) is None]


@pytest.fixture(scope="module")
def workers() -> Workers:
    with Workers(timeout=60) as running:
        yield running


def test_common_mistakes_are_caught_on_the_right_line(workers: Workers) -> None:
    mutants = fast_draw()
    assert len(mutants) >= 25
    reported = located = 0
    for mutant in mutants:
        outcome = workers.run(mutant.subject, mutant.text, SCHEDULES)
        assert not outcome.rejected and not outcome.crashed and not outcome.timeout, (mutant.id, outcome)
        assert outcome.caught or outcome.letter, mutant.id
        reported += bool(outcome.strong)
        located += outcome.located(mutant)
    assert reported >= 20 and located >= 0.9 * reported


@pytest.mark.parametrize("name", FAST)
def test_no_false_alarm(workers: Workers, name: str) -> None:
    outcome = workers.run(
        name, SUBJECTS[name].text, [("late", 0), ("eager", 0), ("random", 7), ("random", 8)]
    )
    assert (outcome.rejected, outcome.crashed, outcome.wrong, outcome.reports) == ("", "", [], [])


def test_a_mutant_that_does_not_end_costs_only_its_worker() -> None:
    text = SUBJECTS["split_sum"].text.replace(
        "for p in T.serial(parts):", "while total[0] < T.float32(1e30):"
    )
    text = text.replace("PARTIAL[p, thread]", "PARTIAL[0, thread] * T.float32(0)")
    with Workers(timeout=3) as running:
        assert running.run("split_sum", text, [("late", 0)]).timeout
        assert running.run("split_sum", SUBJECTS["split_sum"].text, [("late", 0)]).reports == []


# ---------------------------------------------------------------------------------------------- the mutants


def test_there_are_enough() -> None:
    drawn = whole_draw()
    assert len(drawn) >= 400 and len({m.subject for m in drawn}) >= 10
    assert {m.operator for m in drawn} == set(OPERATORS)


def test_a_draw_is_reproducible() -> None:
    assert draw(["step5"], 1) == draw(["step5"], 1)
    assert draw(["step5"], 1) != draw(["step5"], 2)


@pytest.mark.parametrize("name", SUBJECTS)
def test_mutants_parse_and_differ_where_they_say(name: str) -> None:
    original = ast.dump(ast.parse(SUBJECTS[name].text))
    mutants = all_mutants(SUBJECTS[name])
    assert len({m.id for m in mutants}) == len(mutants)
    for mutant in mutants[::25]:
        assert ast.dump(ast.parse(mutant.text)) != original, mutant.id
        last = mutant.text.count("\n") + 1
        assert all(1 <= line <= last for line in mutant.changed | mutant.partners), mutant.id


def test_equivalent_mutants_are_in_the_draw() -> None:
    """A judgement goes stale when its statement changes."""
    assert set(EQUIVALENT) <= {m.id for m in whole_draw()}
    assert all(text.endswith(".") for text in EQUIVALENT.values())


def test_lints_against_the_letter_are_documented_codes() -> None:
    assert all(code in (checks.__doc__ or "") for code in LETTER)


# ---------------------------------------------------------------------------------------------- what orders what

SOURCE = """
def build():
    @T.prim_func
    def kernel(A, B):
        full = TMABar(pool, 2)
        tile = pool.alloc((2, 64))
        full.init(1)
        T.cuda.cta_sync()
        if warp == 0:
            full.arrive(0, BYTES)
            Tx.copy_async(tile[0, :], A[:], mbar=full.ptr_to([0]))
        else:
            B[1] = A[1]
        full.wait(0, 0)
        for i in T.serial(4):
            B[i] = tile[0, i]
            T.cuda.cta_sync()
            tile[0, i] = A[i]
"""


def lines(found: list[object]) -> list[int]:
    return sorted(s.node.lineno for s in found)  # type: ignore[attr-defined]


def test_a_statement_orders_what_stands_around_it() -> None:
    kernel = Kernel(SOURCE, "build")
    by_line = {s.node.lineno: s for s in kernel.statements}
    assert {line: by_line[line].kind for line in (7, 8, 10, 11, 14, 16)} == {
        7: "init", 8: "sync", 10: "arrive", 11: "access", 14: "wait", 16: "access",
    }  # fmt: skip
    assert lines(kernel.neighbours(by_line[8])) == [7, 11, 13]
    assert lines(kernel.neighbours(by_line[14])) == [11, 13, 16]
    assert lines(kernel.neighbours(by_line[17])) == [
        16,
        18,
    ]  # through the end of the loop, and not past the wait
    assert lines(kernel.neighbours(by_line[10])) == [7, 11] or 13 not in lines(kernel.neighbours(by_line[10]))
    assert lines(kernel.same_barrier(by_line[14])) == [10, 11]


def test_right_line_means_the_statement_or_what_it_ordered() -> None:
    mutant = Mutant("m", "s", "drop_wait", "", 14, "", frozenset({14}), frozenset({11, 16}))
    race = Report("race.smem.write-read", "race", (16, 11), "")
    other = Report("deadlock", "error", (99,), "")
    lint = Report("tcgen05.missing-fence", "lint", (14,), "")
    assert Outcome(reports=[other, race]).located(mutant)
    assert not Outcome(reports=[other, race]).located(mutant, first_only=True)
    assert not Outcome(reports=[other, lint]).located(mutant)
    assert Outcome(reports=[lint]).letter and not Outcome(reports=[lint]).caught
