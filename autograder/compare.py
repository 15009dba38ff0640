"""Compare an output with its reference and say what is wrong. Runs in the oracle's process."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from autograder.oracles import Reference

Floats = npt.NDArray[np.floating[Any]]
Bools = npt.NDArray[np.bool_]
Suspect = Literal[
    "operands", "cast", "store", "coverage", "layout", "scale", "softmax", "tmem", "mask", "heads"
]
Mistakes = Iterable[tuple[str, npt.NDArray[np.float64]] | tuple[str, npt.NDArray[np.float64], Suspect]]


@dataclass(frozen=True)
class Comparison:
    """What a case showed. Numbers that are not finite are spelled as text, so that the record is strict JSON.

    Attributes:
        elements, compared: number of output elements, and how many were looked at; they must be equal.
        mismatches: elements outside their interval; nonfinite: those of them that are NaN or infinite.
        unwritten: elements that still hold the fill pattern that the output had before the launch.
        first: row-major first mismatch: index, expected, actual, and the allowed interval.
        max_error: largest |actual - expected| over finite mismatches.
        where: the pattern of the mismatches in words.
        meaning: what the values tell about the mistake, empty when nothing fits.
        suspect: where to look for it: in the operands, in the cast, in the store of the output, (coverage) also
            in the size of the grid, in the layout of tiles in SMEM, in the scale of scores,
            in a softmax, in what shares columns of TMEM, in the mask of scores, or in which head of K and V a query takes.
    """

    elements: int
    compared: int
    mismatches: int
    nonfinite: int = 0
    unwritten: int = 0
    first: dict[str, Any] | None = None
    max_error: float = 0.0
    where: str = ""
    meaning: str = ""
    suspect: Suspect = "operands"
    guess: str = ""
    heat: dict[str, Any] | None = None
    k_step: dict[str, Any] | None = None
    samples: list[dict[str, Any]] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def fill_pattern(dtype: np.dtype[Any]) -> Any:
    """What outputs hold before the launch: a NaN with a payload that no arithmetic produces."""
    bits: dict[int, int] = {2: 0x7E5A, 4: 0x7FC05A5A}
    if dtype.name == "bfloat16":
        return np.array(0x7FDA, np.uint16).view(dtype)[()]
    return np.array(bits[dtype.itemsize], f"uint{8 * dtype.itemsize}").view(dtype)[()]


def allowed_interval(
    reference: Reference, terms: int, accumulate_eps: float, dtype: np.dtype[Any]
) -> tuple[Floats, Floats, Floats]:
    """(expected, lowest, highest) right output per element, in `dtype`.

    A kernel that sums `terms` exact products in fp32 is within E = terms * accumulate_eps * magnitude of the
    exact result; rounding to nearest is monotone, so its output lies in [round(exact - E), round(exact + E)].
    One fp16 rounding of a sum that is at most E off never leaves this interval, and nothing that is further
    off enters it by more than the rounding itself allows.
    """
    error = terms * accumulate_eps * reference.magnitude
    with np.errstate(over="ignore"):
        expected, low, high = (
            x.astype(dtype) for x in (reference.exact, reference.exact - error, reference.exact + error)
        )
    return expected, low, high


def compare(
    actual: Floats, expected: Floats, low: Floats, high: Floats, mistakes: Mistakes = ()
) -> Comparison:
    """Every element of `actual` must lie in [low, high] and be finite; 0 and -0 are equal.

    mistakes: (words, result) of classic mistakes, NaN where nothing is written, and where to look for them, by default
        in the operands; looked at only when something is wrong.

    Raises:
        ValueError: the shapes differ or the reference is not finite, which would be the grader's mistake.
    """
    if not (actual.shape == expected.shape == low.shape == high.shape):
        raise ValueError(f"shapes differ: {actual.shape} and {expected.shape}")
    if not (np.isfinite(low).all() and np.isfinite(high).all()):
        raise ValueError("the reference is not finite in the output's dtype")
    right = np.isfinite(actual) & (actual >= low) & (actual <= high)
    wrong = ~right
    count = int(wrong.sum())
    if not count:
        return Comparison(elements=expected.size, compared=int(right.size), mismatches=0)
    fill = fill_pattern(actual.dtype)
    bits = f"uint{8 * actual.dtype.itemsize}"
    unwritten = wrong & (actual.view(bits) == np.asarray(fill).view(bits))
    finite = wrong & np.isfinite(actual)
    differences = np.abs(actual[finite].astype(np.float64) - expected[finite].astype(np.float64))
    meaning, suspect = _meaning(actual, expected, wrong, unwritten, mistakes)
    places = np.argwhere(wrong)
    samples = [
        _sample(tuple(int(i) for i in place), actual, expected, low, high, unwritten) for place in places[:4]
    ]
    return Comparison(
        elements=expected.size,
        compared=int(right.size),
        mismatches=count,
        nonfinite=int((wrong & ~np.isfinite(actual)).sum()),
        unwritten=int(unwritten.sum()),
        first=samples[0],
        max_error=float(differences.max()) if differences.size else 0.0,
        where=_where(wrong),
        meaning=meaning,
        suspect=suspect,
        guess=_guess(wrong),
        heat=_heat(wrong),
        samples=samples,
    )


def _sample(
    index: tuple[int, ...], actual: Floats, expected: Floats, low: Floats, high: Floats, unwritten: Bools
) -> dict[str, Any]:
    return {
        "index": list(index),
        "expected": _number(expected[index]),
        "actual": "never written" if unwritten[index] else _number(actual[index]),
        "allowed": [_number(low[index]), _number(high[index])],
    }


def _number(value: Any) -> float | str:
    number = float(value)
    return number if np.isfinite(number) else str(number)


def _where(wrong: Bools) -> str:
    """The mismatches as a pattern of rows and columns, where they have one."""
    if wrong.all():
        return "every element"
    if wrong.ndim == 1:
        return ("element " if wrong.sum() == 1 else "elements ") + _ranges(np.flatnonzero(wrong))
    if wrong.ndim != 2:
        return _where_along(wrong)
    rows, columns = np.flatnonzero(wrong.any(axis=1)), np.flatnonzero(wrong.any(axis=0))
    parts = []
    if rows.size < wrong.shape[0]:
        parts.append(("row " if rows.size == 1 else "rows ") + _ranges(rows))
    if columns.size < wrong.shape[1]:
        parts.append(("column " if columns.size == 1 else "columns ") + _ranges(columns))
    share = wrong[np.ix_(rows, columns)].mean()
    if not parts:
        return "nearly every element" if share > 0.95 else f"{share:.0%} of them, all over"
    place = ", ".join(parts)
    return place if share > 0.95 else f"{place}, {share:.0%} of the elements there"


def _where_along(wrong: Bools) -> str:
    """The mismatches of a tensor of three or four dimensions, by the first index at which each of them is right somewhere."""
    parts = []
    for axis, extent in enumerate(wrong.shape):
        places = np.flatnonzero(wrong.any(axis=tuple(a for a in range(wrong.ndim) if a != axis)))
        if places.size < extent:
            parts.append(f"index {axis}: {_ranges(places)}")
    share = f"{wrong.mean():.0%} of them, all over" if wrong.mean() <= 0.95 else "nearly every element"
    return "; ".join(parts) or share


MOST_BLOCKS = 16


def _heat(wrong: Bools) -> dict[str, Any] | None:
    """The share of wrong elements per block; at most MOST_BLOCKS x MOST_BLOCKS blocks, with powers of two as their sides."""
    if wrong.ndim not in (1, 2):
        return None
    grid = wrong if wrong.ndim == 2 else wrong[None, :]
    sides = [_block_side(extent) for extent in grid.shape]
    rows, columns = ([*range(0, e, s)] for e, s in zip(grid.shape, sides, strict=True))
    shares = np.add.reduceat(np.add.reduceat(grid.astype(np.int64), rows, axis=0), columns, axis=1)
    whole = np.outer(
        np.diff([*rows, grid.shape[0]]), np.diff([*columns, grid.shape[1]])
    )  # blocks at the edge are smaller
    return {"rows": sides[0], "columns": sides[1], "shares": (shares / whole).round(4).tolist()}


def _block_side(extent: int) -> int:
    """The smallest power of two that cuts an extent into at most MOST_BLOCKS parts."""
    side = 1
    while -(-extent // side) > MOST_BLOCKS:
        side *= 2
    return side


CHUNK = 8  # fp16 elements of 16 bytes, what a swizzle moves; it depends on the row modulo 8
WARP_ROWS = 32  # of an accumulator: one lane of TMEM per row, 32 lanes per warp


def _guess(wrong: Bools) -> str:
    """The mistake that usually leaves this pattern of rows and columns."""
    if wrong.ndim != 2 or wrong.all() or min(wrong.shape) < 2 * CHUNK:
        return ""
    for axis, name, operand in ((0, "column", "B"), (1, "row", "A")):
        share = wrong.mean(axis=axis)
        residues = [share[n::CHUNK].mean() for n in range(CHUNK)]
        high = [n for n, value in enumerate(residues) if value > 0.9]
        low = [n for n, value in enumerate(residues) if value < 0.1]
        if high and low and len(high) + len(low) == CHUNK and len(low) <= CHUNK // 2:
            kept = ", ".join(map(str, low))
            return (
                f"right are only the {name}s whose number modulo {CHUNK} is {kept}: a swizzle moves 16-byte chunks by the row number"
                f" modulo {CHUNK}, so {operand} was written with another swizzle than it is read with"
            )
    bands = wrong.shape[0] // WARP_ROWS
    if bands >= 2 and wrong.shape[0] % WARP_ROWS == 0:
        per_band = wrong.any(axis=1).reshape(bands, WARP_ROWS)
        rows = wrong.mean(axis=1).reshape(bands, WARP_ROWS)
        whole = per_band.all(axis=1)
        if whole.any() and not whole.all() and bool((per_band.any(axis=1) == whole).all()):
            if rows[whole].mean() > 0.5 and not _only_tiles(np.asarray(whole)):
                warps = ", ".join(str(n) for n in np.flatnonzero(whole)[:8])
                return (
                    f"whole rows, in groups of {WARP_ROWS} (group {warps}): {WARP_ROWS} rows are what one warp holds of an accumulator,"
                    " so some warps went on without a wait or a sync that others have"
                )
    return ""


def _only_tiles(whole: Bools) -> bool:
    """Whether the bands are whole tiles of 128 rows: then no single warp is to blame."""
    if whole.size % 4:
        return False
    tiles = whole.reshape(-1, 4)
    return bool((tiles.all(axis=1) == tiles.any(axis=1)).all())


def _ranges(numbers: npt.NDArray[np.intp]) -> str:
    """`0-31, 64-95`, or `0, 8, 16, ...` with the step when it is regular."""
    steps = np.diff(numbers)
    if numbers.size > 2 and steps.min() == steps.max() > 1:
        return f"{numbers[0]}, {numbers[1]}, ... {numbers[-1]} (every {steps[0]})"
    starts = np.flatnonzero(np.concatenate(([True], steps > 1)))
    ends = np.concatenate((starts[1:] - 1, [numbers.size - 1]))
    spans = [
        f"{numbers[s]}-{numbers[e]}" if e > s else str(numbers[s]) for s, e in zip(starts, ends, strict=True)
    ]
    return ", ".join(spans[:4]) + (f", ... ({len(spans)} ranges)" if len(spans) > 4 else "")


def _meaning(
    actual: Floats, expected: Floats, wrong: Bools, unwritten: Bools, mistakes: Mistakes
) -> tuple[str, Suspect]:
    """(a mistake that explains most mismatches or "", where to look)."""
    if unwritten.sum() == wrong.sum():
        return "the kernel never wrote these elements", "coverage"
    nonfinite = wrong & ~np.isfinite(actual)
    if nonfinite.sum() > wrong.sum() / 2:
        for words, result, *where in mistakes:
            finite = np.isfinite(result)
            if not finite.any() or not finite.all() and _is(actual, result, wrong):
                return words, where[0] if where else "operands"
        return (
            "most of them are NaN or infinite, as if they came from memory that was read before it was written",
            "operands",
        )
    if actual.ndim == 2:
        moved = _moved(actual, expected, wrong)
        if moved:
            return moved, "store"
    for words, result, *where in mistakes:
        if _is(actual, result, wrong):
            return words, where[0] if where else "operands"
    if not actual[wrong].any():
        return "all of them are zero", "operands"
    narrow = _narrow(actual, expected, wrong)
    if narrow:
        return narrow, "cast"
    return (_elsewhere(actual, expected, wrong) if actual.ndim == 2 else ""), "operands"


def _moved(actual: Floats, expected: Floats, wrong: Bools) -> str:
    """Whether the wrong elements are the right rows or columns in the wrong place."""
    if expected.shape[0] == expected.shape[1] and _explains(actual, expected.T, wrong):
        return "the output is transposed: D[i, j] holds the value of D[j, i]"
    rows = _moved_lines(actual, expected, wrong, "row")
    return rows or _moved_lines(actual.T, expected.T, wrong.T, "column")


def _moved_lines(actual: Floats, expected: Floats, wrong: Bools, what: str) -> str:
    """Whether whole rows (on transposed arrays: columns) sit in the place of others."""
    lines = np.flatnonzero(wrong.any(axis=1))
    sources = []
    for line in lines[:24]:
        same = (expected == actual[line]).mean(axis=1)
        best = int(same.argmax())
        if same[best] < 0.9 or best == line:
            return ""
        sources.append(best)
    count = expected.shape[0]
    distances = {(int(source) - int(line)) % count for source, line in zip(sources, lines, strict=False)}
    example = f"{what} {lines[0]} holds {what} {sources[0]}"
    if len(distances) > 1:
        return f"the values are right but the {what}s are in the wrong order: {example}"
    distance = min(distances)
    distance = distance if distance <= count // 2 else count - distance
    return f"the values are right but off by {distance} {what}{'s' if distance > 1 else ''}: {example}"


def _elsewhere(actual: Floats, expected: Floats, wrong: Bools) -> str:
    """Whether single values are right but elsewhere; needs a case whose expected values are all different."""
    values, first = np.unique(expected, return_index=True)
    if values.size < expected.size:
        return ""
    position = np.minimum(np.searchsorted(values, actual), values.size - 1)
    found = wrong & (values[position] == actual)
    if found.sum() < 0.9 * wrong.sum():
        return ""
    i, j = (int(x) for x in np.argwhere(found)[0])
    source = int(first[position[i, j]])
    columns = expected.shape[1]
    origin = f"D[{source // columns}, {source % columns}]"
    return f"values belong elsewhere: D[{i}, {j}] holds what belongs in {origin}"


def _is(actual: Floats, result: npt.NDArray[np.float64], wrong: Bools) -> bool:
    """Whether the output is what a classic mistake gives; what is not finite counts as equal."""
    neither = ~np.isfinite(actual) & ~np.isfinite(result)
    near = neither | np.isclose(actual.astype(np.float64), result, rtol=2.0**-9, atol=2.0**-20)
    return bool(near.mean() > 0.95 and near[wrong].mean() > 0.95)


def _explains(actual: Floats, candidate: Floats, wrong: Bools) -> bool:
    return bool((actual[wrong] == candidate[wrong]).mean() > 0.95)


def _narrow(actual: Floats, expected: Floats, wrong: Bools) -> str:
    """Whether the errors look like a cast: too few mantissa bits, or rounding toward zero."""
    got, want = actual[wrong].astype(np.float64), expected[wrong].astype(np.float64)
    nonzero = want != 0
    if not nonzero.any() or not np.isfinite(got).all():
        return ""
    relative = np.abs(got[nonzero] - want[nonzero]) / np.abs(want[nonzero])
    if np.quantile(relative, 0.9) > 2**-6:
        return ""
    all_values = actual[np.isfinite(actual)].astype(np.float32)
    if not (all_values.view(np.uint32) & 0xFFFF).any():
        return "every output has at most 8 significant bits, as after a cast to bfloat16"
    if (np.abs(got) <= np.abs(want)).mean() > 0.99 and np.quantile(relative, 0.9) < 2**-9:
        return "the errors are one unit in the last place, always toward zero: the cast truncates"
    return "the values are close but not close enough: look at the precision of the sum and of the cast"
