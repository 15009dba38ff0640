"""wgmma: every operand type, both majors, every swizzle, A from shared memory and from registers, in exact mode.

SMEM is filled with operand codes as they come; the descriptor decides which bytes are which element, so a wrong layout
rule changes every result.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from hardware.cases import operands
from hardware.harness import Case, kernel_from_source

WORDS = 16384  # SMEM operands: 64 KiB, A from byte 0, B from byte 32768
B_START = 32768


def descriptor(start: int, lbo: int, sbo: int, swizzle: int) -> int:
    """Matrix descriptor without the base address; bytes; ``swizzle`` 0 none, 1 128B, 2 64B, 3 32B."""
    return start >> 4 | (lbo >> 4) << 16 | (sbo >> 4) << 32 | swizzle << 62


def kernel(
    name: str,
    text: str,
    registers: int,
    half: bool,
    rs: bool,
    tail: str,
    steps: tuple[tuple[int, int, int], ...],
    is_float: bool,
) -> Any:
    """``steps``: (A descriptor, B descriptor, scale_d) of wgmma operations that follow one another on one accumulator."""
    dtype = "float32" if is_float and not half else "uint32"
    d = ", ".join(f"d[{j}]" for j in range(registers))
    calls = []
    for k, (_, _, scale_d) in enumerate(steps):
        left = ", ".join(f"R[{j}, tx]" for j in range(4)) if rs else f"X[{k}, 0] + base"
        calls.append(
            f'    T.ptx["{text}"]({d}, {left}, X[{k}, 1] + base, T.ptx.pred(T.uint32({scale_d})){tail})'
        )
    source = f"""@T.prim_func
