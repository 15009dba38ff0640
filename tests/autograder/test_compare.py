"""Inputs and comparison: right outputs pass, one wrong element fails, and mistakes are named."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from autograder.compare import allowed_interval, compare, fill_pattern
from autograder.course import Exercise
from autograder.inputs import FAMILIES, generator
from autograder.oracles import Reference

SHAPES = [(128, 64), (128, 64)]
F16 = np.dtype(np.float16)
GEMM_FAMILIES = ["large", "normal", "one_hot", "signed_zeros"]  # made for A (M, K) and B (N, K) of D = A B^T


def inputs(family: str, seed: int = 3) -> list[Any]:
    return [a.astype(F16).astype(np.float64) for a in FAMILIES[family](generator(seed, family), SHAPES)]


def interval(family: str, exercise: Exercise, seed: int = 3) -> tuple[Any, Any, Any]:
    a, b = inputs(family, seed)
    return allowed_interval(
        Reference(a @ b.T, np.abs(a) @ np.abs(b).T), 64, exercise.tolerance.accumulate_eps, F16
    )


def fp32_sum(family: str, order: Any, seed: int = 3) -> Any:
    """The output of a kernel that adds the products in fp32 one after the other, in a given order."""
    a, b = inputs(family, seed)
    total = np.zeros((128, 128), np.float32)
    for k in order:
        total += (a[:, k, None] * b[None, :, k]).astype(np.float32)
    return total.astype(F16)


@pytest.mark.parametrize("family", GEMM_FAMILIES)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_every_order_of_an_fp32_sum_is_right(exercise: Exercise, family: str, seed: int) -> None:
    allowed = interval(family, exercise, seed)
    orders = [range(64), reversed(range(64)), np.random.default_rng(seed).permutation(64)]
    for order in orders:
        assert compare(fp32_sum(family, order, seed), *allowed).mismatches == 0


@pytest.mark.parametrize("family", GEMM_FAMILIES)
def test_degenerate_outputs_are_wrong(exercise: Exercise, family: str) -> None:
    """Zeros, an untouched output, a copy of an input, a constant, and NaN everywhere."""
    expected, low, high = interval(family, exercise)
    a, b = inputs(family)
    for output in (
        np.zeros((128, 128)),
        np.full((128, 128), fill_pattern(F16)),
        np.concatenate([a, a], axis=1),
        np.concatenate([b, b], axis=1),
        np.full((128, 128), expected.astype(np.float64).mean()),
        np.full((128, 128), np.nan),
        np.full((128, 128), np.inf),
    ):
        assert compare(output.astype(F16), expected, low, high).mismatches > 8000


@pytest.mark.parametrize("family", GEMM_FAMILIES)
def test_one_wrong_element_is_found_anywhere(exercise: Exercise, family: str) -> None:
    allowed = interval(family, exercise)
    right = fp32_sum(family, range(64))
    for index in [(0, 0), (127, 127), (5, 77)]:
        wrong = right.copy()
        wrong[index] = np.nextafter(allowed[2][index], F16.type(np.inf), dtype=F16)
        seen = compare(wrong, *allowed)
        assert seen.mismatches == 1
        assert seen.first is not None
        assert seen.first["index"] == list(index)
        assert (seen.elements, seen.compared) == (16384, 16384)


@pytest.mark.parametrize("family", ["normal", "large", "signed_zeros"])
def test_narrow_arithmetic_is_wrong(exercise: Exercise, family: str) -> None:
    """A truncating cast, a bfloat16 output, and an fp16 accumulator."""
    import ml_dtypes

    a, b = inputs(family)
    allowed = interval(family, exercise)
    exact = a @ b.T
    rounded = exact.astype(F16)
    truncated = np.where(np.abs(rounded) > np.abs(exact), np.nextafter(rounded, F16.type(0)), rounded).astype(
        F16
    )
    bfloat = exact.astype(ml_dtypes.bfloat16).astype(F16)
    with np.errstate(over="ignore", invalid="ignore"):
        narrow = np.zeros((128, 128), F16)
        for k in range(64):
            narrow += (a[:, k, None] * b[None, :, k]).astype(F16)
    if family == "normal":
        assert "truncates" in compare(truncated, *allowed).meaning
        assert "bfloat16" in compare(bfloat, *allowed).meaning
    assert compare(narrow, *allowed).mismatches > 1000


def test_expected_values_stay_inside_fp16(exercise: Exercise) -> None:
    for family in GEMM_FAMILIES:
        for seed in range(5):
            expected, low, high = interval(family, exercise, seed)
            assert np.isfinite(low).all() and np.isfinite(high).all()
            assert (expected != 0).mean() > 0.9


def test_one_hot_values_are_all_different(exercise: Exercise) -> None:
    expected, low, high = interval("one_hot", exercise)
    assert np.unique(expected).size == expected.size
    assert (low == high).all()


def test_zeros_have_both_signs() -> None:
    a, b = inputs("signed_zeros")
    for values in (a, b):
        zeros = values[values == 0]
        assert 0.2 < np.signbit(zeros).mean() < 0.8
        assert 0.4 < (values == 0).mean() < 0.6


def test_minus_zero_is_zero() -> None:
    zero = np.zeros((2, 2), F16)
    assert compare(-zero, zero, zero, zero).mismatches == 0


@pytest.mark.parametrize("family", GEMM_FAMILIES)
@pytest.mark.parametrize(
    ("mistake", "meaning"),
    [
        (lambda d: np.roll(d, 1, axis=0), "off by 1 row: row 0 holds row 127"),
        (lambda d: np.roll(d, -2, axis=1), "off by 2 columns: column 0 holds column 2"),
        (lambda d: d.T, "transposed"),
        (
            lambda d: d[np.arange(128).reshape(4, 32).T.ravel()],
            "rows are in the wrong order: row 1 holds row 32",
        ),
    ],
)
def test_misplaced_values_are_named(exercise: Exercise, family: str, mistake: Any, meaning: str) -> None:
    allowed = interval(family, exercise)
    wrong = np.ascontiguousarray(mistake(allowed[0]))
    seen = compare(wrong, *allowed)
    assert meaning in seen.meaning
    assert (seen.suspect, seen.mismatches > 16000) == ("store", True)


def test_single_elements_elsewhere_are_named_in_the_one_hot_case(exercise: Exercise) -> None:
    allowed = interval("one_hot", exercise)
    wrong = allowed[0].ravel()[np.random.default_rng(0).permutation(16384)].reshape(128, 128)
    assert "values belong elsewhere: D[" in compare(wrong, *allowed).meaning


def test_the_pattern_of_mismatches_is_described(exercise: Exercise) -> None:
    allowed = interval("normal", exercise)
    for select, words in [
        (np.s_[32:64, :], "rows 32-63"),
        (np.s_[:, 64:128], "columns 64-127"),
        (np.s_[7, :], "row 7"),
        (np.s_[::8, :], "rows 0, 8, ... 120 (every 8)"),
        (np.s_[0:2, 0:2], "rows 0-1, columns 0-1"),
        (np.s_[:, :], "every element"),
    ]:
        wrong = allowed[0].copy()
        wrong[select] = 12345
        assert compare(wrong, *allowed).where == words


def test_unwritten_elements_are_told_from_nan(exercise: Exercise) -> None:
    expected, low, high = interval("normal", exercise)
    wrong = expected.copy()
    wrong[3, 4] = fill_pattern(F16)
    seen = compare(wrong, expected, low, high)
    assert (seen.unwritten, seen.nonfinite) == (1, 1)
    assert seen.first is not None and seen.first["actual"] == "never written"
    assert seen.meaning == "the kernel never wrote these elements"
    wrong[3, 4] = np.nan
    seen = compare(wrong, expected, low, high)
    assert (seen.unwritten, seen.nonfinite) == (0, 1)
    assert seen.first is not None and seen.first["actual"] == "nan"


def test_a_reference_that_is_not_finite_is_the_graders_mistake() -> None:
    one, bad = np.ones((2, 2), F16), np.full((2, 2), np.nan, F16)
    with pytest.raises(ValueError, match="reference is not finite"):
        compare(one, bad, bad, bad)
    with pytest.raises(ValueError, match="shapes differ"):
        compare(one, one[:1], one[:1], one[:1])


def test_seeds_decide_everything() -> None:
    for family in GEMM_FAMILIES:
        same = zip(inputs(family, 7), inputs(family, 7), strict=True)
        assert all((x == y).all() for x, y in same)
        assert not (inputs(family, 7)[1] == inputs(family, 8)[1]).all()


def test_pytorch_and_numpy_agree() -> None:
    import autograder.oracles.gemm  # noqa: F401
    from autograder.oracles import ORACLES

    a, b = inputs("normal")
    reference = ORACLES["gemm_nt"]([a, b])
    np.testing.assert_allclose(reference.exact, a @ b.T, rtol=1e-13, atol=1e-12)
    np.testing.assert_allclose(reference.magnitude, np.abs(a) @ np.abs(b).T, rtol=1e-13)


@pytest.mark.parametrize("family", GEMM_FAMILIES)
def test_classic_mistakes_with_the_operands_are_named(exercise: Exercise, family: str) -> None:
    import autograder.oracles.gemm  # noqa: F401
    from autograder.oracles import MISTAKES

    a, b = inputs(family)
    allowed = interval(family, exercise)
    for wrong, words in [
        (a[:, :48] @ b[:, :48].T, "D is the sum without k = 48 to 63"),
        (a[:, :16] @ b[:, :16].T, "D is the sum over k = 0 to 15 only"),
        (a @ b.reshape(64, 128), "D is A times B read as a (K, N) matrix"),
        (b @ b.T, "D is B B^T"),
    ]:
        with np.errstate(over="ignore"):
            output = wrong.astype(F16)
        if not np.isfinite(output).all():
            continue
        seen = compare(output, *allowed, mistakes=MISTAKES["gemm_nt"]([a, b]))
        assert words in seen.meaning
        assert seen.suspect == "operands"
    assert compare(allowed[0], *allowed, mistakes=MISTAKES["gemm_nt"]([a, b])).meaning == ""


@pytest.mark.parametrize("family", ["normal", "distinct", "extremes"])
def test_a_doubled_matrix_is_right_or_wrong_by_one_bit(family: str) -> None:
    """D = 2 A has one right output; the next fp16 number is wrong, anywhere."""
    import autograder.oracles.doubling  # noqa: F401
    from autograder.oracles import ORACLES

    (a,) = (x.astype(F16) for x in FAMILIES[family](generator(3, family), [(56, 552)]))
    allowed = allowed_interval(ORACLES["double"]([a.astype(np.float64)]), 1, 0.0, F16)
    assert np.isfinite(a * F16.type(2)).all()
    assert compare(a * F16.type(2), *allowed).mismatches == 0
    for index in [(0, 0), (55, 551), (31, 128)]:
        wrong = a * F16.type(2)
        wrong[index] = np.nextafter(wrong[index], F16.type(0.5))
        seen = compare(wrong, *allowed)
        assert seen.mismatches == 1 and seen.first is not None and seen.first["index"] == list(index)


def test_distinct_values_tell_where_they_belong() -> None:
    """No value twice, also after doubling, so a tile in the wrong place is recognised."""
    import autograder.oracles.doubling  # noqa: F401
    from autograder.oracles import MISTAKES, ORACLES

    (a,) = FAMILIES["distinct"](generator(4, "distinct"), [(56, 552)])
    assert np.unique(a.astype(F16)).size == a.size
    allowed = allowed_interval(ORACLES["double"]([a]), 1, 0.0, F16)
    assert "nothing was doubled" in compare(a.astype(F16), *allowed, mistakes=MISTAKES["double"]([a])).meaning
    swapped = (2 * a).astype(F16)
    swapped[:32, :256] = np.concatenate([swapped[:32, 128:256], swapped[:32, :128]], axis=1)
    assert "D[0, 0] holds what belongs in D[0, 128]" in compare(swapped, *allowed).meaning


def test_rows_that_were_never_written_may_come_from_the_grid() -> None:
    (a,) = FAMILIES["distinct"](generator(4, "distinct"), [(56, 552)])
    expected = (2 * a).astype(F16)
    output = expected.copy()
    output[32:] = fill_pattern(F16)
    seen = compare(output, expected, expected, expected)
    assert (seen.suspect, seen.where) == ("coverage", "rows 32-55")


def test_steps_left_out_of_a_transpose_are_named() -> None:
    """Each from what such a kernel does to the bytes of its tiles, not from the grader's own formulas."""
    import autograder.oracles.transposing  # noqa: F401
    from autograder.oracles import MISTAKES, ORACLES

    (a,) = FAMILIES["distinct"](generator(4, "distinct"), [(136, 200)])
    a = a.astype(F16).astype(np.float64)
    allowed = allowed_interval(ORACLES["transpose"]([a]), 1, 0.0, F16)
    assert compare(a.T.astype(F16), *allowed).mismatches == 0

    def tiles(
        turn: bool = True, move: bool = True, tile: bool = True, read: Any = 0, write: Any = 0
    ) -> np.ndarray:
        """D of a kernel that works on 64 x 64 tiles in 8 x 8 blocks, with one step left out.

        read, write: in row k of a block the kernel takes the chunk for another one, their XOR is read[k].
        """
        read, write = (np.broadcast_to(x, 8) for x in (read, write))
        d = np.full((256, 256), np.nan)
        padded = np.zeros((256, 256))
        padded[:136, :200] = a
        for i, j in np.ndindex(3, 4):
            loaded = padded[64 * i : 64 * i + 64, 64 * j : 64 * j + 64]
            blocks = {}
            for r, c in np.ndindex(8, 8):
                rows = [loaded[8 * r + k, 8 * (c ^ read[k]) :][:8] for k in range(8)]
                blocks[r, c] = np.array(rows).T if turn else np.array(rows)
            out = np.empty((64, 64))
            for (r, c), block in blocks.items():
                r, c = (c, r) if move else (r, c)
                for k in range(8):
                    out[8 * r + k, 8 * (c ^ write[k]) :][:8] = block[k]
            where = (j, i) if tile else (i, j)
            d[64 * where[0] : 64 * where[0] + 64, 64 * where[1] : 64 * where[1] + 64] = out
        return d[:200, :136].astype(F16)

    eight = np.arange(8)
    shifted = eight ^ (eight + 3) % 8
    for wrong, words in [
        (tiles(turn=False), "no block is transposed itself"),
        (tiles(move=False), "stays where it was in its tile"),
        (tiles(tile=False), "went back to where it came from"),
        (tiles(read=eight), "was read without the swizzle"),
        (tiles(read=eight & 4), "was read with the 64-byte swizzle"),
        (tiles(read=eight & 6), "was read with the 32-byte swizzle"),
        (tiles(write=eight), "was written without the swizzle"),
        (tiles(write=eight & 4), "was written with the 64-byte swizzle"),
        (tiles(read=eight, write=eight), "the rows of both tiles are mixed up"),
        (tiles(read=shifted, write=shifted), "as if the tiles begin 384 bytes behind a multiple of 1024"),
        (tiles(read=shifted), "as if the tile that is loaded begins 384 bytes"),
        (tiles(write=shifted), "as if the tile that is stored begins 384 bytes"),
    ]:
        assert words in compare(wrong, *allowed, mistakes=MISTAKES["transpose"]([a])).meaning
    assert (tiles() == a.T).all()
