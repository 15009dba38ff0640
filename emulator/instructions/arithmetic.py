"""Arithmetic and conversions on registers (PTX ISA, "Integer, floating-point and conversion instructions")."""

from __future__ import annotations

from typing import Any

import numpy as np

from emulator.instructions.registry import Mods, instruction
from emulator.threads import Threads


@instruction("device:tvm_builtin_cast_float32x2_float16x2")
def cast_float32x2_float16x2(mods: Mods, t: Threads, dst: Any, src: Any) -> None:
    """Two float32 registers to a half2, round to nearest even."""
    with np.errstate(over="ignore"):
        dst.write("float16", src.read("float32", 2).astype(np.float16))


@instruction("device:tvm_builtin_pointer_offset")
def pointer_offset(mods: Mods, t: Threads, *operands: Any) -> Any:
    raise AssertionError("pointer_offset is translated in place")
