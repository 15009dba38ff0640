"""SMEM matrix descriptors that are encoded at run time: lanes in lockstep may have different addresses, and the last byte of SMEM."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from emulator.instructions import tcgen05, wgmma
from emulator.instructions.descriptors import matrix_descriptor
from emulator.instructions.registry import Mods
from emulator.machine import smem_descriptor as sd
from emulator.machine.address import POOL_BASE, SMEM_LIMIT


@pytest.mark.parametrize("encode", [tcgen05.encode_matrix_descriptor, wgmma.encode_matrix_descriptor])
def test_each_lane_gets_the_descriptor_of_its_own_address(encode: object) -> None:
    threads = SimpleNamespace(site=0)
    pointers = np.array([1024, 1024, 50176, 230400], np.int64)
    together = encode(Mods(), threads, pointers, 0, 64, 3)  # type: ignore[operator]
    alone = [encode(Mods(), threads, int(p), 0, 64, 3) for p in pointers]  # type: ignore[operator]
    assert together.dtype == np.uint64 and together.tolist() == alone
    strides = encode(Mods(), threads, 1024, np.array([1, 2]), 64, 0)  # type: ignore[operator]
    assert strides.tolist() == [encode(Mods(), threads, 1024, n, 64, 0) for n in (1, 2)]  # type: ignore[operator]


def test_the_fields_do_not_leak_into_each_other() -> None:
    word = int(matrix_descriptor(np.array([(1 << 24) + 0x3FFF0]), 0x7FFF, 0x7FFF, 1 << 46)[0])
    assert (word & 0x3FFF, word >> 16 & 0x3FFF, word >> 32 & 0x3FFF, word >> 46) == (
        0x3FFF,
        0x3FFF,
        0x3FFF,
        1,
    )


@pytest.mark.parametrize("beyond", [False, True])
def test_an_operand_may_end_with_the_last_byte_of_shared_memory(beyond: bool) -> None:
    """227 KiB lie behind the first KiB, which belongs to the system."""
    start = POOL_BASE + SMEM_LIMIT - 64 * 128 + (1024 if beyond else 0)
    word = matrix_descriptor(start, 0, 64, 1 << 46 | 2 << 61)  # K-major, 128B swizzle
    problems = sd.problems(sd.SmemDescriptor.decode(word), 64, 64, "bf16")
    assert bool(problems) is beyond, problems