def kernel(A: T.Buffer(({WORDS},), "uint32"), X: T.Buffer(({len(steps)}, 2), "uint64"), R: T.Buffer((4, 128), "uint32"), C: T.Buffer(({registers}, 128), "{dtype}"), D: T.Buffer(({registers}, 128), "{dtype}")):
    T.device_entry()
    T.cta_id([1])
    tx = T.thread_id([128])
    pool = T.SMEMPool()
    s = pool.alloc(({WORDS},), "uint32", align=1024)
    pool.commit()
    d = T.alloc_local(({registers},), "{dtype}")
    for j in T.serial({WORDS // 128}):
        s[j * 128 + tx] = A[j * 128 + tx]
    T.ptx["fence.proxy.async.shared::cta"]()
    T.cuda.cta_sync()
    base: T.let[T.uint64] = T.Cast("uint64", (T.cuda.cvta_generic_to_shared(s.ptr_to([0])) & T.uint32(0x3FFFF)) >> T.uint32(4))
    for j in T.unroll({registers}):
        d[j] = C[j, tx]
    T.ptx["wgmma.fence.sync.aligned"]()
{chr(10).join(calls)}
    T.ptx["wgmma.commit_group.sync.aligned"]()
    T.ptx["wgmma.wait_group.sync.aligned"](0)
    for j in T.unroll({registers}):
        D[j, tx] = d[j]
"""
    return kernel_from_source(name, source)


def _arguments(
    steps: tuple[tuple[int, int, int], ...],
    atype: str,
    btype: str,
    ctype: str,
    registers: int,
    rng: np.random.Generator,
) -> list[np.ndarray]:
    # One manner per 16 bytes for A and B alike, mostly ordinary so that every sum has addends of several kinds.
    def smem(fmt: str, words: int) -> np.ndarray:
        manner = rng.choice(
            operands.MANNERS, words // 4, p=[0.3, 0.16, 0.2, 0.16, 0.1, 0.079, 0.0005, 0.0005]
        )
        return operands.words(rng, fmt, np.repeat(manner, 4))

    image = np.concatenate([smem(atype, WORDS // 2), smem(btype, WORDS // 2)])
    rows = rng.integers(0, 6, (4, 128))
    a = operands.words(rng, atype, rows)
    c = operands.words(rng, ctype, rng.integers(0, 6, (registers, 128)))
    dtype = np.float32 if ctype == "f32" else np.uint32
    descriptors = np.array([[x, y] for x, y, _ in steps], np.uint64)
    return [image, descriptors, a, c.view(dtype), np.zeros((registers, 128), dtype)]


# K-major layouts: (name, swizzle code, leading offset, stride offset, bytes to the next K step)
K_MAJOR = (("128B", 1, 16, 1024), ("64B", 2, 16, 512), ("32B", 3, 16, 256), ("none", 0, 128, 256))
# MN-major layouts of 16-bit operands: (name, swizzle code, leading offset, stride offset) for 64 elements and more
MN_MAJOR = (("128B", 1, 8192, 1024), ("64B", 2, 2048, 512), ("32B", 3, 1024, 256), ("none", 0, 1024, 128))


def _steps(a_layout: tuple[Any, ...], b_layout: tuple[Any, ...]) -> tuple[tuple[int, int, int], ...]:
    """Three operations: overwrite D or not, then two that accumulate at other places of the operands."""
    out = []
    for k, scale_d in enumerate((0, 1, 1) if b_layout[1] % 2 else (1, 1, 1)):
        shift = (
            32 * k
            if a_layout[1] == 1 and b_layout[1] == 1
            else 8192 * k // 2 * (1 if a_layout[1] != 1 else 2) % 16384
        )
        shift = shift // 1024 * 1024 if shift >= 1024 else shift
        out.append(
            (
                descriptor(shift, *a_layout[2:], a_layout[1]),
                descriptor(B_START + shift, *b_layout[2:], b_layout[1]),
                scale_d,
            )
        )
    return tuple(out)


TYPES = {
    # family of the table, PTX type tail, A, B, D, K
    "f16": ("f32.f16.f16", "f16", "f16", "f32", 16), "f16acc": ("f16.f16.f16", "f16", "f16", "f16", 16), "bf16": ("f32.bf16.bf16", "bf16", "bf16", "f32", 16),
    "tf32": ("f32.tf32.tf32", "tf32", "tf32", "f32", 8), "e4m3": ("f32.e4m3.e4m3", "e4m3", "e4m3", "f32", 32), "e5m2": ("f32.e5m2.e5m2", "e5m2", "e5m2", "f32", 32),
    "e4m3e5m2": ("f32.e4m3.e5m2", "e4m3", "e5m2", "f32", 32), "e4m3acc": ("f16.e4m3.e4m3", "e4m3", "e4m3", "f16", 32), "e5m2e4m3acc": ("f16.e5m2.e4m3", "e5m2", "e4m3", "f16", 32),
    "s8": ("s32.s8.s8", "s8", "s8", "s32", 32), "u8": ("s32.u8.u8", "u8", "u8", "s32", 32), "s8u8": ("s32.s8.u8", "s8", "u8", "s32", 32), "u8s8": ("s32.u8.s8", "u8", "s8", "s32", 32),
    "s8sat": ("satfinite.s32.s8.s8", "s8", "s8", "s32", 32),
}  # fmt: skip


def _case(
    kind: str,
    n: int,
    rs: bool,
    a_layout: tuple[Any, ...],
    b_layout: tuple[Any, ...],
    majors: str,
    signs: tuple[int, int],
    label: str,
) -> Case:
    tail_types, atype, btype, ctype, k = TYPES[kind]
    half = ctype == "f16"
    registers = n // 4 if half else n // 2
    text = f"wgmma.mma_async.sync.aligned.m64n{n}k{k}.{tail_types}"
    integer = ctype == "s32"
    tail = "" if integer else f", {signs[0]}, {signs[1]}"
    if k == 16:
        trans = {"kk": (0, 0), "mk": (1, 0), "km": (0, 1), "mm": (1, 1)}[majors]
        tail += f", {trans[1]}" if rs else f", {trans[0]}, {trans[1]}"
    case_id = f"wgmma/{kind}/n{n}/{'rs' if rs else 'ss'}/{label}"
    return Case(
        case_id, "wgmma (integer)" if integer else "wgmma", partial(kernel, case_id, text, registers, half, rs, tail, _steps(a_layout, b_layout), not integer),
        partial(_arguments, _steps(a_layout, b_layout), atype, btype, ctype, registers),
    )  # fmt: skip


def cases() -> Iterator[Case]:
    for kind in TYPES:
        for layout in K_MAJOR:
            for rs in (False, True):
                yield _case(kind, 64, rs, layout, layout, "kk", (1, 1), f"k{layout[0]}")
        for n in (8, 32, 96, 128, 256):
            if kind in ("f16", "bf16", "tf32", "e4m3", "f16acc") or (kind == "s8" and n < 256):
                yield _case(kind, n, n == 96, K_MAJOR[0], K_MAJOR[0], "kk", (1, 1), "k128B")
        yield _case(kind, 32, False, K_MAJOR[3], K_MAJOR[0], "kk", (1, 1), "knone.k128B")
        if not TYPES[kind][0].startswith(("s32", "sat")):
            yield _case(kind, 32, False, K_MAJOR[0], K_MAJOR[1], "kk", (-1, 1), "minus.a")
            yield _case(kind, 32, True, K_MAJOR[0], K_MAJOR[1], "kk", (1, -1), "minus.b")
            yield _case(kind, 32, False, K_MAJOR[0], K_MAJOR[0], "kk", (-1, -1), "minus.both")
    for kind in ("f16", "bf16", "f16acc"):
        for layout in MN_MAJOR:
            yield _case(kind, 64, False, layout, K_MAJOR[0], "mk", (1, 1), f"m{layout[0]}.k")
            yield _case(kind, 64, False, K_MAJOR[0], layout, "km", (1, 1), f"k.m{layout[0]}")
            yield _case(kind, 64, False, layout, layout, "mm", (1, 1), f"m{layout[0]}.m")
            yield _case(kind, 128, True, K_MAJOR[0], layout, "km", (1, 1), f"r.m{layout[0]}")
