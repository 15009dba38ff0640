"""Tensor memory and the fifth-generation tensor core (PTX ISA, "TensorCore 5th Generation Family Instructions")."""

from __future__ import annotations

from collections.abc import Generator
from functools import lru_cache
from typing import Any

import numpy as np

from emulator import lanes
from emulator.errors import DeviceFault, UnsupportedInstruction
from emulator.instructions.descriptors import matrix_descriptor
from emulator.instructions.ld_st import block_of
from emulator.instructions.mbarrier import update
from emulator.instructions.registry import Mods, instruction
from emulator.machine import mma
from emulator.machine import tmem_layout as tl
from emulator.machine.address import OFFSET_MASK, POOL_BASE
from emulator.machine.cta import TMEM_COLUMNS, Cta
from emulator.machine.smem_descriptor import SmemDescriptor
from emulator.scheduler import Wait
from emulator.threads import Threads

# ---------------------------------------------------------------------------------------------- descriptors


@instruction("cuda.tcgen05_encode_matrix_descriptor", destination=0)
def encode_matrix_descriptor(mods: Mods, t: Threads, pointer: Any, ldo: Any, sdo: Any, swizzle: Any) -> Any:
    """SMEM matrix descriptor; ``ldo`` and ``sdo`` are in units of 16 bytes, ``swizzle`` is TIRx's mode number."""
    code = {0: 0, 1: 6, 2: 4, 3: 2, 4: 1}.get(int(lanes.pick(swizzle, 0)))
    if code is None:
        raise DeviceFault(
            "tcgen05.bad-descriptor",
            f"swizzle mode {swizzle} does not exist",
            "use 0 (none), 1 (32B), 2 (64B), 3 (128B) or 4 (128B with 32-byte atoms)",
            site=t.site,
        )
    return matrix_descriptor(pointer, ldo, sdo, 1 << 46 | code << 61)


# ---------------------------------------------------------------------------------------------- allocation


class AllocationWait(Wait):
    """tcgen05.alloc waits for free columns."""

    __slots__ = ("tmems", "columns", "site", "warps")
    kind = "tcgen05.alloc"

    def __init__(self, tmems: list[Any], columns: int, site: int, warps: list[int]) -> None:
        self.tmems = tmems
        self.columns = columns
        self.site = site
        self.warps = warps

    def ready(self) -> bool:
        return all(tm.find(self.columns) is not None for tm in self.tmems)


def _group(mods: Mods, t: Threads) -> int:
    """The cta_group; all tcgen05 instructions of a kernel use the same one (PTX ISA, "tcgen05", ".cta_group")."""
    group = 2 if "cta_group::2" in mods else 1
    machine = t.cta.machine
    first = machine.cta_group
    if first is None:
        machine.cta_group = (group, t.site)
    elif first[0] != group:
        where = machine.location(first[1])
        machine.report(
            "tcgen05.mixed-cta-group", "error",
            f"cta_group::{group} here, cta_group::{first[0]} {f'at line {where.line}' if where else 'elsewhere'}: all tcgen05 instructions of a kernel must use the same.",
            "Use cta_group::2 everywhere in a kernel whose MMAs work on pairs of CTAs, cta_group::1 everywhere otherwise.",
            t, sites=(first[1],),
        )  # fmt: skip
    return group


def _check_columns(t: Threads, columns: int, what: str) -> None:
    if columns not in (32, 64, 128, 256, 512):
        raise DeviceFault(
            "tmem.bad-size",
            f"{what} of {columns} columns; the number must be a power of two from 32 to 512",
            "round up to 32, 64, 128, 256 or 512 columns",
            site=t.site,
        )


