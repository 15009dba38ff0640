"""Warp-level matrix instructions: ldmatrix, stmatrix, movmatrix and mma.sync (PTX ISA, "Warp Level Matrix Instructions").

A fragment of a warp is ``uint32[registers, 32]``.  With ``g = lane / 4``, ``q = lane % 4`` and ``e`` elements per register:

* 8x8 matrix of 16-bit elements: lane holds row g, columns 2q and 2q+1; with ``.trans`` the matrix is transposed on the way;
* A of mma (M x K): register ``2 h + r`` holds row ``g + 8 r``, columns ``4 e h + e q ...``;
* B of mma (K x N): register h holds column g, rows ``4 e h + e q ...``;
* C and D (M x 8): elements ``2 r + j``: row ``g + 8 r``, column ``2 q + j``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from emulator import runtime
from emulator.instructions.ld_st import block_of
from emulator.instructions.registers import unsupported
from emulator.instructions.registry import Mods, instruction
from emulator.instructions.warp import by_warp
from emulator.lanes import Value
from emulator.numerics import formats, tensor_core
from emulator.numerics.rounding import canonical_nan
from emulator.threads import Threads

_ROW = np.dtype(np.complex128)  # 16 bytes moved as they are
_U8, _U16, _U32, _F32 = np.dtype(np.uint8), np.dtype(np.uint16), np.dtype(np.uint32), np.dtype(np.float32)


# ---------------------------------------------------------------------------------------------- rows in shared memory


@lru_cache(maxsize=256)
def _providers(warps: tuple[int, ...], rows: int) -> np.ndarray:
    """Strand lanes that give row addresses: the first ``rows`` lanes of each warp."""
    return (np.asarray(warps)[:, None] * 32 + np.arange(rows)).reshape(-1)


def _active_positions(t: Threads) -> tuple[int, ...]:
    """Positions in the strand of the warps that execute the instruction."""
    if t.mask is None:
        return tuple(range(len(t.warps)))
    return tuple(np.flatnonzero(t.mask.reshape(-1, 32).any(axis=1)).tolist())


def _all_lanes(t: Threads) -> Threads:
    """The whole strand, masked or not."""
    if t.mask is None:
        return t
    return t if t.parent is None else _all_lanes(t.parent)


def _row_access(
    t: Threads, address: Value, rows: int, write: bool, what: str
) -> tuple[np.ndarray, np.ndarray, tuple[int, ...]]:
    """(16-byte view of shared memory, row indices ``[warps, rows]``, positions of the executing warps)."""
    positions = _active_positions(t)
    lanes = _providers(positions, rows)
    addresses = by_warp(t, address).reshape(-1)[lanes]
    cta, offsets = runtime.remote(t, addresses)
    if cta is t.cta:
        runtime.shared_offsets(t, offsets, 16, what)
    else:
        cta.check_shared(int(offsets.min()), int(offsets.max()) + 16, what)
    hb = t.cta.cluster.hb
    if hb is not None:
        who = _all_lanes(t).hb_lanes()
        if len(lanes) != t.count:
            who = who.select(lanes)
        (hb.smem_write if write else hb.smem_read)(who, cta.rank, offsets, 16, t.rd_site, what=what)
    statistics = t.cta.machine.statistics
    if statistics is not None:
        for row in offsets.reshape(len(positions), rows):
            statistics.add_shared(2 * t.site + write, row, 16)
    return cta.view(_ROW), (offsets // 16).reshape(len(positions), rows), positions


def _result(t: Threads, fragments: np.ndarray, positions: tuple[int, ...]) -> np.ndarray:
    """``uint32[warps, registers, 32]`` of the executing warps as ``uint32[registers, L]``."""
    count = len(t.warps)
    if len(positions) != count:
        full = np.zeros((count, *fragments.shape[1:]), dtype=_U32)
        full[list(positions)] = fragments
        fragments = full
    return np.ascontiguousarray(fragments.transpose(1, 0, 2)).reshape(fragments.shape[1], -1)


def _fragments(t: Threads, block: np.ndarray, positions: tuple[int, ...]) -> np.ndarray:
    """``uint32[registers, L]`` as ``[warps, registers, 32]`` of the executing warps."""
    if block.shape[1] != t.count:
        block = np.broadcast_to(block, (block.shape[0], t.count))
    by_warps = block.reshape(block.shape[0], -1, 32).transpose(1, 0, 2)
    return by_warps if len(positions) == by_warps.shape[0] else by_warps[list(positions)]


def _number(mods: Mods) -> int:
    return int(mods["num"][1:])


@instruction("ptx.ldmatrix", collective=True, counter="ldmatrix", factory=True)
def ldmatrix(mods: Mods) -> Callable[..., Any]:
    """``ldmatrix.m8n8.{x1,x2,x4}[.trans].b16``: lane ``8 j + i`` gives the address of row i of matrix j."""
    num, trans = _number(mods), "trans" in mods

    def op(t: Threads, address: Value) -> np.ndarray:
        view, rows, positions = _row_access(t, address, 8 * num, False, "ldmatrix")
        raw = view[rows]
        if trans:
            halves = raw.view(_U16).reshape(len(positions), num, 8, 8)
            raw = np.ascontiguousarray(halves.swapaxes(2, 3))
        return _result(t, raw.view(_U32).reshape(len(positions), num, 32), positions)

    return op


@instruction("ptx.stmatrix", collective=True, counter="stmatrix", factory=True)
def stmatrix(mods: Mods) -> Callable[..., Any]:
    """``stmatrix.m8n8.{x1,x2,x4}[.trans].b16``: the inverse of ldmatrix."""
    num, trans = _number(mods), "trans" in mods

    def op(t: Threads, address: Value, group: Any) -> None:
        view, rows, positions = _row_access(t, address, 8 * num, True, "stmatrix")
        data = np.ascontiguousarray(_fragments(t, block_of(t, group, _U32), positions))
        if trans:
            halves = data.view(_U16).reshape(len(positions), num, 8, 8)
            data = np.ascontiguousarray(halves.swapaxes(2, 3))
        view[rows] = data.reshape(len(positions), 8 * num, -1).view(_ROW)[:, :, 0]
        t.cta.machine.progress += 1

    return op


def _transpose_16x16(rows: np.ndarray) -> np.ndarray:
    """Bytes ``[warps, matrices, 16, 16]`` as fragments: register r of lane ``4 g + q`` holds rows 4q.. of column g + 8 r."""
    w, n = rows.shape[:2]
    columns = rows.swapaxes(2, 3)  # [w, n, column, row]
    registers = np.ascontiguousarray(columns).view(_U32).reshape(w, n, 2, 8, 4)
    return registers.reshape(w, 2 * n, 32)


def _expand(rows: np.ndarray, bits: int) -> np.ndarray:
    """Rows of 16 packed 4- or 6-bit elements (and padding) as one byte per element."""
    if bits == 4:
        packed = rows[..., :8]
        return np.stack([packed & 0xF, packed >> 4], axis=-1).reshape(*rows.shape[:-1], 16)
    triples = rows[..., :12].reshape(*rows.shape[:-1], 4, 3).astype(np.uint32)
    word = triples[..., 0] | triples[..., 1] << 8 | triples[..., 2] << 16
    elements = word[..., None] >> np.array([0, 6, 12, 18], dtype=np.uint32) & np.uint32(0x3F)
    return elements.astype(np.uint8).reshape(*rows.shape[:-1], 16)


@instruction(
    "ptx.ldmatrix_m16n16_b8", "ptx.ldmatrix_b8fmt", collective=True, counter="ldmatrix", factory=True
)
def ldmatrix_b8(mods: Mods) -> Callable[..., Any]:
    """8-bit matrices: ``m16n16.trans`` and ``m8n16``, also from packed 4- and 6-bit rows (``b8x16`` formats)."""
    num, wide = _number(mods), mods["shape"] == "m16n16"
    bits = {"b4x16_p64": 4, "b6x16_p32": 6}.get(mods["src_fmt"], 8)
    if wide and num == 4:
        raise unsupported("ldmatrix", mods, ".m16n16 takes .x1 or .x2")
    height = 16 if wide else 8

    def op(t: Threads, address: Value) -> np.ndarray:
        view, rows, positions = _row_access(t, address, height * num, False, "ldmatrix")
        raw = np.ascontiguousarray(view[rows]).view(_U8).reshape(len(positions), num, height, 16)
        if bits != 8:
            raw = _expand(raw, bits)
        if wide:
            return _result(t, _transpose_16x16(raw), positions)
        return _result(t, np.ascontiguousarray(raw).view(_U32).reshape(len(positions), num, 32), positions)

    return op


@instruction("ptx.stmatrix_m16n8_b8", collective=True, counter="stmatrix", factory=True)
def stmatrix_b8(mods: Mods) -> Callable[..., Any]:
    """``stmatrix.m16n8.trans.b8``: lane ``4 g + q`` holds elements (g, 2q), (g, 2q+1), (g+8, 2q), (g+8, 2q+1); column c
    of matrix j is stored at the address that lane ``8 j + c`` gives."""
    num = _number(mods)

    def op(t: Threads, address: Value, group: Any) -> None:
        view, rows, positions = _row_access(t, address, 8 * num, True, "stmatrix")
        data = np.ascontiguousarray(_fragments(t, block_of(t, group, _U32), positions))
        elements = data.view(_U8).reshape(len(positions), num, 8, 4, 2, 2)  # g, q, row half, column parity
        columns = np.ascontiguousarray(
            elements.transpose(0, 1, 3, 5, 4, 2)
        )  # column = 2 q + parity, row = 8 half + g
        view[rows] = columns.reshape(len(positions), 8 * num, 16).view(_ROW)[:, :, 0]
        t.cta.machine.progress += 1

    return op


@instruction("ptx.movmatrix", collective=True, counter="movmatrix")
def movmatrix(mods: Mods, t: Threads, a: Value) -> np.ndarray:
    """``movmatrix.m8n8.trans.b16``: the warp's 8x8 matrix of 16-bit elements, transposed."""
    positions = _active_positions(t)
    rows = (
        np.ascontiguousarray(by_warp(t, a)[list(positions)].astype(_U32))
        .view(_U16)
        .reshape(len(positions), 8, 8)
    )
    turned = np.ascontiguousarray(rows.swapaxes(1, 2)).view(_U32).reshape(len(positions), 1, 32)
    return _result(t, turned, positions)[0].astype(np.int64)


