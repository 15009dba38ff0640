"""Device functions that TVM's tile primitives inline as CUDA source (``T.cuda.func_call``), matched by name.

Their bodies are TVM's own (``tvm/backend/cuda``); a function with another name is not supported.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from emulator.instructions.registry import Mods, instruction
from emulator.threads import Threads

_NUMPY = {
    "float32": np.dtype(np.float32), "float16": np.dtype(np.float16), "bfloat16": np.dtype(ml_dtypes.bfloat16),
}  # fmt: skip


def _convert(dst: Any, src: Any, to: str, of: str, count: int) -> None:
    """Convert ``count`` elements (two, or all that a loop over pairs converts), round to nearest even."""
    target, source = dst.elements(to, count), src.elements(of, count)
    if target is not None and source is not None:
        target[...] = source
    else:
        dst.write(to, src.read(of, count).astype(_NUMPY[to]))


@instruction("device:tvm_builtin_cast_float32x2_float16x2")
def cast_float32x2_float16x2(mods: Mods, t: Threads, dst: Any, src: Any, count: int = 2) -> None:
    """Two float32 registers to a half2 (``__float22half2_rn``), round to nearest even."""
    with np.errstate(over="ignore"):
        _convert(dst, src, "float16", "float32", count)


@instruction("device:tvm_builtin_cast_float32x2_bfloat16x2")
def cast_float32x2_bfloat16x2(mods: Mods, t: Threads, dst: Any, src: Any, count: int = 2) -> None:
    """Two float32 registers to a bfloat162 (``__float22bfloat162_rn``), round to nearest even."""
    _convert(dst, src, "bfloat16", "float32", count)


@instruction("device:tvm_builtin_cast_float16x2_float32x2")
def cast_float16x2_float32x2(mods: Mods, t: Threads, dst: Any, src: Any, count: int = 2) -> None:
    """A half2 to two float32 registers (``__half22float2``)."""
    _convert(dst, src, "float32", "float16", count)


@instruction("device:tvm_builtin_cast_bfloat16x2_float32x2")
def cast_bfloat16x2_float32x2(mods: Mods, t: Threads, dst: Any, src: Any, count: int = 2) -> None:
    """A bfloat162 to two float32 registers (``__bfloat1622float2``)."""
    _convert(dst, src, "float32", "bfloat16", count)