@instruction("ptx.tcgen05_alloc", blocking=True, collective=True, counter="tcgen05.alloc")
def tcgen05_alloc(mods: Mods, t: Threads, address: Any, columns: Any) -> Generator[Wait, None, None]:
    """Allocate columns and write the base address to shared memory; one whole warp executes it."""
    columns = int(lanes.pick(columns, 0))
    _check_columns(t, columns, "tcgen05.alloc")
    _group(mods, t)
    cta = t.cta
    for _warp, addr in t.per_warp(address):
        tm = cta.tmem
        if tm.relinquished:
            raise DeviceFault(
                "tmem.alloc-after-relinquish",
                "tcgen05.alloc after this CTA gave up its right to allocate",
                "allocate before tcgen05.relinquish_alloc_permit",
                site=t.site,
            )
        if tm.find(columns) is None and tm.allocations:
            already = sum(n for n, _, _ in tm.allocations.values())
            cta.machine.report(
                "tmem.exhausted", "error",
                f"tcgen05.alloc of {columns} columns while this CTA already holds {already} of 512",
                "exactly one warp of the CTA must execute tcgen05.alloc, once",
                t, sites=tuple(s for _, s, _ in tm.allocations.values()),
            )  # fmt: skip
        while tm.find(columns) is None:
            yield AllocationWait([tm], columns, t.site, t.active_warps())
        base = tm.find(columns)
        assert base is not None
        target, offset = cta.cluster.resolve(int(addr), "tcgen05.alloc")
        tm.allocations[base] = (columns, t.site, target.name_of_shared(offset))
        held = sum(n for n, _, _ in tm.allocations.values())
        cta.machine.tmem_columns = max(cta.machine.tmem_columns, held)
        target.check_shared(offset, offset + 4, "tcgen05.alloc")
        hb = cta.cluster.hb
        if hb is not None:
            pair = "cta_group::2" in mods
            hb.tmem_alloc(cta.rank, base, columns, cta.rank * cta.num_warps + _warp, t.rd_site, pair)
            hb.smem_write(
                t.hb_lanes() if len(t.warps) == 1 else hb.lane(cta.rank * cta.num_warps + _warp),
                target.rank,
                offset,
                4,
                t.rd_site,
                what="tcgen05.alloc",
            )
        target.view(np.dtype(np.uint32))[offset // 4] = base
        cta.machine.progress += 1
        if cta.machine.trace is not None:
            cta.machine.trace.add(cta.machine, "alloc", t.site)


@instruction("ptx.tcgen05_dealloc", collective=True, counter="tcgen05.dealloc")
def tcgen05_dealloc(mods: Mods, t: Threads, address: Any, columns: Any) -> None:
    """Free columns that tcgen05.alloc returned; one whole warp executes it."""
    cta = t.cta
    _group(mods, t)
    for (_warp, addr), (_w, n) in zip(t.per_warp(address), t.per_warp(columns), strict=True):
        base, n = int(addr) & 0xFFFF, int(n)
        _check_columns(t, n, "tcgen05.dealloc")
        held = cta.tmem.allocations.get(base)
        if held is None or held[0] != n:
            have = (
                ", ".join(f"{c} columns from {b}" for b, (c, _, _) in cta.tmem.allocations.items())
                or "nothing"
            )
            raise DeviceFault(
                "tmem.bad-dealloc",
                f"tcgen05.dealloc of {n} columns from column {base}, but the CTA holds {have}",
                "free exactly what tcgen05.alloc returned, once, with the same number of columns",
                site=t.site,
            )
        del cta.tmem.allocations[base]
        cta.tmem.freed.append((base, n, t.site))
        if cta.cluster.hb is not None:
            cta.cluster.hb.tmem_dealloc(cta.rank, base, n, cta.rank * cta.num_warps + _warp, t.rd_site)
        cta.machine.progress += 1


@instruction(
    "ptx.tcgen05_relinquish_alloc_permit", collective=True, counter="tcgen05.relinquish_alloc_permit"
)
def tcgen05_relinquish(mods: Mods, t: Threads) -> None:
    _group(mods, t)
    t.cta.tmem.relinquished = True


def _check_tmem(t: Threads, cta: Cta, first: int, count: int, what: str) -> None:
    if first + count <= TMEM_COLUMNS and cta.tmem.allocated(first, first + count):
        return
    have = ", ".join(f"[{b}, {b + c})" for b, (c, _, _) in cta.tmem.allocations.items()) or "none"
    for base, columns, site in reversed(cta.tmem.freed):
        if base < first + count and first < base + columns:
            where = cta.machine.location(site)
            raise DeviceFault(
                "tmem.freed",
                f"{what} of TMEM columns {first} to {first + count - 1}, which tcgen05.dealloc{f' at line {where.line}' if where else ''} has already freed",
                "let every warp finish its tcgen05.ld and wait, then cta_sync, and only then free the columns",
                site=t.site, also=site,
            )  # fmt: skip
    raise DeviceFault(
        "tmem.not-allocated",
        f"{what} of TMEM columns {first} to {first + count - 1}; allocated columns: {have}",
        "allocate enough columns with tcgen05.alloc and use the address it wrote to shared memory",
        site=t.site,
    )


# ---------------------------------------------------------------------------------------------- mma


def _pair(t: Threads, group: int) -> list[Cta]:
    """The CTAs an instruction with this cta_group works in: (own,) or the (even, odd) pair."""
    if group == 1:
        return [t.cta]
    ctas = t.cta.cluster.ctas
    first = t.cta.rank & ~1
    if first + 1 >= len(ctas):
        raise DeviceFault(
            "tcgen05.no-peer",
            "cta_group::2 needs a cluster of at least two CTAs",
            "launch with a cluster of two CTAs",
            site=t.site,
        )
    return [ctas[first], ctas[first + 1]]


def _one_issuer(t: Threads) -> None:
    """Every thread that reaches tcgen05.mma issues one; MMAs of different threads are not ordered (PTX ISA)."""
    issuers = t.active_count()
    if issuers > 1:
        lanes_ = tuple(int(i) % 32 for i in t.active_indices()[:32])
        t.cta.machine.report(
            "race.tmem.many-issuers", "race",
            f"{issuers} threads execute tcgen05.mma here, so {issuers} MMAs run for one tile, in no particular order, on the same accumulator",
            "issue the MMA (and its commit) from one thread: put it under `if T.cuda.elect_sync():` in one warp",
            t, lanes=lanes_, data={"issuers": issuers},
        )  # fmt: skip


@lru_cache(maxsize=256)
def _scale_vec(tokens: tuple[str, ...], kind: str) -> int:
    """The 1, 2 or 4 of scale_vec::1X/2X/4X (or its block16/block32 spelling), 0 for a dense MMA."""
    for token in tokens:
        if token.startswith("scale_vec::"):
            return int(token[11])
        if token == "block16":
            return 4
        if token == "block32":
            return 2 if kind.startswith("mxf4") else 1
    return {"mxf8f6f4": 1, "mxf4": 2, "mxf4nvf4": 4}.get(kind, 0) if "block_scale" in tokens else 0


def _issue_mma(
    mods: Mods,
    t: Threads,
    d: Any,
    a: Any,
    b_desc: Any,
    idesc: Any,
    disable: Any,
    enable: Any,
    *,
    a_in_tmem: bool,
    scales: tuple[Any, Any] | None = None,
) -> None:
    group = _group(mods, t)
    kind = next(tok for tok in mods.tokens if tok.startswith("kind::"))[6:]
    scale_vec = _scale_vec(mods.tokens, kind)
    _one_issuer(t)
    if any(int(lanes.pick(x, 0)) for x in disable):
        raise UnsupportedInstruction(
            "tcgen05.mma", t.cta.machine.location(t.site), "with a disable-output-lane mask"
        )
    machine, cluster = t.cta.machine, t.cta.cluster
    ctas = _pair(t, group)
    warp = t.cta.rank * t.cta.num_warps + t.warps[0]
    for d_i, a_i, b_i, idesc_i, enable_i, *scale_i in t.rows(d, a, b_desc, idesc, enable, *(scales or ())):
        a_i = int(a_i)
        plan = mma.plan(
            kind,
            group,
            "ws" in mods,
            scale_vec,
            int(idesc_i),
            None if a_in_tmem else a_i,
            a_i if a_in_tmem else None,
            int(b_i),
            int(d_i),
        )
        op = mma.Mma(
            plan,
            ctas,
            int(d_i),
            a_i if a_in_tmem else None,
            bool(enable_i),
            (int(scale_i[0]), int(scale_i[1])) if scale_i else None,
            scale_vec,
            machine.numerics == "exact",
            2 if t.site in machine.doubled else 1,
        )
        _check_mma(t, op, warp)
        i = plan.idesc
        machine.count("flops.tcgen05.mma", 2 * i.m * i.n * i.k)
        machine.count("mma.executed")
        machine.mmas[t.site] = machine.mmas.get(t.site, 0) + 1
        if group == 2:
            machine.count("tcgen05.mma.cta_group::2")
        if a_in_tmem:
            machine.count("mma.a_in_tmem")
        if machine.tile_record is not None:
            cells = plan.rows * i.n
            machine.tile_record.mma(t.cta, t.warps[0], op.d & 0xFFFF, plan.columns, cells, not op.enable)
        if machine.trace is not None:
            machine.trace.add(machine, "mma", t.site, group, i.m, i.n, a_in_tmem)
            if machine.trace.dry:
                continue
        chain = (cluster, "mma", t.cta.rank, warp)
        queue = machine.chains.get(chain)
        beside = cluster.beside_mma
        if queue and isinstance(queue[-1].payload, mma.Mma) and queue[-1].payload.fuse(op):
            if beside is not None and queue[-1].payload.loads_beside is not None:
                beside.mma_joined(queue[-1].payload.loads_beside)
            continue
        if beside is not None:
            op.loads_beside = beside.mma_issued()
        machine.issue(chain, op.complete, "tcgen05.mma", t.site, op)


def _check_mma(t: Threads, op: mma.Mma, warp: int) -> None:
    """Legality, bounds of the operands, allocation of D, and the race detector."""
    p = op.plan
    if not t.cta.tmem.allocations and not t.cta.tmem.freed:
        _check_tmem(t, t.cta, op.d & 0xFFFF, 1, "tcgen05.mma writes its accumulator to a part")
    if p.problems:
        code = p.problems[0][0]
        raise DeviceFault(
            code,
            "tcgen05.mma: " + "; ".join(text for _, text in p.problems),
            "check shape, element types, layout, swizzle mode and offset of the operand tiles",
            site=t.site,
        )
    operands = [("B", p.b)] if p.a is None else [("A", p.a), ("B", p.b)]
    for c in op.ctas:
        for name, o in operands:
            if o.low < POOL_BASE or o.high > POOL_BASE + c.dyn_bytes:
                c.check_shared(o.low, o.high, f"tcgen05.mma operand {name}: read")
            t.cta.machine.check_tile(t, o.low, o.high, f"tcgen05.mma operand {name}: read")
        _check_tmem(t, c, op.d & 0xFFFF, p.columns, "tcgen05.mma writes its accumulator to a part")
    if op.a_tmem is not None and mma.writes_its_a(p, op.a_tmem):
        t.cta.machine.report(
            "tcgen05.operand-overlap", "race",
            f"tcgen05.mma reads its operand A from TMEM columns that its accumulator D covers, too: A begins at column"
            f" {op.a_tmem & 0xFFFF}, D has columns {op.d & 0xFFFF} to {(op.d & 0xFFFF) + p.columns - 1}. Nothing says which part of A"
            " is read before it is overwritten.",
            "Give A and D columns of their own; A may lie on an accumulator that nobody needs any more, but not on this one.",
            t,
        )  # fmt: skip
    hb = t.cta.cluster.hb
    if hb is None:
        return
    tmem_reads = []
    for c in op.ctas:
        if op.a_tmem is not None:
            tmem_reads.append(
                (
                    c.rank,
                    mma.tmem_block(
                        op.a_tmem, tl.a_columns(p.idesc.k, p.idesc.a_operand), p.letter in ("C", "F")
                    ),
                )
            )
        if op.scales is not None:
            tmem_reads.append((c.rank, mma.tmem_block(op.scales[0] & 0xFFFF, tl.scale_columns(p.rows))))
            tmem_reads.append((c.rank, mma.tmem_block(op.scales[1] & 0xFFFF, tl.scale_columns(p.idesc.n))))
    hb.mma(
        warp, t.rd_site, smem_reads=[(c.rank, o.region) for c in op.ctas for _, o in operands], tmem_reads=tmem_reads,
        tmem_writes=[(c.rank, p.block) for c in op.ctas], accumulate=op.enable,
    )  # fmt: skip


@instruction("ptx.tcgen05_mma_ss", counter="tcgen05.mma")
def tcgen05_mma_ss(
    mods: Mods, t: Threads, d: Any, a: Any, b: Any, idesc: Any, disable: Any, enable: Any, *extra: Any
) -> None:
    """D = A B^T (+ D), A and B in shared memory; every active thread that reaches it issues one MMA."""
    _issue_mma(mods, t, d, a, b, idesc, disable, enable, a_in_tmem=False)


@instruction("ptx.tcgen05_mma_ts", counter="tcgen05.mma")
def tcgen05_mma_ts(
    mods: Mods, t: Threads, d: Any, a: Any, b: Any, idesc: Any, disable: Any, enable: Any, *extra: Any
) -> None:
    """D = A B^T (+ D), A in tensor memory."""
    _issue_mma(mods, t, d, a, b, idesc, disable, enable, a_in_tmem=True)


@instruction("ptx.tcgen05_mma_block_scale_ss", "ptx.tcgen05_mma_block_scale_block_ss", counter="tcgen05.mma")
def tcgen05_mma_block_scale_ss(
    mods: Mods, t: Threads, d: Any, a: Any, b: Any, idesc: Any, sfa: Any, sfb: Any, enable: Any, *extra: Any
) -> None:
    """Block-scaled MMA, A and B in shared memory, scale factors in tensor memory."""
    _issue_mma(mods, t, d, a, b, idesc, (), enable, a_in_tmem=False, scales=(sfa, sfb))


@instruction("ptx.tcgen05_mma_block_scale_ts", "ptx.tcgen05_mma_block_scale_block_ts", counter="tcgen05.mma")
def tcgen05_mma_block_scale_ts(
    mods: Mods, t: Threads, d: Any, a: Any, b: Any, idesc: Any, sfa: Any, sfb: Any, enable: Any, *extra: Any
) -> None:
    _issue_mma(mods, t, d, a, b, idesc, (), enable, a_in_tmem=True, scales=(sfa, sfb))


def _no_zero_columns(t: Threads, mask: Any) -> None:
    if any(int(lanes.pick(x, 0)) for x in (mask if isinstance(mask, tuple) else (mask,))):
        raise UnsupportedInstruction(
            "tcgen05.mma.ws", t.cta.machine.location(t.site), "with a zero-column mask"
        )


@instruction("ptx.tcgen05_mma_ws_ss", counter="tcgen05.mma")
def tcgen05_mma_ws_ss(
    mods: Mods, t: Threads, d: Any, a: Any, b: Any, idesc: Any, enable: Any, mask: Any = ()
) -> None:
    """``.ws``: B stays in the collector; the accumulator of M = 32 or 64 is folded over all 128 lanes."""
    _no_zero_columns(t, mask)
    _issue_mma(mods, t, d, a, b, idesc, (), enable, a_in_tmem=False)


@instruction("ptx.tcgen05_mma_ws_ts", counter="tcgen05.mma")
def tcgen05_mma_ws_ts(
    mods: Mods, t: Threads, d: Any, a: Any, b: Any, idesc: Any, enable: Any, mask: Any = ()
) -> None:
    _no_zero_columns(t, mask)
    _issue_mma(mods, t, d, a, b, idesc, (), enable, a_in_tmem=True)


# ---------------------------------------------------------------------------------------------- commit, wait, ld, st, cp


def _commit(mods: Mods, t: Threads, address: Any, mask: Any = None) -> None:
    machine = t.cta.machine
    cluster = t.cta.cluster
    _group(mods, t)
    for addr, bits in t.rows(address, 0 if mask is None else mask):
        if mask is None:
            bars = [cluster.barrier_at(addr, "tcgen05.commit")]
        else:
            machine.count("tcgen05.commit.multicast::cluster")
            offset = addr & OFFSET_MASK
            bars = [
                cluster.barrier_at((rank << 24) | offset, "tcgen05.commit")
                for rank in range(len(cluster.ctas))
                if bits >> rank & 1
            ]
        warp = t.cta.rank * t.cta.num_warps + t.warps[0]
        if cluster.hb is not None:
            cluster.hb.tcgen05_commit(warp, [b.hb for b in bars], t.rd_site)
        site, w = t.site, t.warps[0]
        if machine.trace is not None:
            named = tuple(machine.trace.barrier(machine, bar) for bar in bars)
            machine.trace.add(machine, "commit", t.site, named)

        def complete(bars: list[Any] = bars, site: int = site, w: int = w) -> None:
            for bar in bars:
                update(machine, bar, 1, 0, site, w)

        machine.issue((cluster, "mma", t.cta.rank, warp), complete, "tcgen05.commit", t.site)


@instruction("ptx.tcgen05_commit", counter="tcgen05.commit")
def tcgen05_commit(mods: Mods, t: Threads, address: Any) -> None:
    """Arrive once at the mbarrier when all earlier asynchronous tcgen05 operations of this thread are complete."""
    _commit(mods, t, address)


@instruction("ptx.tcgen05_commit_multicast", counter="tcgen05.commit")
def tcgen05_commit_multicast(mods: Mods, t: Threads, address: Any, mask: Any) -> None:
    """The same at one mbarrier offset in every CTA of the mask."""
    _commit(mods, t, address, mask)


def _shape(mods: Mods) -> tuple[str, int]:
    shape = next(tok for tok in mods.tokens if tok in ("32x32b", "16x64b", "16x128b", "16x256b", "16x32bx2"))
    return shape, int(next(tok for tok in mods.tokens if tok.startswith("x") and tok[1:].isdigit())[1:])


def _bases(
    t: Threads, address: Any, shape: str, num: int, split: int, packed: bool, what: str
) -> list[tuple[list[int], int, tuple[int, ...]]]:
    """Groups of strand-warp positions that name one column: (positions, column, first TMEM lanes)."""
    groups: dict[int, tuple[list[int], list[int]]] = {}
    position = {w: k for k, w in enumerate(t.warps)}
    for w, addr in t.per_warp(address):
        addr = int(addr)
        problems = tl.ld_st_problems(shape, num, addr, w, split, packed)
        if problems:
            code = (
                "tmem.wrong-lanes"
                if "lanes" in problems[0] or "lane" in problems[0]
                else "tmem.out-of-bounds"
            )
            raise DeviceFault(
                code,
                f"{what}: {problems[0]}",
                "a warp reaches the quarter 32 * (warp % 4) of the lanes; let the warp with that rank read those rows",
                site=t.site,
            )
        entry = groups.setdefault(addr & 0xFFFF, ([], []))
        entry[0].append(position[w])
        entry[1].append(tl.warp_base(addr, w))
    return [(pos, column, tuple(bases)) for column, (pos, bases) in groups.items()]


def _hb_ldst(
    t: Threads,
    column: int,
    columns: int,
    positions: list[int],
    shape: str,
    bases: tuple[int, ...],
    store: bool,
) -> None:
    hb = t.cta.cluster.hb
    if hb is None:
        return
    first = t.cta.rank * t.cta.num_warps
    fn = hb.tcgen05_st if store else hb.tcgen05_ld
    warps = [t.warps[p] for p in positions]
    if shape == "32x32b" and warps == list(range(warps[0], warps[0] + len(warps))):
        fn(hb.lanes(first + warps[0], len(warps)), t.cta.rank, column, columns, t.rd_site)
        return
    n_lanes = 32 if shape == "32x32b" else 16
    for w, base in zip(warps, bases, strict=True):
        fn(hb.lanes(first + w, 1), t.cta.rank, column, columns, t.rd_site, lane0=base, n_lanes=n_lanes)


@instruction("ptx.tcgen05_ld", "ptx.tcgen05_ld_split", collective=True, counter="tcgen05.ld")
def tcgen05_ld(mods: Mods, t: Threads, address: Any, split: Any = 0) -> np.ndarray:
    """Load TMEM cells into registers: ``uint32[registers, L]``; valid after ``tcgen05.wait::ld``."""
    shape, num = _shape(mods)
    packed = "pack::16b" in mods
    split = int(split or 0)
    groups = _bases(t, address, shape, num, split, packed, "tcgen05.ld")
    columns = tl.ld_st_columns(shape, num, split, packed)
    out = None
    for positions, column, bases in groups:
        _check_tmem(t, t.cta, column, columns, "tcgen05.ld")
        _hb_ldst(t, column, columns, positions, shape, bases, False)
        record = t.cta.machine.tile_record
        if record is not None:
            lanes_of_a_warp = 32 if shape == "32x32b" else 16
            record.read_back(t.cta, [t.warps[p] for p in positions], column, columns, lanes_of_a_warp)
        block = tl.ld(t.cta.tmem.cells, shape, num, column, bases, split, packed)
        machine = t.cta.machine
        machine.count("bytes.tmem.load", block.nbytes)
        if machine.trace is not None:
            machine.trace.add(machine, "tmem", t.site, block.nbytes, len(positions), True)
        if len(groups) == 1 and len(positions) == len(t.warps):
            return block
        if out is None:
            out = np.full((len(block), t.count), 0xFFFFFFFF, dtype=np.uint32)
        for j, p in enumerate(positions):
            out[:, 32 * p : 32 * p + 32] = block[:, 32 * j : 32 * j + 32]
    assert out is not None
    return out


@instruction("ptx.tcgen05_ld_red", "ptx.tcgen05_ld_red_split", collective=True, counter="tcgen05.ld")
def tcgen05_ld_red(mods: Mods, t: Threads, address: Any, split: Any = 0) -> tuple[np.ndarray, Any]:
    """``tcgen05.ld.red``: the registers, and per thread the smallest or largest of them (f32: a number wins over NaN unless
    ``.NaN``; ``.abs``: of the absolute values)."""
    block = tcgen05_ld(mods, t, address, split)
    values = block.view({"f32": np.float32, "s32": np.int32, "u32": np.uint32}[mods["type"]])
    if "abs" in mods:
        values = np.abs(values)
    largest = mods["redop"] == "max"
    if values.dtype == np.float32:
        pick = (np.maximum if largest else np.minimum) if "NaN" in mods else (np.fmax if largest else np.fmin)
        return block, pick.reduce(values, axis=0)
    return block, (np.maximum if largest else np.minimum).reduce(values, axis=0).astype(np.int64)


@instruction("ptx.tcgen05_st", "ptx.tcgen05_st_split", collective=True, counter="tcgen05.st")
def tcgen05_st(mods: Mods, t: Threads, address: Any, *operands: Any) -> None:
    """Store registers into TMEM cells; complete after ``tcgen05.wait::st``."""
    group = operands[-1]
    split = int(operands[0]) if len(operands) > 1 else 0
    shape, num = _shape(mods)
    packed = "unpack::16b" in mods
    block = block_of(t, group, np.dtype(np.uint32))
    columns = tl.ld_st_columns(shape, num, split, packed)
    for positions, column, bases in _bases(t, address, shape, num, split, packed, "tcgen05.st"):
        _check_tmem(t, t.cta, column, columns, "tcgen05.st")
        _hb_ldst(t, column, columns, positions, shape, bases, True)
        part = block
        if len(positions) != len(t.warps):
            part = np.concatenate([block[:, 32 * p : 32 * p + 32] for p in positions], axis=1)
        tl.st(t.cta.tmem.cells, np.ascontiguousarray(part), shape, num, column, bases, split, packed)
        machine = t.cta.machine
        machine.count("bytes.tmem.store", part.nbytes)
        if machine.trace is not None:
            machine.trace.add(machine, "tmem", t.site, part.nbytes, len(positions), False)
    t.cta.machine.progress += 1


@instruction("ptx.tcgen05_wait", collective=True, counter=None)
def tcgen05_wait(mods: Mods, t: Threads) -> None:
    """``tcgen05.wait::ld`` / ``::st``: this thread's own loads or stores of TMEM are complete."""
    load = "wait::ld" in mods
    machine = t.cta.machine
    if machine.trace is not None:
        machine.trace.add(machine, "tmem_wait", t.site)
    t.count_op("tcgen05.wait::ld" if load else "tcgen05.wait::st")
    hb = t.cta.cluster.hb
    if hb is not None:
        (hb.tcgen05_wait_ld if load else hb.tcgen05_wait_st)(t.hb_warps())


@instruction("ptx.tcgen05_cp", counter="tcgen05.cp")
def tcgen05_cp(mods: Mods, t: Threads, address: Any, desc: Any) -> None:
    """Copy shared memory to tensor memory, in the MMA queue of the issuing thread."""
    group = _group(mods, t)
    shape = next(tok for tok in mods.tokens if tok.endswith("b") and "x" in tok)
    multicast = next((tok for tok in mods.tokens if tok.startswith("warpx")), "")
    if any(
        tok in ("b8x16", "b6x16_p32", "b4x16_p64") or tok.startswith(("b6x", "b4x")) for tok in mods.tokens
    ):
        raise UnsupportedInstruction("tcgen05.cp", t.cta.machine.location(t.site), "with decompression")
    cluster, machine = t.cta.cluster, t.cta.machine
    rows, row_bytes = tl.cp_size(shape, multicast)
    for addr, d in t.rows(address, desc):
        descriptor = SmemDescriptor.decode(int(d))
        ctas = _pair(t, group)
        problems = tl.cp_problems(shape, multicast, int(addr))
        if problems:
            raise DeviceFault(
                "tcgen05.bad-cp",
                "tcgen05.cp: " + "; ".join(problems),
                "check the TMEM address and the shape",
                site=t.site,
            )
        warp = t.cta.rank * t.cta.num_warps + t.warps[0]
        columns = max(1, row_bytes // 4)
        for c in ctas:
            _check_tmem(t, c, int(addr) & 0xFFFF, columns, "tcgen05.cp")
        if cluster.hb is not None:
            region = mma.operand(descriptor.encode(), rows, row_bytes, 8, "K").region
            cluster.hb.mma(
                warp, t.rd_site, smem_reads=[(c.rank, region) for c in ctas],
                tmem_writes=[(c.rank, mma.tmem_block(int(addr) & 0xFFFF, columns)) for c in ctas], accumulate=False, what="tcgen05.cp",
            )  # fmt: skip

        def complete(
            ctas: list[Cta] = ctas, descriptor: SmemDescriptor = descriptor, addr: int = int(addr)
        ) -> None:
            for c in ctas:
                tl.cp(c.tmem.cells, c.smem, descriptor, shape, multicast, addr)

        machine.issue((cluster, "mma", t.cta.rank, warp), complete, "tcgen05.cp", t.site)


@instruction("cuda.get_tmem_addr")
def get_tmem_addr(mods: Mods, t: Threads, base: Any, row: Any, column: Any) -> Any:
    """TMEM address arithmetic: lane and column halves are added modulo 2**16 each."""
    lane = ((base >> 16) + row) & 0xFFFF
    return (lane << 16) | ((base + column) & 0xFFFF)
