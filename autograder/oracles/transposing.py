"""The reference of the transpose exercises."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from autograder.oracles import Array, Reference, mistakes_of, oracle

TILE = 64  # rows and columns of a tile
VIEWED = (64, 128)  # rows and columns of a tile that is looked at through a view
LINE = 128  # bytes between two rows of a tile
BLOCK = 8  # rows and columns of the blocks that ldmatrix moves; elements of a 16-byte chunk of float16

Indices = npt.NDArray[np.integer[Any]]


@oracle
def transpose(inputs: list[Array]) -> Reference:
    """D = A^T for A (M, N). No arithmetic, so a right kernel has no error at all."""
    (a,) = (torch.from_numpy(array) for array in inputs)
    d = a.T.contiguous()
    return Reference(exact=d.numpy(), magnitude=torch.zeros_like(d).numpy())


@mistakes_of("transpose")
def _transpose_mistakes(inputs: list[Array]) -> Iterator[tuple[Any, ...]]:
    """What a transpose by tiles, made of blocks, gives when a step is left out or the swizzle is not the same everywhere."""
    (a,) = inputs
    n, m = np.arange(a.shape[1])[:, None], np.arange(a.shape[0])[None, :]  # D[n, m] should be A[m, n]
    tile_n, tile_m = n - n % TILE, m - m % TILE
    yield (
        "the 8 x 8 blocks are in their places, but no block is transposed itself",
        _at(a, m - m % BLOCK + n % BLOCK, n - n % BLOCK + m % BLOCK),
    )
    yield (
        "each 8 x 8 block is transposed itself, but stays where it was in its tile",
        _at(a, tile_m + n % TILE - n % BLOCK + m % BLOCK, tile_n + m % TILE - m % BLOCK + n % BLOCK),
    )
    loaded = (tile_n < a.shape[0]) & (tile_m < a.shape[1])
    yield (
        "each tile is transposed itself, but went back to where it came from",
        np.where(loaded, _at(a, tile_n + m % TILE, tile_m + n % TILE), np.nan),
        "store",
    )
    # Row r of a tile has chunk c at position c ^ r % 8. Whoever looks elsewhere finds chunk c ^ (what both differ in).
    for bits, how in enumerate(
        ("without the swizzle", "with the 32-byte swizzle", "with the 64-byte swizzle")
    ):
        in_m, in_n = (x % BLOCK >> bits << bits for x in (m, n))
        yield (
            "the 16-byte chunks in each row of A's tile are mixed up, as if the tile that TMA swizzled on its way in was"
            f" read {how}",
            _at(a, m, n ^ in_m * BLOCK),
        )
        yield (
            "the 16-byte chunks in each row of D's tile are mixed up, as if the tile that TMA unswizzles on its way out"
            f" was written {how}",
            _at(a, m ^ in_n * BLOCK, n),
        )
    yield (
        "the 16-byte chunks in the rows of both tiles are mixed up: of TMA and the addresses in the kernel, one uses the"
        " swizzle and the other does not; it is the layout of the tiles that tells TMA",
        _at(a, m ^ n % BLOCK * BLOCK, n ^ m % BLOCK * BLOCK),
        "layout",
    )
    for lines in range(1, BLOCK):
        in_m, in_n = (x % BLOCK ^ (x + lines) % BLOCK for x in (m, n))
        for at_row, at_column, which in ((m ^ in_n * BLOCK, n ^ in_m * BLOCK, "the tiles begin"), (m, n ^ in_m * BLOCK,
            "the tile that is loaded begins"), (m ^ in_n * BLOCK, n, "the tile that is stored begins")):  # fmt: skip
            yield (
                f"the 16-byte chunks in the rows are mixed up, as if {which} {LINE * lines} bytes behind a multiple of"
                f" {LINE * BLOCK}: TMA swizzles by address, so a swizzled tile needs align={LINE * BLOCK}",
                _at(a, at_row, at_column),
                "layout",
            )
    rows, columns = VIEWED
    yield (
        "each tile of D holds its tile of A in the old order: the view of the tile is row-major, so nothing is transposed",
        _through_view(a, rows, 1),
    )
    yield (
        f"each tile of D is as if the rows of the tile in SMEM were {rows} elements apart: they are {columns} apart,"
        " look at the strides of the view",
        _through_view(a, 1, rows),
    )


def _through_view(a: Array, down: int, across: int) -> Array:
    """D (N, M) if row c, column r of a turned tile came from place `down * c + across * r` of the tile in SMEM.

    A is padded with zeros to whole tiles, as TMA pads it. Places beyond the tile are taken modulo its size.
    """
    rows, columns = VIEWED
    (m, n), tiles = a.shape, [-(-size // step) for size, step in zip(a.shape, VIEWED, strict=True)]
    whole = np.zeros((tiles[0] * rows, tiles[1] * columns))
    whole[:m, :n] = a
    smem = whole.reshape(tiles[0], rows, tiles[1], columns).swapaxes(1, 2).reshape(*tiles, rows * columns)
    place = (down * np.arange(columns)[:, None] + across * np.arange(rows)) % (rows * columns)
    turned = smem[:, :, place]  # tile row, tile column, c, r
    d: Array = turned.transpose(1, 2, 0, 3).reshape(whole.shape[::-1])[:n, :m]
    return d


def _at(a: Array, rows: Indices, columns: Indices) -> Array:
    """a[rows, columns] by element, the indices broadcast; 0 outside of `a`, as TMA fills it."""
    inside = (rows < a.shape[0]) & (columns < a.shape[1])
    found: npt.NDArray[Any] = a[np.where(inside, rows, 0), np.where(inside, columns, 0)]
    return np.where(inside, found, 0.0)
