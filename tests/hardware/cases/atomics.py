"""Atomics: the old value where each thread has its own word, the final value where many threads share one."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from hardware.cases import values
from hardware.harness import Case, kernel_from_source

THREADS = 256
CARRIER = {"b16": "uint16", "b32": "uint32", "u32": "uint32", "s32": "int32", "b64": "uint64", "u64": "uint64", "s64": "int64", "f32": "float32",
           "f64": "float64", "f16": "uint16", "bf16": "uint16", "f16x2": "uint32", "bf16x2": "uint32"}  # fmt: skip


def _kernel(name: str, text: str, ptx_type: str, operands: int, shared: bool, words: int) -> Any:
    """Thread i works on word ``i % words``; the old value goes to O when the word is its own."""
    dtype = CARRIER[ptx_type]
    own = words == THREADS
    xs = ", ".join(f"X{k}[tx]" for k in range(operands))
    params = [
        f'M: T.Buffer(({words},), "{dtype}")',
        *(f'X{k}: T.Buffer(({THREADS},), "{dtype}")' for k in range(operands)),
        f'O: T.Buffer(({THREADS},), "{dtype}")',
    ]
    lines = [
        "@T.prim_func",
        f"def kernel({', '.join(params)}):",
        "    T.device_entry()",
        "    T.cta_id([1])",
        f"    tx = T.thread_id([{THREADS}])",
    ]
    where = "M"
    if shared:
        where = "s"
        lines += ["    pool = T.SMEMPool()", f'    s = pool.alloc(({words},), "{dtype}", align=16)', "    pool.commit()",
                  f"    if tx < {words}:", "        s[tx] = M[tx]", "    T.cuda.cta_sync()"]  # fmt: skip
    target = f"T.address_of({where}[tx % {words}])"
    if text.startswith("red"):
        lines += [f'    T.ptx["{text}"]({target}, {xs})']
    else:
        lines += [f'    r = T.alloc_local((1,), "{dtype}")', f'    T.ptx["{text}"](r[0], {target}, {xs})']
        if own:
            lines += ["    O[tx] = r[0]"]
    if shared:
        lines += ["    T.cuda.cta_sync()", f"    if tx < {words}:", "        M[tx] = s[tx]"]
    return kernel_from_source(name, "\n".join(lines))


def _arguments(
    ptx_type: str, operands: int, words: int, op: str, rng: np.random.Generator
) -> list[np.ndarray]:
    dtype = np.dtype(CARRIER[ptx_type])

    def draw(n: int) -> np.ndarray:
        if ptx_type in ("f32", "f64"):
            return (rng.standard_normal(n) * 2.0 ** rng.integers(-30, 30, n)).astype(dtype)
        if "f16" in ptx_type:
            x = values.of_type(rng, n, ptx_type, CARRIER[ptx_type])
            keep = np.uint32(0xBFFFBFFF) if ptx_type.endswith("x2") else np.uint16(0xBFFF)
            return (x & keep).astype(dtype)
        return values.integers(rng, n, dtype.itemsize * 8).view(dtype)

    memory = draw(words)
    xs = [draw(THREADS) for _ in range(operands)]
    if op == "cas":
        xs[0] = np.where(rng.random(THREADS) < 0.5, memory[np.arange(THREADS) % words], xs[0]).astype(dtype)
    return [memory, *xs, np.zeros(THREADS, dtype)]


def cases() -> Iterator[Case]:
    table: dict[str, tuple[str, ...]] = {
        "add": ("u32", "s32", "u64", "f32", "f64"), "min": ("u32", "s32", "u64", "s64"), "max": ("u32", "s32", "u64", "s64"),
        "and": ("b32", "b64"), "or": ("b32", "b64"), "xor": ("b32", "b64"), "inc": ("u32",), "dec": ("u32",), "exch": ("b32", "b64"),
        "cas": ("b16", "b32", "b64"), "add.noftz": ("f16", "bf16", "f16x2", "bf16x2"),
    }  # fmt: skip
    for op, types in table.items():
        for ptx_type in types:
            operands = 2 if op == "cas" else 1
            for space in ("global", "shared"):
                forms = [(f"atom.{space}.{op}.{ptx_type}", THREADS)]
                if op not in ("exch", "cas"):
                    forms.append((f"red.{space}.{op}.{ptx_type}", THREADS))
                    if (
                        ptx_type[0] in "usb" and "f16" not in ptx_type and op not in ("inc", "dec")
                    ):  # those depend on the order
                        forms += [
                            (f"atom.{space}.{op}.{ptx_type}", 8),
                            (f"red.relaxed.gpu.{space}.{op}.{ptx_type}", 1),
                        ]
                for text, words in forms:
                    case_id = f"atomics/{text}/{words}"
                    yield Case(
                        case_id, "atomics", partial(_kernel, case_id, text, ptx_type, operands, space == "shared", words),
                        partial(_arguments, ptx_type, operands, words, op),
                    )  # fmt: skip
