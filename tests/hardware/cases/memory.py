"""Loads and stores of every width and vector length, sign and zero extension, through global and shared memory."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from hardware.harness import Case, kernel_from_source

REGISTER = {"b8": "uint32", "u8": "uint32", "s8": "int32", "b16": "uint16", "u16": "uint16", "s16": "int16", "b32": "uint32",
            "u32": "uint32", "s32": "int32", "b64": "uint64", "u64": "uint64", "s64": "int64", "f32": "float32", "f64": "float64"}  # fmt: skip
THREADS = 64
SPAN = 4096


def _round_trip(
    name: str, load: str, store: str, ptx_type: str, lanes: int, shared: bool, stride: int
) -> Any:
    """Each thread loads ``lanes`` elements at ``stride * thread`` bytes and stores the registers, and as wide as they are."""
    dtype = REGISTER[ptx_type]
    wide = np.dtype(dtype).itemsize
    regs = ", ".join(f"r[{j}]" for j in range(lanes))
    lines = ["@T.prim_func", f'def kernel(A: T.Buffer(({SPAN},), "uint8"), D: T.Buffer(({SPAN},), "uint8"), W: T.Buffer(({THREADS * lanes},), "{dtype}")):',
             "    T.device_entry()", "    T.cta_id([1])", f"    tx = T.thread_id([{THREADS}])", f'    r = T.alloc_local(({lanes},), "{dtype}")']  # fmt: skip
    if shared:
        lines += ["    pool = T.SMEMPool()", f'    s = pool.alloc(({SPAN},), "uint8", align=128)', f'    o = pool.alloc(({SPAN},), "uint8", align=128)', "    pool.commit()",
                  f"    for j in T.serial({SPAN // THREADS}):", f"        s[j * {THREADS} + tx] = A[j * {THREADS} + tx]", f"        o[j * {THREADS} + tx] = T.uint8(90)",
                  "    T.cuda.cta_sync()"]  # fmt: skip
        source, target = "s", "o"
    else:
        source, target = "A", "D"
    lines += [
        f'    T.ptx["{load}"]({regs}, T.address_of({source}[tx * {stride}]))',
        f'    T.ptx["{store}"](T.address_of({target}[tx * {stride}]), {regs})',
    ]
    lines += [f"    W[tx * {lanes} + {j}] = r[{j}]" for j in range(lanes)]
    if shared:
        lines += [
            "    T.cuda.cta_sync()",
            f"    for j in T.serial({SPAN // THREADS}):",
            f"        D[j * {THREADS} + tx] = o[j * {THREADS} + tx]",
        ]
    del wide
    return kernel_from_source(name, "\n".join(lines))


def _arguments(dtype: str, lanes: int, rng: np.random.Generator) -> list[np.ndarray]:
    return [
        rng.integers(0, 256, SPAN, dtype=np.uint8),
        np.full(SPAN, 0x5A, np.uint8),
        np.zeros(THREADS * lanes, dtype),
    ]


def cases() -> Iterator[Case]:
    for space in ("global", "shared"):
        for ptx_type in REGISTER:
            size = int(ptx_type[1:]) // 8
            for vec in (1, 2, 4):
                if vec * size > 16:
                    continue
                v = "" if vec == 1 else f".v{vec}"
                load, store = f"ld.{space}{v}.{ptx_type}", f"st.{space}{v}.{ptx_type}"
                for label, stride in (("dense", vec * size), ("strided", max(2 * vec * size, 4))):
                    if stride * THREADS > SPAN:
                        continue
                    case_id = f"memory/{load}/{label}"
                    yield Case(
                        case_id, f"loads and stores ({space})", partial(_round_trip, case_id, load, store, ptx_type, vec, space == "shared", stride),
                        partial(_arguments, REGISTER[ptx_type], vec),
                    )  # fmt: skip
    for cop in ("ca", "cg", "cs", "lu", "cv", "L1::no_allocate", "L1::evict_last"):
        load = f"ld.global.{cop}.v4.b32"
        case_id = f"memory/{load}"
        yield Case(
            case_id,
            "loads and stores (global)",
            partial(_round_trip, case_id, load, "st.global.v4.b32", "b32", 4, False, 16),
            partial(_arguments, "uint32", 4),
        )
    for sem in ("acquire.gpu", "relaxed.gpu", "volatile"):
        load, store = f"ld.{sem}.global.b32", f"st.{sem.replace('acquire', 'release')}.global.b32"
        case_id = f"memory/{load}"
        yield Case(
            case_id,
            "loads and stores (global)",
            partial(_round_trip, case_id, load, store, "b32", 1, False, 4),
            partial(_arguments, "uint32", 1),
        )
