"""Where things live in tensor memory: accumulators, operand A, scale factors, ld/st fragments, cp copies.

Tensor memory is 128 lanes x 512 columns of 32-bit cells; here a C-contiguous uint32 array (128, 512). A TMEM
address is `lane << 16 | column`. All index arrays are cached and read-only. Functions that take `tmem` also
take its float32 view where that makes sense: only the cell size matters.
Sources: PTX ISA, "tcgen05 Data path layout organization", "Data movement shape", "tcgen05.cp", "Scale factor
layouts".
"""

from __future__ import annotations

from functools import lru_cache
from typing import Literal

import numpy as np

from emulator.machine import smem_descriptor
from emulator.machine.smem_descriptor import SmemDescriptor
from emulator.numerics import formats
from emulator.numerics.formats import Array, ElementFormat

LANES = 128
COLUMNS = 512
Datapath = Literal["A", "B", "C", "D", "E", "F", "G"]
# Rows of the accumulator that one CTA holds, and into how many column parts they are folded.
DATAPATH_ROWS: dict[str, int] = {"A": 128, "B": 64, "C": 64, "D": 128, "E": 64, "F": 64, "G": 32}
_FOLDS = {"A": 1, "B": 2, "C": 1, "D": 1, "E": 2, "F": 1, "G": 4}


def lane_of(address: int) -> int:
    """Lane field of a TMEM address."""
    return (address >> 16) & 0xFFFF


def column_of(address: int) -> int:
    """Column field of a TMEM address."""
    return address & 0xFFFF


# ---------------------------------------------------------------------------------------------------------
# Accumulator D
# ---------------------------------------------------------------------------------------------------------


def datapath(m: int, cta_group: int = 1, ws: bool = False, sparse: bool = False) -> Datapath:
    """Layout letter of the accumulator for the M of the instruction descriptor.

    Raises ValueError for a combination that no tcgen05.mma has.
    """
    if cta_group == 2 and not ws:
        if m == 256:
            return "A"
        if m == 128:
            return "C" if sparse else "B"
    if cta_group == 1:
        if m == 128:
            return "D"
        if m == 64:
            return "E" if ws else "F"
        if m == 32 and ws:
            return "G"
    raise ValueError(f"no TMEM layout for M = {m}, cta_group::{cta_group}{', .ws' if ws else ''}")


def d_columns(layout: Datapath, n: int) -> int:
    """TMEM columns that an accumulator of N columns takes."""
    return n // _FOLDS[layout]


