"""The swizzle against TVM's layouts, against the published chunk tables, and as a permutation."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.machine import swizzle
from emulator.machine.swizzle import SwizzleMode

# Row by row, which 16-byte chunk of global data lands in position 0..7 (PTX ISA, swizzling mode tables).
TABLES = {
    SwizzleMode.B32: ["01234567", "10325476"],
    SwizzleMode.B64: ["01234567", "10325476", "23016745", "32107654"],
    SwizzleMode.B128: [
        "01234567", "10325476", "23016745", "32107654", "45670123", "54761032", "67452301", "76543210",
    ],
    SwizzleMode.B128_ATOM_32B: ["01234567", "23016745", "45670123", "67452301"],
    SwizzleMode.B128_ATOM_64B: ["01234567", "45670123"],
}  # fmt: skip


@pytest.mark.parametrize("mode", TABLES)
def test_chunk_tables(mode):
    table = TABLES[mode]
    for row in range(16):
        positions = [swizzle.apply(mode, row * 128 + chunk * 16) for chunk in range(8)]
        expected = table[row % len(table)]
        for chunk, address in enumerate(positions):
            assert address // 128 == row
            assert expected[address % 128 // 16] == str(chunk)


@pytest.mark.parametrize("mode", list(SwizzleMode))
def test_is_an_involution_that_stays_in_its_row_and_keeps_atoms(mode):
    address = np.arange(4096, dtype=np.int64)
    moved = swizzle.apply(mode, address)
    assert np.array_equal(swizzle.apply(mode, moved), address)
    assert np.array_equal(np.sort(moved), address)
    assert np.array_equal(moved >> 7, address >> 7)
    assert np.array_equal(moved % mode.atom_bytes, address % mode.atom_bytes) or mode == 5
    assert np.array_equal(swizzle.apply(mode, address + mode.repeat_bytes), moved + mode.repeat_bytes)


def test_flip_swaps_the_8_byte_halves_on_odd_rows_only():
    mode = SwizzleMode.B128_ATOM_32B_FLIP_8B
    plain = SwizzleMode.B128_ATOM_32B
    for address in range(0, 1024, 8):
        expected = swizzle.apply(plain, address) ^ (8 if (address // 128) % 2 else 0)
        assert swizzle.apply(mode, address) == expected


@given(st.sampled_from(list(SwizzleMode)), st.integers(0, 1 << 18), st.integers(0, 7))
def test_scalar_and_array_agree(mode, address, phase):
    array = swizzle.apply(mode, np.array([address]), phase)
    assert int(array[0]) == swizzle.apply(mode, address, phase)


@pytest.mark.parametrize("dtype,element", [("float16", 2), ("float32", 4), ("float8_e4m3fn", 1)])
@pytest.mark.parametrize("mode", [SwizzleMode.B32, SwizzleMode.B64, SwizzleMode.B128])
def test_matches_tvm_shared_layout(dtype, element, mode):
    pytest.importorskip("tvm", reason="TVM is the oracle of this test")
    from tvm.backend.cuda.tile_primitive.tma_utils import mma_shared_layout

    rows, width = 16, mode.row_bytes
    columns = 2 * width // element
    layout = mma_shared_layout(dtype, int(mode), [rows, columns])
    for row in range(rows):
        for column in range(0, columns, 7):
            theirs = int(layout.apply(row, column, shape=[rows, columns])["m"]) * element
            chunk, inside = divmod(column * element, width)
            ours = swizzle.apply(mode, chunk * rows * width + row * width + inside)
            assert ours == theirs
