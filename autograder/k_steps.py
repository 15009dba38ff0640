"""Which part of K went wrong in a GEMM: what sums explain the wrong elements. Runs in the oracle's process.

D = A B^T is a sum over K tiles: D = P_0 + P_1 + ... . A wrong element that is the sum without one tile, with one twice, or with
an earlier tile in the place of another tells which step of the main loop failed, and so which stage of a ring.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

K_TILE = 64  # columns of A and B that the kernels of the course hold in SMEM at a time
SAMPLES = 256
MOST_STAGES = 8
MOST_TILES = 64
Floats = npt.NDArray[np.float64]


def explain(
    a: Floats, b: Floats, actual: Floats, exact: Floats, wrong: npt.NDArray[np.bool_]
) -> dict[str, Any] | None:
    """{"tile": K tile or None, "tiles": how many there are, "words": what the wrong elements are}, or None.

    a (M, K), b (N, K): the operands; actual, exact (M, N); wrong: which elements are. At least nine tenths of the wrong elements
    looked at must be explained, and differ from the right value by more than rounding.
    """
    places = np.argwhere(wrong)
    places = places[:: max(1, len(places) // SAMPLES)][:SAMPLES]
    rows, columns = places[:, 0], places[:, 1]
    got, want = actual[rows, columns].astype(np.float64), exact[rows, columns]
    if not np.isfinite(got).all() or a.shape[1] < K_TILE:
        return None
    scale = (np.abs(a[rows]) * np.abs(b[columns])).sum(axis=1)
    near = 2.0**-9 * np.abs(got) + 2.0**-16 * scale + 2.0**-20
    if (np.abs(got - want) <= near).mean() > 0.1:
        return None  # the differences are too small to tell one sum from another
    tiles = a.shape[1] // K_TILE
    for tile, words, value in _sums(a[rows], b[columns], want, tiles):
        if (np.abs(got - value) <= near).mean() > 0.9:
            return {"tile": tile, "tiles": tiles, "words": words}
    counted = _counted(a[rows], b[columns], got, near, tiles)
    if counted is not None:
        return counted
    for words, other_a, other_b in _swizzled(a, b):
        value = (other_a[rows] * other_b[columns]).sum(axis=1)
        if (np.abs(got - value) <= near).mean() > 0.9:
            return {"tile": None, "tiles": tiles, "words": words}
    return _other_tiles(actual, exact, wrong)


def _counted(a: Floats, b: Floats, got: Floats, near: Floats, tiles: int) -> dict[str, Any] | None:
    """Whether the wrong elements are sums in which some K tiles are missing and others come more than once."""
    if len(got) < 2 * tiles or tiles < 2:
        return None
    parts = (a * b)[:, : tiles * K_TILE].reshape(len(a), tiles, K_TILE).sum(axis=2)
    factors = np.round(np.linalg.lstsq(parts, got, rcond=None)[0])
    if (np.abs(got - parts @ factors) <= near).mean() < 0.9 or (factors == 1).all():
        return None
    missing = [str(t) for t in np.flatnonzero(factors < 1)]
    twice = [str(t) for t in np.flatnonzero(factors > 1)]
    words = f"K tile {' and '.join(missing[:4])} missing" if missing else "no K tile is missing"
    words += f", K tile {' and '.join(twice[:4])} in the sum more than once" if twice else ""
    if missing and twice:
        words += ": a stage held an earlier K tile, because its load asked for the wrong one or was not awaited (phase)"
    first = missing or twice
    return {"tile": int(first[0]) if first else None, "tiles": tiles, "words": words}


TILE_ROWS = 128
_XOR = {
    128: 7,
    64: 3,
    32: 1,
    0: 0,
}  # bytes of the swizzle -> bits of the line's number that it XORs into the chunk's


def _addresses(swizzle: int) -> npt.NDArray[np.intp]:
    """Where element (row, k) of a tile of TILE_ROWS x K_TILE 16-bit elements lies in SMEM, in elements.

    Swizzle 0 is row-major. Otherwise columns of `swizzle` bytes follow each other, in them the rows, and the bits of a 16-byte
    chunk's number are XORed with those of its 128-byte line (PTX ISA, shared memory matrix layout).
    """
    wide = (swizzle or 2 * K_TILE) // 2
    row, k = np.mgrid[:TILE_ROWS, :K_TILE]
    byte = 2 * (k // wide * TILE_ROWS * wide + row * wide + k % wide)
    return (byte ^ ((byte >> 7) & _XOR[swizzle]) << 4) // 2


def _swizzled(a: Floats, b: Floats) -> Iterator[tuple[str, Floats, Floats]]:
    """(words, A, B as the tensor core sees them) where one of them is written with another swizzle than it is read with."""
    for written in _XOR:
        for read in (128, 64, 32):
            if written == read:
                continue
            seen = np.argsort(_addresses(written).reshape(-1))[_addresses(read).reshape(-1)]
            how = f"the {written}-byte swizzle" if written else "no swizzle"
            for name in ("B", "A"):
                moved = _moved(b if name == "B" else a, seen)
                if moved is not None:
                    words = f"{name} is written with {how} and read with the {read}-byte one"
                    yield words, *((a, moved) if name == "B" else (moved, b))


def _moved(operand: Floats, seen: npt.NDArray[np.intp]) -> Floats | None:
    """Every tile of an operand with its elements in the order `seen`; None where it is not made of whole tiles."""
    rows, columns = operand.shape
    if rows % TILE_ROWS or columns % K_TILE:
        return None
    tiles = operand.reshape(rows // TILE_ROWS, TILE_ROWS, columns // K_TILE, K_TILE).transpose(0, 2, 1, 3)
    flat = tiles.reshape(*tiles.shape[:2], -1)[:, :, seen]
    return flat.reshape(tiles.shape).transpose(0, 2, 1, 3).reshape(rows, columns)


def _sums(a: Floats, b: Floats, want: Floats, tiles: int) -> Iterator[tuple[int | None, str, Floats]]:
    """(K tile, words, value) of what a failed main loop can compute. a, b: the rows of each sample."""
    parts = (a * b)[:, : tiles * K_TILE].reshape(len(a), tiles, K_TILE).sum(axis=2)
    yield (
        None,
        "everything is doubled: the sum was added to itself (is the accumulate flag set where the accumulator holds a sum already?)",
        2 * want,
    )
    last = tiles - 1
    for t in [last, *range(last)]:
        which = f"K tile {t} (k = {t * K_TILE} to {t * K_TILE + K_TILE - 1})"
        end = ", the last one," if t == last and tiles > 1 else ""
        late = " A wait that an earlier phase satisfies lets the end come too soon." if end else ""
        yield t, f"{which}{end} is missing from the sum.{late}", want - parts[:, t]
        yield t, f"{which} is in the sum twice: one stage was multiplied again", want + parts[:, t]
    a, b = (x[:, : tiles * K_TILE].reshape(len(x), tiles, K_TILE) for x in (a, b))
    for back in range(1, min(tiles, MOST_STAGES + 1)):
        for t in range(last, back - 1, -1):
            for name, x, y in (
                ("A and B", a[:, t - back], b[:, t - back]),
                ("A", a[:, t - back], b[:, t]),
                ("B", a[:, t], b[:, t - back]),
            ):
                words = f"in the place of K tile {t} of {name} stood K tile {t - back}: the stage was read before its load had arrived (phase)"
                yield t, words, want - parts[:, t] + (x * y).sum(axis=1)
            ahead = f"in the place of K tile {t - back} stood K tile {t}: the stage was loaded again before it was read (phase)"
            yield t - back, ahead, want - parts[:, t - back] + parts[:, t]


def _other_tiles(
    actual: npt.NDArray[Any], exact: Floats, wrong: npt.NDArray[np.bool_]
) -> dict[str, Any] | None:
    """Whether a wrong tile of D is its own sum plus the whole sums of others: a fit with coefficients that are all 0 or 1."""
    for tall, wide in ((128, 128), (128, 256), (256, 256), (128, 64)):
        rows, columns = exact.shape[0] // tall, exact.shape[1] // wide
        if not 1 < rows * columns <= MOST_TILES or exact.shape[0] % tall or exact.shape[1] % wide:
            continue

        def flat(x: npt.NDArray[Any], tall: int = tall, wide: int = wide) -> Floats:
            cut = x.reshape(x.shape[0] // tall, tall, -1, wide).transpose(0, 2, 1, 3)
            return cut.reshape(-1, tall * wide)[:, :: tall * wide // 1024].astype(np.float64)

        sums, got, bad = flat(exact), flat(actual), flat(wrong).mean(axis=1) > 0.5
        for tile in np.flatnonzero(bad & np.isfinite(got).all(axis=1)):
            rest = got[tile] - sums[tile]
            factors = np.linalg.lstsq(sums.T, rest, rcond=None)[0]
            whole = np.round(factors)
            left = np.abs(rest - whole @ sums).max()
            if (
                whole.any()
                and left <= 2.0**-7 * np.abs(got[tile]).max()
                and ((whole == 0) | (whole == 1)).all()
            ):
                i, j = divmod(int(tile), columns)
                others = [divmod(int(n), columns) for n in np.flatnonzero(whole)]
                names = " and ".join(f"({r * tall}, {c * wide})" for r, c in others[:3])
                words = (
                    f"the tile of D at ({i * tall}, {j * wide}) holds the sum of the tile at {names} as well: the first MMA of a tile"
                    " must overwrite the accumulator (accumulate flag)"
                )
                return {"tile": None, "tiles": 0, "words": words}
    return None
