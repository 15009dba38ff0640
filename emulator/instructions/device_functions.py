"""Device functions that TVM's tile primitives inline as CUDA source (``T.cuda.func_call``), matched by name.

Their bodies are TVM's own (``tvm/backend/cuda``); a function with another name is not supported.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from emulator.instructions.registry import Mods, instruction
from emulator.threads import Threads


@instruction("device:tvm_builtin_cast_float32x2_float16x2")
def cast_float32x2_float16x2(mods: Mods, t: Threads, dst: Any, src: Any) -> None:
    """Two float32 registers to a half2 (``__float22half2_rn``), round to nearest even."""
    with np.errstate(over="ignore"):
        dst.write("float16", src.read("float32", 2).astype(np.float16))


@instruction("device:tvm_builtin_cast_float32x2_bfloat16x2")
def cast_float32x2_bfloat16x2(mods: Mods, t: Threads, dst: Any, src: Any) -> None:
    """Two float32 registers to a bfloat162 (``__float22bfloat162_rn``), round to nearest even."""
    dst.write("bfloat16", src.read("float32", 2).astype(ml_dtypes.bfloat16))


@instruction("device:tvm_builtin_cast_float16x2_float32x2")
def cast_float16x2_float32x2(mods: Mods, t: Threads, dst: Any, src: Any) -> None:
    """A half2 to two float32 registers (``__half22float2``)."""
    dst.write("float32", src.read("float16", 2).astype(np.float32))


@instruction("device:tvm_builtin_cast_bfloat16x2_float32x2")
def cast_bfloat16x2_float32x2(mods: Mods, t: Threads, dst: Any, src: Any) -> None:
    """A bfloat162 to two float32 registers (``__bfloat1622float2``)."""
    dst.write("float32", src.read("bfloat16", 2).astype(np.float32))
