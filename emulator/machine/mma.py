"""Execution of one tcgen05.mma: which bytes it reads, what it computes, where the accumulator goes.

Everything that depends on the operands of the instruction alone is worked out once per distinct instruction
(:func:`plan`); executing then costs two gathers and a matrix product.  Consecutive MMAs that walk along K inside one
swizzled row (the four K = 16 slices of a 64-element fp16 tile) are fused into one product: the tensor core executes the
MMAs of one thread in order, so nobody can see the difference.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from emulator.checks import happens_before as hb
from emulator.machine import smem_descriptor as sd
from emulator.machine import tmem_layout as tl
from emulator.machine.instr_descriptor import InstrDescriptor
from emulator.machine.smem_descriptor import SmemDescriptor
from emulator.numerics import formats
from emulator.numerics import tensor_core as tc

if TYPE_CHECKING:
    from emulator.machine.cta import Cta
    from emulator.observables import RunningMma

_FUSED_K_BYTES = 128


@dataclass(frozen=True)
class Operand:
    """An operand in shared memory: descriptor, the region it covers and its first and last byte."""

    desc: SmemDescriptor
    region: Any
    low: int
    high: int


@dataclass(frozen=True)
class Plan:
    """What one tcgen05.mma with these operands does, in every CTA of its group.

    Attributes:
        idesc: the decoded instruction descriptor; letter: layout of D; rows: rows of A and D per CTA.
        a: operand A in shared memory, None when it lies in tensor memory; b: operand B (per CTA: N / group rows).
        columns: TMEM columns of D; problems: what is illegal, (code, sentence).
    """

    idesc: InstrDescriptor
    kind: str
    group: int
    letter: str
    rows: int
    a: Operand | None
    b: Operand
    columns: int
    block: Any
    problems: tuple[tuple[str, str], ...]
    fusable: bool


@lru_cache(maxsize=4096)
def operand(encoded: int, rows: int, k: int, bits: int, major: str) -> Operand:
    """Region of an operand tile in shared memory."""
    desc = SmemDescriptor.decode(encoded)
    chunks = np.sort(sd.chunk_addresses(desc, rows, k, bits, major))  # type: ignore[arg-type]
    return Operand(desc, hb.Chunks(chunks, 16), int(chunks[0]), int(chunks[-1]) + 16)


@lru_cache(maxsize=1024)
def tmem_block(address: int, columns: int, scattered: bool = False) -> Any:
    """TMEM columns in all 128 lanes, or in the 16 lanes per quarter of layouts C and F that the address names."""
    column = address & 0xFFFF
    if scattered:
        return hb.TmemBlock(column, columns, lane0=address >> 16 & 16, layout="F")
    return hb.TmemBlock(column, columns)


def writes_its_a(p: Plan, a: int) -> bool:
    """Whether the accumulator covers a part of operand A, which is in TMEM at `a`."""
    first, d = a & 0xFFFF, p.block
    beside = first >= d.column + d.columns or d.column >= first + tl.a_columns(p.idesc.k, p.idesc.a_operand)
    other_lanes = p.letter in ("C", "F") and (a >> 16 & 16) != d.lane0
    return not (beside or other_lanes)


@lru_cache(maxsize=4096)
def plan(
    kind: str,
    group: int,
    ws: bool,
    scale_vec: int,
    idesc: int,
    a_desc: int | None,
    a_tmem: int | None,
    b_desc: int,
    d: int,
) -> Plan:
    """Decode and check one MMA. Addresses and descriptors are the instruction's operands."""
    i = InstrDescriptor.decode(idesc, kind)  # type: ignore[arg-type]
    problems = [("tcgen05.bad-instruction-descriptor", p) for p in i.problems(group, ws, scale_vec or None)]
    if problems:
        empty = Operand(SmemDescriptor.decode(b_desc), None, 0, 0)
        return Plan(i, kind, group, "", 0, None, empty, 0, None, tuple(problems), False)
    letter = tl.datapath(i.m, group, ws, i.sparse)
    rows = i.m // group
    problems += [("tcgen05.bad-tmem-address", p) for p in tl.d_problems(letter, i.n, d)]
    a = None
    if a_desc is not None:
        problems += [
            ("tcgen05.bad-descriptor", "A: " + p)
            for p in sd.problems(SmemDescriptor.decode(a_desc), rows, i.k, i.a_operand, i.a_major)
        ]
        if not problems:
            a = operand(a_desc, rows, i.k, i.a_operand.smem_bits, i.a_major)
    problems += [
        ("tcgen05.bad-descriptor", "B: " + p)
        for p in sd.problems(SmemDescriptor.decode(b_desc), i.n // group, i.k, i.b_operand, i.b_major)
    ]
    if problems:
        b = Operand(SmemDescriptor.decode(b_desc), None, 0, 0)
    else:
        b = operand(b_desc, i.n // group, i.k, i.b_operand.smem_bits, i.b_major)
    columns = tl.d_columns(letter, i.n)
    fusable = (
        i.b_major == "K"
        and (a is not None and i.a_major == "K")
        and not i.block_scaled
        and not i.sparse
        and i.d_format == "f32"
    )
    return Plan(
        i,
        kind,
        group,
        letter,
        rows,
        a,
        b,
        columns,
        tmem_block(d, columns, letter in ("C", "F")),
        tuple(problems),
        fusable,
    )


class Mma:
    """An issued tcgen05.mma (or a run of fused ones), executed when the tensor core gets to it."""

    __slots__ = (
        "plan",
        "ctas",
        "d",
        "a_tmem",
        "enable",
        "scales",
        "scale_vec",
        "exact",
        "factor",
        "k",
        "last_a",
        "last_b",
        "loads_beside",
    )

    def __init__(
        self,
        plan: Plan,
        ctas: list[Cta],
        d: int,
        a_tmem: int | None,
        enable: bool,
        scales: tuple[int, int] | None,
        scale_vec: int,
        exact: bool,
        factor: int = 1,
    ) -> None:
        """``factor``: what the product is multiplied by, to see what depends on it."""
        self.plan = plan
        self.factor = factor
        self.ctas = ctas
        self.d = d
        self.a_tmem = a_tmem
        self.enable = enable
        self.scales = scales
        self.scale_vec = scale_vec
        self.exact = exact
        self.k = plan.idesc.k
        self.last_a = plan.a.desc.start if plan.a is not None else 0
        self.last_b = plan.b.desc.start
        self.loads_beside: RunningMma | None = None  # what is observed of it

    def fuse(self, other: Mma) -> bool:
        """Append ``other`` when it is the next K slice of the same product; True when that was possible."""
        p, q = self.plan, other.plan
        if not (
            p.fusable
            and q.fusable
            and other.enable
            and p.idesc is q.idesc
            and self.d == other.d
            and self.factor == other.factor
            and self.ctas == other.ctas
        ):
            return False
        assert p.a is not None and q.a is not None
        step = p.idesc.k * p.idesc.a_operand.smem_bits // 8
        if q.a.desc.start != self.last_a + step or q.b.desc.start != self.last_b + step:
            return False
        swizzle = p.a.desc.swizzle
        if swizzle is None or swizzle is not q.a.desc.swizzle:
            return False
        if (self.k + p.idesc.k) * p.idesc.a_operand.smem_bits // 8 > swizzle.row_bytes:
            return False
        first = (p.a.desc.start % _FUSED_K_BYTES, p.b.desc.start % _FUSED_K_BYTES)
        if (
            first != (0, 0)
            or (p.a.desc.lbo, p.a.desc.sbo) != (q.a.desc.lbo, q.a.desc.sbo)
            or (p.b.desc.lbo, p.b.desc.sbo) != (q.b.desc.lbo, q.b.desc.sbo)
        ):
            return False
        if p.b.desc.swizzle is not p.a.desc.swizzle or q.b.desc.swizzle is not p.b.desc.swizzle:
            return False
        self.k += p.idesc.k
        self.last_a, self.last_b = q.a.desc.start, q.b.desc.start
        return True

    # ------------------------------------------------------------------------------------------ execution

    def complete(self) -> None:
        """Read the operands, multiply, accumulate into every CTA's tensor memory."""
        beside = self.ctas[0].cluster.beside_mma
        if beside is not None and self.loads_beside is not None:
            beside.mma_completed(self.loads_beside)
        p, i = self.plan, self.plan.idesc
        parts = [
            sd.gather_float32(c.smem, p.b.desc, i.n // p.group, self.k, i.b_operand, i.b_major)
            for c in self.ctas
        ]
        b = parts[0] if len(parts) == 1 else np.concatenate(parts)
        if i.negate_b:
            b = -b
        if self.factor != 1:
            b = b * self.factor
        for c in self.ctas:
            if p.a is not None:
                a = sd.gather_float32(c.smem, p.a.desc, p.rows, self.k, i.a_operand, i.a_major)
                self._accumulate(c, -a if i.negate_a else a, b)
            else:
                self._accumulate_from_tmem(c, b)

    def _accumulate_from_tmem(self, c: Cta, b: np.ndarray) -> None:
        """A in tensor memory: in a folded layout bank j feeds column part j of D."""
        p, i = self.plan, self.plan.idesc
        assert self.a_tmem is not None
        banks = tl.gather_a(c.tmem.cells, p.letter, self.k, i.a_operand, self.a_tmem)  # type: ignore[arg-type]
        decoded = [formats.to_float32(bank, i.a_operand) for bank in banks]
        if i.negate_a:
            decoded = [-a for a in decoded]
        if len(decoded) == 1:
            self._accumulate(c, decoded[0], b)
            return
        part = i.n // len(decoded)
        halves = [
            self._product(c, a, b[j * part : (j + 1) * part], None, None) for j, a in enumerate(decoded)
        ]
        view = tl.d_view(c.tmem.f32, p.letter, i.n, self.d)  # type: ignore[arg-type]
        total = np.concatenate(halves, axis=1).reshape(view.shape)
        view[...] = view + total if self.enable else total

    def _accumulate(self, c: Cta, a: np.ndarray, b: np.ndarray) -> None:
        p, i = self.plan, self.plan.idesc
        if i.d_format == "f32" and not self.exact and self.scales is None:
            view = tl.d_view(c.tmem.f32, p.letter, i.n, self.d)  # type: ignore[arg-type]
            with np.errstate(all="ignore"):
                product = np.matmul(a, b.T).reshape(view.shape)
                if self.enable:
                    np.add(view, product, out=view)
                else:
                    view[...] = product
            return
        view = tl.d_view(c.tmem.cells, p.letter, i.n, self.d)  # type: ignore[arg-type]
        old = np.ascontiguousarray(view).reshape(p.rows, i.n) if self.enable else None
        scale_a, scale_b = self._scales(c)
        if i.d_format == "s32":
            result = tc.mma_int8(a, b, None if old is None else old.view(np.int32), i.saturate).view(
                np.uint32
            )
        elif i.d_format == "f16":
            half = None if old is None else (old & 0xFFFF).astype(np.uint16).view(np.float16)
            result = (
                self._product(c, a, b, scale_a, scale_b, half, "f16")
                .astype(np.float16)
                .view(np.uint16)
                .astype(np.uint32)
            )
        else:
            result = self._product(
                c, a, b, scale_a, scale_b, None if old is None else old.view(np.float32)
            ).view(np.uint32)
        view[...] = result.reshape(view.shape)

    def _scales(self, c: Cta) -> tuple[np.ndarray | None, np.ndarray | None]:
        """Scale factor codes of A's own rows and of all N rows of B, from this CTA's tensor memory."""
        if self.scales is None:
            return None, None
        p, i = self.plan, self.plan.idesc
        vec = self.scale_vec or 1
        return (
            tl.gather_scales(c.tmem.cells, p.rows, vec, self.scales[0], i.a_sf_id),
            tl.gather_scales(c.tmem.cells, i.n, vec, self.scales[1], i.b_sf_id),
        )

    def _product(
        self,
        c: Cta,
        a: np.ndarray,
        b: np.ndarray,
        scale_a: np.ndarray | None,
        scale_b: np.ndarray | None,
        old: np.ndarray | None = None,
        d: str = "f32",
    ) -> np.ndarray:
        i = self.plan.idesc
        if self.exact or d == "f16":
            return tc.mma_exact(
                a, b, old, i.a_operand, i.b_operand, d, "tcgen05", scale_a, scale_b, i.scale_format or "ue8m0"
            )
        if scale_a is not None and scale_b is not None:
            a = tc.scale_operand(a, scale_a, i.scale_format or "ue8m0")
            b = tc.scale_operand(b, scale_b, i.scale_format or "ue8m0")
        with np.errstate(all="ignore"):
            return tc.mma_fast(a, b, old)
