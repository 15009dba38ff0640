"""ldmatrix, stmatrix and mma.sync in every shape and type that sm_90a has."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from hardware.cases import operands, registers
from hardware.harness import Case, kernel_from_source

N = registers.N


def _manners(rng: np.random.Generator) -> np.ndarray:
    """One manner per warp, each used by N / 256 warps."""
    return np.repeat(np.arange(N // 32) % operands.MANNERS, 32)


def _arguments(
    shape: tuple[tuple[Any, ...], ...], atype: str, btype: str, ctype: str, rng: np.random.Generator
) -> list[np.ndarray]:
    made: list[np.ndarray] = []
    manner = _manners(rng)
    for role, _ptx, dtype, lanes, operand in shape:
        for _ in range(lanes):
            if role != "r":
                made.append(
                    np.full((1, N), 0xA5, np.uint8).repeat(np.dtype(dtype).itemsize, axis=1).view(dtype)
                )
                continue
            fmt = {"a": atype, "b": btype, "c": ctype}[operand]
            if fmt == "f64":
                made.append(operands.codes(rng, "f64", np.where(manner == 1, 0, manner)).view(np.float64))
            else:
                made.append(operands.words(rng, fmt, manner).view(dtype))
    return made


def _mma() -> Iterator[Case]:
    from tvm.backend.cuda.ptx import table

    for entry_name in ("mma", "mma_f16acc", "mma_f16c_f32d", "mma_int"):
        entry = table.TABLE[entry_name]
        for tokens in table.variants(entry):
            m = table.mods(entry, tokens)
            text = ".".join([entry.family, *(x for x in tokens if x)])
            if m["shape"] == "m8n8k4":  # emulated by the driver in software on this architecture
                continue
            atype = m.get("atype") or "f16"
            btype = m.get("btype") or atype
            ctype = {"mma": "f32", "mma_f16acc": "f16", "mma_f16c_f32d": "f16", "mma_int": "s32"}[entry_name]
            shape = registers._shape(table, entry, tokens)
            case_id = f"matrix/{text}"
            family = "mma.sync (integer)" if entry_name == "mma_int" else "mma.sync"
            yield Case(
                case_id,
                family,
                partial(registers._builder, (text,), shape, case_id),
                partial(_arguments, shape, atype, btype, ctype),
                rows=(text,),
            )


def _ldmatrix(name: str, text: str, num: int) -> Any:
    regs = ", ".join(f"r[{j}]" for j in range(num))
    source = f"""@T.prim_func
def kernel(A: T.Buffer((1024,), "uint32"), P: T.Buffer((32,), "int32"), D: T.Buffer(({num}, 32), "uint32")):
    T.device_entry()
    T.cta_id([1])
    tx = T.thread_id([32])
    pool = T.SMEMPool()
    s = pool.alloc((1024,), "uint32", align=128)
    pool.commit()
    r = T.alloc_local(({num},), "uint32")
    for j in T.serial(32):
        s[j * 32 + tx] = A[j * 32 + tx]
    T.cuda.cta_sync()
    T.ptx["{text}"]({regs}, s.ptr_to([P[tx] * 4]))
    for j in T.unroll({num}):
        D[j, tx] = r[j]
"""
    return kernel_from_source(name, source)


def _stmatrix(name: str, text: str, num: int) -> Any:
    regs = ", ".join(f"R[{j}, tx]" for j in range(num))
    source = f"""@T.prim_func
def kernel(R: T.Buffer(({num}, 32), "uint32"), P: T.Buffer((32,), "int32"), D: T.Buffer((1024,), "uint32")):
    T.device_entry()
    T.cta_id([1])
    tx = T.thread_id([32])
    pool = T.SMEMPool()
    s = pool.alloc((1024,), "uint32", align=128)
    pool.commit()
    for j in T.serial(32):
        s[j * 32 + tx] = T.uint32(0x11223344)
    T.cuda.cta_sync()
    T.ptx["{text}"](s.ptr_to([P[tx] * 4]), {regs})
    T.cuda.cta_sync()
    for j in T.serial(32):
        D[j * 32 + tx] = s[j * 32 + tx]
"""
    return kernel_from_source(name, source)


def _addresses(rng: np.random.Generator) -> np.ndarray:
    return rng.permutation(256)[:32].astype(np.int32)


def _ld_arguments(num: int, rng: np.random.Generator) -> list[np.ndarray]:
    return [rng.integers(0, 2**32, 1024, dtype=np.uint32), _addresses(rng), np.zeros((num, 32), np.uint32)]


def _st_arguments(num: int, rng: np.random.Generator) -> list[np.ndarray]:
    return [rng.integers(0, 2**32, (num, 32), dtype=np.uint32), _addresses(rng), np.zeros(1024, np.uint32)]


def cases() -> Iterator[Case]:
    for num in (1, 2, 4):
        for trans in ("", ".trans"):
            text = f"ldmatrix.sync.aligned.m8n8.x{num}{trans}.shared.b16"
            yield Case(
                f"matrix/{text}",
                "ldmatrix and stmatrix",
                partial(_ldmatrix, f"matrix/{text}", text, num),
                partial(_ld_arguments, num),
            )
            text = f"stmatrix.sync.aligned.m8n8.x{num}{trans}.shared.b16"
            yield Case(
                f"matrix/{text}",
                "ldmatrix and stmatrix",
                partial(_stmatrix, f"matrix/{text}", text, num),
                partial(_st_arguments, num),
            )
    yield from _mma()