@lru_cache(maxsize=512)
def d_placement(layout: Datapath, n: int) -> tuple[Array, Array]:
    """(lane, column) of every accumulator element that one CTA holds, two int32 arrays (rows, n).

    Lanes and columns are relative to the D address of the instruction.
    """
    row = np.arange(DATAPATH_ROWS[layout], dtype=np.int32)[:, None]
    column = np.arange(n, dtype=np.int32)[None, :]
    fold = _FOLDS[layout]
    part, inside = np.divmod(column, n // fold)
    scattered = layout in ("C", "F")
    lane = row // 16 * 32 + row % 16 + 0 * column if scattered else row + part * (LANES // fold)
    columns = inside + 0 * row
    lane.flags.writeable = columns.flags.writeable = False
    return lane, columns


def d_view(tmem: Array, layout: Datapath, n: int, address: int = 0) -> Array:
    """A writable view of the accumulator at `address`, factored so that it lines up with a (rows, n) matrix.

    `view[...] += product.reshape(view.shape)` accumulates, `view.reshape(rows, n)` copies out. Shapes:
    A, D (128, n); B, E (64, 2, n/2); C, F (4, 16, n); G (32, 4, n/4). The address must be legal
    (see `d_problems`).
    """
    column = address & 0xFFFF
    if layout in ("A", "D"):
        return tmem[:, column : column + n]
    if layout in ("C", "F"):
        lane = (address >> 16) & 16
        return tmem.reshape(4, 32, -1)[:, lane : lane + 16, column : column + n]
    fold = _FOLDS[layout]
    return tmem.reshape(fold, LANES // fold, -1)[:, :, column : column + n // fold].swapaxes(0, 1)


def d_problems(layout: Datapath, n: int, address: int) -> list[str]:
    """What makes an accumulator address illegal, one sentence each."""
    lane, column = lane_of(address), column_of(address)
    found = []
    legal = (0, 16) if layout in ("C", "F") else (0,)
    if lane not in legal:
        wanted = " or ".join(map(str, legal))
        found.append(
            f"the D address names lane {lane}; an accumulator of layout {layout} starts at lane {wanted}"
        )
    end = column + d_columns(layout, n)
    if end > COLUMNS:
        found.append(f"the accumulator takes columns {column} to {end - 1}, tensor memory has {COLUMNS}")
    return found


# ---------------------------------------------------------------------------------------------------------
# Operand A in tensor memory
# ---------------------------------------------------------------------------------------------------------


def a_columns(k: int, fmt: ElementFormat | str) -> int:
    """TMEM columns of a K-slice of operand A: elements are packed into 32-bit cells, lowest k first."""
    return k * formats.lookup(fmt).smem_bits // 32


def a_banks(layout: Datapath) -> int:
    """How many copies of A the datapaths read: one per folded part of D (layouts B and E 2, G 4), else 1."""
    return _FOLDS[layout]


@lru_cache(maxsize=512)
def a_placement(layout: Datapath, k: int, bits: int) -> tuple[Array, Array, Array]:
    """(lane, column, first bit) of element (row, k) of A for each bank: int32 arrays (banks, rows, k).

    Row r sits in lane r of its bank; bank b starts at lane b * 128 / banks and feeds column part b of D. With half of the
    datapaths (layouts C and F) rows lie in the lower 16 lanes of every quarter, as those of D do (PTX ISA, "Data Path Layout
    Organization"; DeepGEMM's tf32_hc_prenorm_gemm stores A so for M = 64, while TVM 0.27's tmem_mma_operand_layout has
    lanes 0 to 63).
    """
    rows, banks = DATAPATH_ROWS[layout], _FOLDS[layout]
    bank = np.arange(banks, dtype=np.int32)[:, None, None]
    row = np.arange(rows, dtype=np.int32)[None, :, None]
    bit = np.arange(k, dtype=np.int32)[None, None, :] * bits
    shape = (banks, rows, k)
    if layout in ("C", "F"):
        row = row // 16 * 32 + row % 16
    lane = np.broadcast_to(bank * (LANES // banks) + row, shape)
    return lane, np.broadcast_to(bit // 32, shape), np.broadcast_to(bit % 32, shape)


def gather_a(tmem: Array, layout: Datapath, k: int, fmt: ElementFormat | str, address: int) -> Array:
    """Operand A of one MMA from TMEM, shape (banks, rows, k), dtype as `smem_descriptor.gather_operand`.

    With more than one bank, D's column part b is computed from bank b; correct kernels store A once per bank.
    Raises NotImplementedError for padded sub-byte formats, whose TMEM packing is not modelled.
    """
    fmt = formats.lookup(fmt)
    if fmt.bits < 8 and fmt.smem_bits == 8:
        raise NotImplementedError(f"operand A of format {fmt.name} in tensor memory is not supported")
    column = address & 0xFFFF
    banks, rows = _FOLDS[layout], DATAPATH_ROWS[layout]
    columns = slice(column, column + a_columns(k, fmt))
    if layout in ("C", "F"):
        lane = (address >> 16) & 16
        cells = tmem.reshape(4, 32, -1)[:, lane : lane + 16, columns].reshape(1, rows, -1)
    else:
        cells = tmem.reshape(banks, LANES // banks, -1)[:, :rows, columns]
    packed = np.ascontiguousarray(cells)
    if fmt.smem_bits == 4:
        return formats.unpack_e2m1(packed.view(np.uint8)).view(fmt.storage)
    return packed.view(fmt.storage)


# ---------------------------------------------------------------------------------------------------------
# Scale factors of block-scaled MMA
# ---------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=256)
def scale_cells(rows: int, vec: int, sf_id: int = 0) -> tuple[Array, Array, Array]:
    """(lane, column, byte) of every scale factor of a (rows, vec) scale matrix, int32 arrays (rows, vec).

    Lane is relative to the partition that is read, column to the scale factor address. `vec` is the 1, 2 or 4
    of `.scale_vec`, `sf_id` the byte position from the instruction descriptor.
    """
    row = np.arange(rows, dtype=np.int32)[:, None]
    byte = sf_id + np.arange(vec, dtype=np.int32)[None, :]
    return row % 32 + 0 * byte, row // 32 + 0 * byte, byte + 0 * row


def scale_columns(rows: int) -> int:
    """TMEM columns of the scale factors of `rows` rows."""
    return -(-rows // 32)


def gather_scales(
    tmem: Array, rows: int, vec: int, address: int, sf_id: int = 0, partition: int = 0
) -> Array:
    """Scale factor codes (uint8, shape (rows, vec)) read from one 32-lane partition of `tmem`.

    The hardware reads all four partitions, so the values must be replicated: see `scales_replicated`.
    """
    column = address & 0xFFFF
    columns = scale_columns(rows)
    block = tmem[32 * partition : 32 * partition + 32, column : column + columns]
    cells = np.ascontiguousarray(block.T).view(np.uint8).reshape(columns * 32, 4)
    return cells[:rows, sf_id : sf_id + vec]


def scales_replicated(tmem: Array, rows: int, address: int) -> bool:
    """True if lanes +32, +64 and +96 hold the same scale factor cells as lanes 0 to 31."""
    column = address & 0xFFFF
    cells = tmem.reshape(4, 32, -1)[:, :, column : column + scale_columns(rows)]
    return bool((cells[1:] == cells[:1]).all())


# ---------------------------------------------------------------------------------------------------------
# tcgen05.ld and tcgen05.st
# ---------------------------------------------------------------------------------------------------------

# shape -> (registers per .x1, columns per .x1, lanes touched, largest .x count)
_LD_ST = {
    "32x32b": (1, 1, 32, 128),
    "16x64b": (1, 2, 16, 128),
    "16x128b": (2, 4, 16, 64),
    "16x256b": (4, 8, 16, 32),
    "16x32bx2": (1, 1, 16, 128),
}


def ld_st_registers(shape: str, num: int) -> int:
    """32-bit registers per thread of tcgen05.ld/st. Raises ValueError for a shape or count not in PTX."""
    entry = _LD_ST.get(shape)
    if entry is None:
        raise ValueError(f"tcgen05.ld/st has no shape .{shape}; it has .{', .'.join(_LD_ST)}")
    if num < 1 or num & (num - 1) or num > entry[3]:
        raise ValueError(f"tcgen05.ld/st.{shape} has no .x{num}: powers of two up to .x{entry[3]}")
    return entry[0] * num


def ld_st_columns(shape: str, num: int, split: int = 0, packed: bool = False) -> int:
    """Columns between the first and one past the last column that an access touches."""
    width = _LD_ST[shape][1] * num * (2 if packed else 1)
    return max(width, split + width) if shape == "16x32bx2" else width


@lru_cache(maxsize=256)
def ld_st_map(shape: str, num: int, split: int = 0) -> tuple[Array, Array]:
    """(lane, column) of thread t's register g, two int32 arrays (32, registers), relative to the address.

    `split` is the immHalfSplitoff (in columns) of 16x32bx2. Raises ValueError like `ld_st_registers`.
    """
    registers = ld_st_registers(shape, num)
    t = np.arange(32, dtype=np.int32)[:, None]
    g = np.arange(registers, dtype=np.int32)[None, :]
    if shape == "32x32b":
        lane, column = t, g
    elif shape == "16x64b":
        lane, column = (t >> 2) + 8 * (t & 1), ((t >> 1) & 1) + 2 * g
    elif shape == "16x128b":
        lane, column = (t >> 2) + 8 * (g & 1), (t & 3) + 4 * (g >> 1)
    elif shape == "16x256b":
        lane, column = (t >> 2) + 8 * ((g >> 1) & 1), (g & 1) + 2 * (t & 3) + 8 * (g >> 2)
    else:
        lane, column = t % 16, (t // 16) * split + g
    lane, column = lane + 0 * g, column + 0 * t
    lane.flags.writeable = column.flags.writeable = False
    return lane, column


@lru_cache(maxsize=1024)
def _ld_st_index(shape: str, num: int, split: int, bases: tuple[int, ...], packed: bool) -> Array:
    """Flat cell index of (register[, half], thread of all warps), for column 0; `bases` as in `ld`."""
    lane, column = ld_st_map(shape, num, split)
    if packed:
        column = 2 * column[:, :, None] + np.arange(2)
        lane = np.broadcast_to(lane[:, :, None], column.shape)
    one_warp = np.moveaxis(lane * COLUMNS + column, 0, -1)
    index = np.concatenate([one_warp + base * COLUMNS for base in bases], axis=-1).astype(np.intp)
    index.flags.writeable = False
    return index


def ld(
    tmem: Array,
    shape: str,
    num: int,
    column: int,
    bases: tuple[int, ...],
    split: int = 0,
    packed: bool = False,
) -> Array:
    """tcgen05.ld by one or more warps that name the same column: uint32 registers (registers, 32 * warps).

    `bases` holds each warp's first lane: 32 * (warp % 4), plus the lane field 16 for the upper half-slab of
    the 16-lane shapes. `packed` is .pack::16b: register g holds the low halves of two adjacent columns.
    The caller has checked columns and lanes (`ld_st_problems`).
    """
    if shape == "32x32b" and not packed:
        ld_st_registers(shape, num)
        block = tmem[:, column : column + num]
        # Copying before transposing avoids the cache set conflicts of the 2048-byte lane stride.
        rows = block.copy() if bases == (0, 32, 64, 96) else _rows_of(block, bases)
        return rows.T.copy()
    flat = tmem.reshape(-1)[column:]
    cells = flat.take(_ld_st_index(shape, num, split, bases, packed))
    if not packed:
        return cells
    return (cells[:, 0] & np.uint32(0xFFFF)) | (cells[:, 1] << np.uint32(16))


def _rows_of(block: Array, bases: tuple[int, ...]) -> Array:
    if len(bases) == 1:
        return block[bases[0] : bases[0] + 32].copy()
    return np.concatenate([block[base : base + 32] for base in bases])


def st(
    tmem: Array,
    registers: Array,
    shape: str,
    num: int,
    column: int,
    bases: tuple[int, ...],
    split: int = 0,
    packed: bool = False,
) -> None:
    """tcgen05.st: the inverse of `ld`, `registers` is uint32 (registers, 32 * warps).

    `packed` is .unpack::16b: each register goes to the low halves of two adjacent columns, high halves 0.
    """
    if shape == "32x32b" and not packed:
        ld_st_registers(shape, num)
        if bases == (0, 32, 64, 96):
            tmem[:, column : column + num] = registers.T
        else:
            for i, base in enumerate(bases):
                tmem[base : base + 32, column : column + num] = registers[:, 32 * i : 32 * i + 32].T
        return
    index = _ld_st_index(shape, num, split, bases, packed)
    if packed:
        registers = np.stack([registers & np.uint32(0xFFFF), registers >> np.uint32(16)], axis=1)
    tmem.reshape(-1)[column:][index] = registers


def ld_st_problems(
    shape: str, num: int, address: int, warp: int, split: int = 0, packed: bool = False
) -> list[str]:
    """What makes an ld/st address illegal for a warp (its rank in the warpgroup is warp % 4)."""
    ld_st_registers(shape, num)
    lane, column = lane_of(address), column_of(address)
    first = 32 * (warp % 4)
    relative = lane - first if lane >= 32 else lane
    found = []
    if lane >= 32 and not 0 <= relative < 32:
        found.append(
            f"warp {warp} may only touch lanes {first} to {first + 31} of tensor memory (32 x its rank in "
            f"the warpgroup), the address names lane {lane}"
        )
    elif relative not in ((0,) if shape == "32x32b" else (0, 16)):
        wanted = "0" if shape == "32x32b" else "0 or 16"
        found.append(
            f"the address names lane {relative} of the warp's quarter, .{shape} starts at lane {wanted}"
        )
    end = column + ld_st_columns(shape, num, split, packed)
    if end > COLUMNS:
        found.append(
            f".{shape}.x{num} at column {column} reaches column {end - 1}, tensor memory has {COLUMNS}"
        )
    return found


def warp_base(address: int, warp: int) -> int:
    """First lane that a warp's ld/st touches: the lane field counts from the warp's quarter or absolutely."""
    lane = lane_of(address)
    return lane if lane >= 32 else 32 * (warp % 4) + lane


# ---------------------------------------------------------------------------------------------------------
# tcgen05.cp
# ---------------------------------------------------------------------------------------------------------

# (shape, multicast) -> rows and bytes per row of the SMEM matrix
_CP = {
    ("128x256b", ""): (128, 32),
    ("4x256b", ""): (4, 32),
    ("128x128b", ""): (128, 16),
    ("64x128b", "warpx2::02_13"): (64, 16),
    ("64x128b", "warpx2::01_23"): (64, 16),
    ("32x128b", "warpx4"): (32, 16),
}


def cp_size(shape: str, multicast: str = "") -> tuple[int, int]:
    """(rows, bytes per row) that tcgen05.cp reads. Raises ValueError for a combination PTX does not have."""
    size = _CP.get((shape, multicast))
    if size is None:
        legal = ", ".join(f".{s}{'.' + m if m else ''}" for s, m in _CP)
        raise ValueError(f"tcgen05.cp has no .{shape}{'.' + multicast if multicast else ''}; it has {legal}")
    return size


@lru_cache(maxsize=64)
def cp_lanes(shape: str, multicast: str = "") -> Array:
    """Destination lanes, int32 (copies, rows): row r of the matrix goes to lane [c, r] for every copy c.

    warpx4 feeds all four 32-lane partitions; warpx2::02_13 rows 0-31 to partitions 0 and 2, rows 32-63 to
    1 and 3; warpx2::01_23 rows 0-31 to 0 and 1, rows 32-63 to 2 and 3; 4x256b one row per partition.
    """
    rows, _ = cp_size(shape, multicast)
    row = np.arange(rows, dtype=np.int32)[None, :]
    if rows == 4:
        return row * 32
    if multicast == "warpx4":
        return row + 32 * np.arange(4, dtype=np.int32)[:, None]
    if multicast == "warpx2::02_13":
        return row + 64 * np.arange(2, dtype=np.int32)[:, None]
    if multicast == "warpx2::01_23":
        return row % 32 + 64 * (row // 32) + 32 * np.arange(2, dtype=np.int32)[:, None]
    return row


def cp(
    tmem: Array, smem: Array, desc: SmemDescriptor, shape: str, multicast: str = "", address: int = 0
) -> None:
    """tcgen05.cp: copy the matrix that `desc` points at (K-major, rows x 16 or 32 bytes) into TMEM columns.

    Raises ValueError for an illegal shape or a descriptor outside shared memory.
    """
    rows, row_bytes = cp_size(shape, multicast)
    cells = smem_descriptor.gather_chunks(smem, desc, rows, row_bytes, 8).view(np.uint32)
    column = address & 0xFFFF
    target = tmem[:, column : column + row_bytes // 4]
    if multicast == "warpx4":
        target.reshape(4, 32, -1)[...] = cells
    elif rows == LANES:
        target[...] = cells
    else:
        lane = lane_of(address)
        for lanes in cp_lanes(shape, multicast):
            target[lanes + lane] = cells


def cp_problems(shape: str, multicast: str, address: int) -> list[str]:
    """What makes the TMEM address of a tcgen05.cp illegal, one sentence each."""
    rows, row_bytes = cp_size(shape, multicast)
    lane, column = lane_of(address), column_of(address)
    found = []
    if lane and (rows != 4 or lane >= 32):
        found.append(f"the address names lane {lane}; tcgen05.cp.{shape} starts at lane 0")
    if column % 4:
        found.append(f"tcgen05.cp writes to column {column}, which is not a multiple of 4 (128 bits)")
    end = column + row_bytes // 4
    if end > COLUMNS:
        found.append(
            f"tcgen05.cp.{shape} at column {column} reaches column {end - 1}, tensor memory has {COLUMNS}"
        )
    return found
