"""Every register-to-register instruction that sm_90a has: arithmetic, comparisons, conversions, bits, warp exchange.

The instructions come from TVM's own table of PTX (``tvm.backend.cuda.ptx.table``), all modifier combinations of it.  One
kernel runs up to sixteen instructions of one operand shape, one thread per element; every row of an output is one
instruction.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from hardware.cases import values
from hardware.harness import Case, kernel_from_source

THREADS = 128
N = 2048
GROUP = 16

ENTRIES = {
    "arithmetic (integer)": (
        "add_int sub_int mul_int mul_wide mad_int mad_wide mul24 mad24 sad div rem abs neg_int dp4a dp2a",
        "popc clz bfind fns brev bfe bfi szext bmsk",
    ),
    "arithmetic (float)": (
        "add sub mul fma mad_f abs_f neg testp copysign max min",
        "add_half sub_half mul_half fma_half neg_half abs_half",
    ),
    "approximate functions": ("div_f rcp sqrt rsqrt ex2 sin cos lg2 tanh tanh_half ex2_half",),
    "comparison and selection": (
        "set set_bool setp setp_pq setp_bool setp_bool_pq selp slct",
        "set_half set_half_bool setp_half setp_half_pq setp_half_bool setp_half_bool_pq",
    ),
    "logic and shifts": ("and or xor not cnot lop3 lop3_bool shf shl shr prmt",),
    "conversion": (
        "cvt cvt_pack cvt_pack_c cvt_f16x2_f32 cvt_bf16x2_f32 cvt_tf32_f32",
        "cvt_f8x2_f32 cvt_f8x2_fp16x2 cvt_f16x2_f8x2 cvt_bf16x2_f8x2",
    ),
    "moves": (
        "mov mov_pack_b16x2 mov_unpack_b16x2 mov_pack_b32x2 mov_unpack_b32x2 mov_pack_b16x4 mov_unpack_b16x4",
    ),
    "warp exchange": (
        "shfl_sync shfl_sync_p vote_sync vote_sync_ballot match_any_sync match_all_sync match_all_sync_p",
        "activemask elect_sync redux_sync redux_sync_bitwise movmatrix",
    ),
}
# Entries with hundreds of combinations of independent modifiers: every k-th one.
STRIDE = {
    "set": 3, "set_bool": 13, "setp_bool": 5, "setp_bool_pq": 5, "set_half": 7, "set_half_bool": 23, "setp_half_bool": 3,
    "setp_half_bool_pq": 3,
}  # fmt: skip
# Largest distance from the hardware, in units in the last place, that is accepted for an approximate function.
ULPS: dict[str, float] = {
    "ex2.approx": 2, "ex2.approx.f16": 1, "ex2.approx.ftz.bf16": 1, "rcp.approx": 1, "rsqrt.approx": 1, "sqrt.approx": 1, "div.approx": 2, "div.full": 2,
    "tanh.approx.f32": 128, "tanh.approx.f16": 1, "tanh.approx.bf16": 1, "lg2.approx": 1,
}  # fmt: skip
# The same as an absolute distance, where PTX bounds the error so (sin and cos: for arguments in [-pi, pi], drawn from there).
ABSOLUTE: dict[str, float] = {"lg2.approx": 2.0**-21, "sin.approx": 2.0**-20, "cos.approx": 2.0**-20}
LUTS = (0x96, 0xE8, 0x1B, 0x80)


def refused(entry: str, text: str) -> bool:
    """Instructions that the emulator refuses (``UnsupportedInstruction``): rare forms of f64, and ``.oob``."""
    tokens = text.split(".")
    directed = {"rz", "rm", "rp"} & set(tokens)
    if tokens[-1] == "f64" and (directed or "approx" in tokens or tokens[0] in ("fma", "mad")):
        return True
    if entry == "cvt" and tokens[-2] == "f64" and directed and tokens[-1][0] in "us":
        return True
    return "oob" in tokens


@lru_cache(maxsize=1)
def _unsupported() -> frozenset[str]:
    lines = (Path(__file__).parent / "not_sm_90a.txt").read_text().splitlines()
    return frozenset(line for line in lines if not line.startswith("#"))


def _shape(table: Any, entry: Any, tokens: Any) -> tuple[tuple[Any, ...], ...]:
    """Operands: (role, PTX type, TVM dtype, registers, name, immediate text)."""
    m = table.mods(entry, tokens)
    rows = []
    for o in entry.operands:
        if o.kind == "imm":
            rows.append(("imm", "", "", 1, o.name))
            continue
        lanes = table.lanes_of(o, m)
        if lanes:
            rows.append((o.rw, table.operand_type(o, m), table.operand_dtypes(o, m)[0], lanes, o.name))
    return tuple(rows)


def _builder(texts: tuple[str, ...], shape: tuple[tuple[Any, ...], ...], name: str) -> Any:
    params, setup, calls = [], [], []
    inputs: dict[int, list[str]] = {}
    for k, (role, _, dtype, lanes, operand) in enumerate(shape):
        if role == "r" and operand != "membermask":
            inputs[k] = [f"X{k}_{j}" for j in range(lanes)]
            params += [f'{x}: T.Buffer(({N},), "{dtype}")' for x in inputs[k]]
        elif role == "w":
            params += [f'Y{k}_{j}: T.Buffer(({len(texts)}, {N}), "{dtype}")' for j in range(lanes)]
            setup.append(f'    d{k} = T.alloc_local(({lanes},), "{dtype}")')
    for row, text in enumerate(texts):
        args = []
        stores = []
        for k, (role, ptx_type, _dtype, lanes, operand) in enumerate(shape):
            if role == "imm":
                args.append(str(LUTS[row % len(LUTS)]))
            elif operand == "membermask":
                args.append("T.uint32(0xFFFFFFFF)")
            elif role == "r":
                args += [f"T.ptx.pred({x}[i])" if ptx_type == "pred" else f"{x}[i]" for x in inputs[k]]
            else:
                args += [f"d{k}[{j}]" for j in range(lanes)]
                stores += [f"    Y{k}_{j}[{row}, i] = d{k}[{j}]" for j in range(lanes)]
        calls.append(f'    T.ptx["{text}"]({", ".join(args)})')
        calls += stores
    source = "\n".join(
        ["@T.prim_func", f"def kernel({', '.join(params)}):", "    T.device_entry()", f"    bx = T.cta_id([{N // THREADS}])",
         f"    tx = T.thread_id([{THREADS}])", f"    i = T.meta_var(bx * {THREADS} + tx)", *setup, *calls]
    )  # fmt: skip
    return kernel_from_source(name, source)


def _borders(x: np.ndarray, ptx_type: str, operand: int) -> None:
    """Products and quotients just below the smallest normal number, where flushing and rounding meet."""
    smallest, below_one, half_step, large = {
        "f32": (0x00800000, 0x3F7FFFFF, 0x3F800001, 0x7E800000), "f16": (0x0400, 0x3BFF, 0x3C01, 0x7400), "bf16": (0x0080, 0x3F7F, 0x3F81, 0x7E80),
    }[ptx_type.removesuffix("x2")]  # fmt: skip
    top = 1 << (31 if ptx_type == "f32" else 15)
    rows = [(smallest, below_one, 0), (smallest + 1, below_one, 0), (smallest, below_one - 1, top), (smallest | top, below_one, top), (below_one, large, 0),
            (smallest, half_step, smallest | top), (smallest + 1, half_step, smallest | top), (smallest - 1, below_one, 1), (1, 1, 0), (smallest, smallest, top)]  # fmt: skip
    bits = x.view(np.uint32 if x.dtype.itemsize == 4 else np.uint16)
    for k, row in enumerate(rows):
        value = row[min(operand, 2)]
        bits[256 + k] = value | value << 16 if ptx_type.endswith("x2") else value


def _arguments(
    shape: tuple[tuple[Any, ...], ...], count: int, entry: str, rng: np.random.Generator
) -> list[np.ndarray]:
    made: list[np.ndarray] = []
    for role, ptx_type, dtype, lanes, operand in shape:
        for _ in range(lanes):
            if role == "r" and operand != "membermask":
                x = values.of_type(rng, N, ptx_type, dtype)
                if entry in ("sin", "cos"):
                    x = rng.uniform(-np.pi, np.pi, N).astype(np.float32)
                if entry in ("div", "rem") and operand == "b":
                    x = np.where(x == 0, np.ones_like(x), x)  # division by zero is undefined
                if entry.startswith("shfl") and operand == "b":
                    x = rng.integers(0, 40, N).astype(x.dtype)
                if entry.startswith("shfl") and operand == "c":
                    masks = np.array([0x1F, 0x0, 0x181F, 0x1C1F, 0x1018, 0x1E1C], np.uint32)
                    x = masks[np.repeat(rng.integers(0, len(masks), N // 32), 32)].view(x.dtype)
                if entry.startswith("match_all"):
                    every = np.repeat(rng.integers(0, 3, N // 32), 32).astype(x.dtype)
                    x = np.where(np.repeat(rng.integers(0, 2, N // 32), 32) == 1, every, x)
                elif entry.startswith("match"):
                    x = rng.integers(0, 5, N).astype(x.dtype)
                if entry.startswith("vote"):
                    level = np.repeat(rng.choice([0.0, 0.5, 1.0], N // 32), 32)
                    x = (rng.random(N) < level).astype(x.dtype)
                if ptx_type in ("f32", "f16", "bf16", "f16x2", "bf16x2") and entry not in ("sin", "cos"):
                    _borders(x, ptx_type, sum(m.ndim == 1 for m in made))
                made.append(x)
            elif role == "w":
                made.append(
                    np.full((count, N), 0xA5, np.uint8).repeat(np.dtype(dtype).itemsize, axis=1).view(dtype)
                )
    return made


def cases() -> Iterator[Case]:
    """Groups of instructions that share an entry and the types of their operands."""
    from tvm.backend.cuda.ptx import table

    for family, names in ENTRIES.items():
        for entry_name in " ".join(names).split():
            entry = table.TABLE.get(entry_name)
            if entry is None:
                raise ValueError(f"TVM's table has no entry {entry_name}")
            groups: dict[Any, list[str]] = {}
            for tokens in table.variants(entry)[:: STRIDE.get(entry_name, 1)]:
                text = ".".join([entry.family, *(x for x in tokens if x)])
                if f"{entry_name} {text}" not in _unsupported() and not refused(entry_name, text):
                    groups.setdefault(_shape(table, entry, tokens), []).append(text)
            number = 0
            for shape, texts in groups.items():
                for k in range(0, len(texts), GROUP):
                    part = tuple(texts[k : k + GROUP])
                    case_id = f"registers/{entry_name}/{number}"
                    number += 1
                    yield Case(
                        case_id, family, partial(_builder, part, shape, case_id), partial(_arguments, shape, len(part), entry_name),
                        rows=part, ulps=ULPS, absolute=ABSOLUTE,
                    )  # fmt: skip