# ---------------------------------------------------------------------------------------------- mma.sync


def operand_a(registers: np.ndarray, element: np.dtype, rows: int) -> np.ndarray:
    """A fragments ``[warps, registers, 32]`` as ``element[warps, rows, K]``."""
    w, n, _ = registers.shape
    e = registers.dtype.itemsize // element.itemsize
    halves = rows // 8
    x = np.ascontiguousarray(registers).view(element).reshape(w, n // halves, halves, 8, 4, e)
    return np.ascontiguousarray(x.transpose(0, 2, 3, 1, 4, 5)).reshape(w, rows, -1)


def operand_b(registers: np.ndarray, element: np.dtype) -> np.ndarray:
    """B fragments ``[warps, registers, 32]`` as ``element[warps, 8, K]`` (N x K)."""
    w, n, _ = registers.shape
    e = registers.dtype.itemsize // element.itemsize
    x = np.ascontiguousarray(registers).view(element).reshape(w, n, 8, 4, e)
    return np.ascontiguousarray(x.transpose(0, 2, 1, 3, 4)).reshape(w, 8, -1)


def accumulator(values: np.ndarray, rows: int) -> np.ndarray:
    """C elements ``[warps, 2 halves, 32]`` as ``[warps, rows, 8]``."""
    w = values.shape[0]
    x = values.reshape(w, rows // 8, 2, 8, 4)
    return np.ascontiguousarray(x.transpose(0, 1, 3, 4, 2)).reshape(w, rows, 8)


def from_accumulator(d: np.ndarray) -> np.ndarray:
    """The inverse of :func:`accumulator`."""
    w, rows, _ = d.shape
    x = d.reshape(w, rows // 8, 8, 4, 2).transpose(0, 1, 4, 2, 3)
    return np.ascontiguousarray(x).reshape(w, rows // 4, 32)


def _decode(x: np.ndarray, fmt: formats.ElementFormat) -> np.ndarray:
    """Operand elements as float32 (tf32: the low 13 bits are ignored)."""
    if fmt is formats.TF32:
        return (x & np.uint32(0xFFFFE000)).view(np.float32)
    if fmt is formats.F16:
        return x.view(np.float16).astype(np.float32)
    if fmt is formats.BF16:
        return (x.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return formats.decode_table(fmt)[x]


_CARRIER: dict[int, np.dtype[Any]] = {32: _U32, 16: _U16, 8: _U8}


def _shape(mods: Mods) -> tuple[int, int, int]:
    m, rest = mods["shape"][1:].split("n")
    n, k = rest.split("k")
    return int(m), int(n), int(k)


def _multiply(
    t: Threads, a: np.ndarray, b: np.ndarray, c: np.ndarray, fa: Any, fb: Any, d_format: str
) -> np.ndarray:
    """D = A B^T + C for each warp, float32 (or float16)."""
    if t.cta.machine.numerics == "exact":
        one = _exact_fp8 if fa.bits == 8 else _exact
        return np.stack([one(a[w], b[w], c[w], fa, fb, d_format) for w in range(len(a))])
    d = np.matmul(a, b.swapaxes(1, 2)) + c
    return d.astype(np.float16) if d_format == "f16" else d


def _exact(a: np.ndarray, b: np.ndarray, c: np.ndarray, fa: Any, fb: Any, d_format: str) -> np.ndarray:
    return tensor_core.mma_exact(a, b, c, fa, fb, d_format, "mma.sync")


def _exact_fp8(a: np.ndarray, b: np.ndarray, c: np.ndarray, fa: Any, fb: Any, d_format: str) -> np.ndarray:
    """8-bit floats as sm_90 multiplies them: widened to f16 (the low and the high pair of every four elements in turn),
    summed from zero, and added to C with one more rounding.  Measured on an H200, all results equal."""
    k = np.arange(a.shape[1])
    total = None
    for part in (k[k % 4 < 2], k[k % 4 >= 2]):
        total = tensor_core.mma_exact(a[:, part], b[:, part], total, "f16", "f16", d_format, "mma.sync")
    assert total is not None
    d = c + total.astype(np.float32)
    return canonical_nan(d.astype(np.float16) if d_format == "f16" else d)


def _count(t: Threads, mods: Mods, positions: tuple[int, ...]) -> None:
    m, n, k = _shape(mods)
    t.cta.machine.count("flops.mma.sync", 2 * m * n * k * len(positions))


@instruction("ptx.mma", "ptx.mma_f16acc", collective=True, counter="mma.sync", factory=True)
def mma(mods: Mods) -> Callable[..., Any]:
    """``mma.sync.m16n8k*.row.col`` on f16, bf16, tf32, e4m3 and e5m2, with f32 or f16 accumulation."""
    m, n, _ = _shape(mods)
    if (m, n) != (16, 8) or mods["alayout"] != "row" or mods["blayout"] != "col":
        raise unsupported("mma.sync", mods, "only m16n8 shapes in row.col layout exist since sm_80")
    fa, fb = formats.lookup(mods["atype"]), formats.lookup(mods["btype"])
    carrier_a, carrier_b = _CARRIER[fa.bits], _CARRIER[fb.bits]
    half = mods["dtype"] == "f16"

    def op(t: Threads, a_group: Any, b_group: Any, c_group: Any) -> np.ndarray:
        positions = _active_positions(t)
        _count(t, mods, positions)
        a = _decode(operand_a(_fragments(t, block_of(t, a_group, _U32), positions), carrier_a, 16), fa)
        b = _decode(operand_b(_fragments(t, block_of(t, b_group, _U32), positions), carrier_b), fb)
        c_registers = np.ascontiguousarray(
            _fragments(t, block_of(t, c_group, _U32 if half else _F32), positions)
        )
        if half:
            pairs = c_registers.view(np.float16).reshape(len(positions), 2, 32, 2)
            c = accumulator(np.ascontiguousarray(pairs.transpose(0, 1, 3, 2)), 16)
            d = _multiply(t, a, b, c.astype(np.float32), fa, fb, "f16")
            elements = from_accumulator(d).reshape(len(positions), 2, 2, 32).transpose(0, 1, 3, 2)
            return _result(t, np.ascontiguousarray(elements).view(_U32)[..., 0], positions)
        d = _multiply(t, a, b, accumulator(c_registers, 16), fa, fb, "f32")
        return _result(t, from_accumulator(d.astype(np.float32, copy=False)).view(_U32), positions)

    return op


def _integers(registers: np.ndarray, name: str) -> np.ndarray:
    """Registers ``[..., 32]`` with their elements spread over bytes (4-bit types) or as they are."""
    if name in ("u8", "s8"):
        return registers
    nibbles = np.ascontiguousarray(registers).view(_U8)
    low, high = nibbles & 0xF, nibbles >> 4
    both = np.stack([low, high], axis=-1)
    return both.reshape(*registers.shape, 8)


@instruction("ptx.mma_int", collective=True, counter="mma.sync", factory=True)
def mma_int(mods: Mods) -> Callable[..., Any]:
    """``mma.sync`` on 8-, 4- and 1-bit integers, s32 accumulation, wrapping or (``.satfinite``) clamped."""
    m, _, _ = _shape(mods)
    names = mods["atype"], mods["btype"]
    saturate, bitop = "satfinite" in mods, mods["bitop"]

    def decode(registers: np.ndarray, name: str, rows: int | None) -> np.ndarray:
        if name == "b1":
            bits = np.unpackbits(
                np.ascontiguousarray(registers).view(_U8).reshape(*registers.shape, 4),
                axis=-1,
                bitorder="little",
            )
            values = bits.astype(np.uint8)
        elif name in ("u4", "s4"):
            values = _integers(registers, name)
            if name == "s4":
                values = ((values ^ 8).astype(np.int16) - 8).astype(np.int8).view(np.uint8)
        else:
            values = np.ascontiguousarray(registers).view(_U8).reshape(*registers.shape, 4)
        x = _arrange(values, rows)
        return x.view(np.int8) if name in ("s8", "s4") else x

    def op(t: Threads, a_group: Any, b_group: Any, c_group: Any) -> np.ndarray:
        positions = _active_positions(t)
        _count(t, mods, positions)
        a = decode(_fragments(t, block_of(t, a_group, _U32), positions), names[0], m).astype(np.float64)
        b = decode(_fragments(t, block_of(t, b_group, _U32), positions), names[1], None).astype(np.float64)
        c = accumulator(
            np.ascontiguousarray(_fragments(t, block_of(t, c_group, _U32), positions)).view(np.int32), m
        )
        if bitop == "xor":
            total = a @ (1 - b).swapaxes(1, 2) + (1 - a) @ b.swapaxes(1, 2)
        else:
            total = a @ b.swapaxes(1, 2)
        wide = total.astype(np.int64) + c
        if saturate:
            wide = np.clip(wide, -(2**31), 2**31 - 1)
        return _result(t, from_accumulator(wide.astype(np.int32)).view(_U32), positions)

    return op


def _arrange(values: np.ndarray, rows: int | None) -> np.ndarray:
    """Elements ``[warps, registers, 32, e]`` as ``[warps, rows or 8, K]``."""
    w, n, _, e = values.shape
    if rows is None:
        x = values.reshape(w, n, 8, 4, e).transpose(0, 2, 1, 3, 4)
        return np.ascontiguousarray(x).reshape(w, 8, -1)
    halves = rows // 8
    x = values.reshape(w, n // halves, halves, 8, 4, e).transpose(0, 2, 3, 1, 4, 5)
    return np.ascontiguousarray(x).reshape(w, rows, -1)


@instruction("ptx.mma_f64", collective=True, counter="mma.sync", factory=True)
def mma_f64(mods: Mods) -> Callable[..., Any]:
    """``mma.sync`` in double precision, rounding to nearest even."""
    m, _, _ = _shape(mods)
    if mods["rnd"] not in ("", "rn"):
        raise unsupported("mma.sync", mods, "directed rounding of f64")
    f64 = np.dtype(np.float64)

    def op(t: Threads, a_group: Any, b_group: Any, c_group: Any) -> np.ndarray:
        positions = _active_positions(t)
        _count(t, mods, positions)
        a = operand_a(_fragments(t, block_of(t, a_group, f64), positions), f64, m)
        b = operand_b(_fragments(t, block_of(t, b_group, f64), positions), f64)
        c = accumulator(np.ascontiguousarray(_fragments(t, block_of(t, c_group, f64), positions)), m)
        d = from_accumulator(a @ b.swapaxes(1, 2) + c)
        count = len(t.warps)
        out = np.zeros((count, *d.shape[1:]), dtype=f64)
        out[list(positions)] = d
        return np.ascontiguousarray(out.transpose(1, 0, 2)).reshape(d.shape[1], -1)

    return op
