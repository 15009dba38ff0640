"""TMA boxes against an element-by-element model, and the rules of the host encoder."""

import re

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emulator.machine.smem_descriptor import SmemDescriptor, gather_operand
from emulator.machine.swizzle import SwizzleMode, apply
from emulator.machine.tensor_map import BoxError, NotSupported, TensorMap

MODES = [SwizzleMode.NONE, SwizzleMode.B32, SwizzleMode.B64, SwizzleMode.B128]
EXTRA = [SwizzleMode.B128_ATOM_32B, SwizzleMode.B128_ATOM_64B, SwizzleMode.B128_ATOM_32B_FLIP_8B]
DTYPES = {"uint8": np.uint8, "float16": np.float16, "float32": np.float32, "int64": np.int64}
NAN = {"float16": 0x7FF7, "float32": 0x7FF77FF7}  # the pattern an H200 fills with


def model(tm, memory, coords, dst):
    """{shared byte address: byte} of a load, one element at a time."""
    size = np.dtype(DTYPES[tm.dtype]).itemsize
    steps = (1, *tm.element_strides[1:])
    counts = [-(-b // s) for b, s in zip(tm.box, steps, strict=True)]
    pitch = max(counts[0] * size, tm.swizzle.row_bytes if tm.swizzle else 0)
    out = {}
    for flat, position in enumerate(np.ndindex(*reversed(counts))):
        index = [c + i * s for c, i, s in zip(coords, reversed(position), steps, strict=True)]
        inside = all(0 <= i < d for i, d in zip(index, tm.dims, strict=True))
        offset = tm.base + index[0] * size + sum(i * s for i, s in zip(index[1:], tm.strides, strict=True))
        fill = NAN.get(tm.dtype, 0) if tm.oob_fill else 0
        data = memory[offset : offset + size] if inside else fill.to_bytes(size, "little")
        row = flat // counts[0]
        for b in range(size):
            out[apply(tm.swizzle, dst + row * pitch + position[-1] * size + b)] = int(data[b])
    return out


@st.composite
def maps(draw, dtypes=tuple(DTYPES), modes=(*MODES, *EXTRA), max_rank=4):
    dtype = draw(st.sampled_from(dtypes))
    size = np.dtype(DTYPES[dtype]).itemsize
    rank = draw(st.integers(1, max_rank))
    mode = draw(st.sampled_from(modes))
    widest = min(mode.row_bytes if mode else 128, 256 * size)
    box = [draw(st.integers(1, widest // 16)) * 16 // size]
    dims = [draw(st.integers(1, 80))]
    strides, pitch = [], dims[0] * size
    element_strides = [1]
    for _ in range(rank - 1):
        strides.append(-(-pitch // 16) * 16 + 16 * draw(st.integers(0, 2)))
        dims.append(draw(st.integers(1, 9)))
        box.append(draw(st.integers(1, 5)))
        element_strides.append(draw(st.sampled_from([1, 1, 2, 3])))
        pitch = strides[-1] * dims[-1]
    return TensorMap(
        dtype, tuple(dims), tuple(strides), tuple(box), tuple(element_strides), mode,
        oob_fill=draw(st.integers(0, 1)) if dtype in NAN else 0, base=16 * draw(st.integers(0, 3)),
    )  # fmt: skip


def memory_for(tm, seed=0):
    size = np.dtype(DTYPES[tm.dtype]).itemsize
    extent = (
        tm.base + tm.dims[0] * size + sum((d - 1) * s for d, s in zip(tm.dims[1:], tm.strides, strict=True))
    )
    return np.random.default_rng(seed).integers(0, 256, -(-extent // 16) * 16, dtype=np.uint8)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_load_matches_the_element_model(data):
    tm = data.draw(maps())
    assert tm.problems() == []
    coords = [data.draw(st.integers(-8, d + 4)) for d in tm.dims]
    dst = 128 * data.draw(st.integers(0, 9))
    memory = memory_for(tm)
    smem = np.random.default_rng(1).integers(0, 256, 65536, dtype=np.uint8)
    expected = smem.copy()
    for address, byte in model(tm, memory, coords, dst).items():
        expected[address] = byte
    tm.load(memory, coords, smem, dst)
    assert np.array_equal(smem, expected)
    touched = set((np.array(list(model(tm, memory, coords, dst))) // 16 * 16).tolist())
    if tm.swizzle != SwizzleMode.B128_ATOM_32B_FLIP_8B:
        assert set(tm.smem_chunks(dst).tolist()) == touched


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_store_is_the_inverse_and_skips_what_is_out_of_bounds(data):
    tm = data.draw(maps())
    coords = [data.draw(st.integers(-6, d + 3)) for d in tm.dims]
    src = 128 * data.draw(st.integers(0, 9))
    memory = memory_for(tm)
    before = memory.copy()
    smem = np.random.default_rng(2).integers(0, 256, 65536, dtype=np.uint8)
    tm.store(smem, src, memory, coords)
    ones = memory_for(tm) * 0 + 1
    inside = model(TensorMap(**{**vars_of(tm), "oob_fill": 0}), ones, coords, src)
    spans, length = tm.global_spans(coords)
    written = np.zeros(memory.size, bool)
    for start in spans:
        written[start : start + length] = True
    assert np.array_equal(memory[~written], before[~written])
    assert int(written.sum()) == sum(inside.values())
    for address, byte in model(tm, memory, coords, src).items():
        if inside[address]:
            assert byte == smem[address]


def vars_of(tm):
    return {name: getattr(tm, name) for name in tm.__dataclass_fields__}


def test_in_bounds_fast_path_equals_the_general_path():
    rng = np.random.default_rng(3)
    memory = rng.integers(0, 256, 512 * 1024, dtype=np.uint8)
    for mode in (*MODES, *EXTRA):
        width = min(64, mode.row_bytes // 2 if mode else 64)
        tm = TensorMap("float16", (512, 512), (1024,), (width, 128), swizzle=mode)
        for dst in (0, 1024, 1024 + 128, 640):
            for coords in ((64, 100), (0, 0), (512 - width, 384), (8, 3)):
                fast, slow = np.zeros(65536, np.uint8), np.zeros(65536, np.uint8)
                tm.load(memory, coords, fast, dst)
                tm.write_box(tm.load_box(memory, coords), slow, dst)
                assert np.array_equal(fast, slow)
                if mode != SwizzleMode.B128_ATOM_32B_FLIP_8B:
                    assert tm._fast_source(memory, coords, dst) is not None


@pytest.mark.parametrize("mode", MODES[1:])
@pytest.mark.parametrize("major", ["K", "MN"])
def test_what_tma_writes_is_what_the_descriptor_reads(mode, major):
    """A matrix loaded box by box comes back from the MMA operand gather, for either majorness."""
    rows, depth, width = 128, 64, mode.row_bytes // 2
    matrix = np.random.default_rng(9).standard_normal((rows, depth)).astype(np.float16)
    stored = matrix if major == "K" else np.ascontiguousarray(matrix.T)
    outer, inner = stored.shape
    tm = TensorMap("float16", (inner, outer), (inner * 2,), (width, outer), swizzle=mode)
    smem = np.zeros(65536, np.uint8)
    for chunk in range(inner // width):
        box_at = 1024 + chunk * tm.box_bytes
        tm.load(stored.reshape(-1).view(np.uint8), (chunk * width, 0), smem, box_at)
    for k in range(0, depth, 16):
        if major == "K":
            start = 1024 + k // width * tm.box_bytes + k % width * 2
            desc = SmemDescriptor.make(start, 0, 8 * mode.row_bytes, mode)
        else:
            desc = SmemDescriptor.make(1024 + k * mode.row_bytes, tm.box_bytes, 8 * mode.row_bytes, mode)
        assert np.array_equal(gather_operand(smem, desc, rows, 16, "f16", major), matrix[:, k : k + 16])


def test_box_bytes_count_the_full_box_and_pitch_follows_the_swizzle():
    tm = TensorMap("float16", (64, 64), (128,), (16, 8), swizzle=SwizzleMode.B128)
    assert (tm.row_bytes, tm.pitch, tm.rows, tm.box_bytes, tm.smem_bytes) == (32, 128, 8, 256, 7 * 128 + 32)
    assert TensorMap("float16", (64, 64), (128,), (16, 8)).pitch == 32
    strided = TensorMap("float16", (64, 64), (128,), (16, 8), (1, 3))
    assert strided.shape == (16, 3) and strided.box_bytes == 96


@pytest.mark.parametrize("dtype,op,expected", [
    ("int32", "add", lambda a, b: a + b), ("int32", "min", np.minimum), ("uint32", "max", np.maximum),
    ("uint32", "and", np.bitwise_and), ("uint64", "or", np.bitwise_or), ("int64", "xor", np.bitwise_xor),
    ("float32", "add", lambda a, b: a + b), ("float16", "add", lambda a, b: a + b),
    ("float16", "max", np.fmax), ("bfloat16", "add", lambda a, b: a + b), ("bfloat16", "min", np.minimum),
    ("uint32", "inc", lambda a, b: np.where(a >= b, 0, a + 1)),
    ("uint32", "dec", lambda a, b: np.where((a == 0) | (a > b), b, a - 1)),
])  # fmt: skip
def test_reduce(dtype, op, expected):
    numpy = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    width = 32 // numpy.itemsize
    rng = np.random.default_rng(4)
    if numpy.kind in "iu":
        old = rng.integers(0, 6, (8, width)).astype(numpy)
        new = rng.integers(0, 6, (8, width)).astype(numpy)
    else:
        old, new = (rng.standard_normal((8, width)).astype(numpy) for _ in range(2))
    tm = TensorMap(dtype, (width, 8), (32,), (width, 4), swizzle=SwizzleMode.B32)
    memory = old.copy().view(np.uint8).reshape(-1)
    smem = np.zeros(1024, np.uint8)
    loader = TensorMap(dtype, (width, 8), (32,), (width, 4), swizzle=SwizzleMode.B32)
    loader.load(new.view(np.uint8).reshape(-1), (0, 0), smem, 0)
    tm.reduce(smem, 0, memory, (0, 6), op)
    result = memory.view(numpy).reshape(8, width)
    assert np.array_equal(result[:6], old[:6])
    want = np.asarray(expected(old[6:], new[:2])).astype(numpy)
    assert result[6:].tobytes() == want.tobytes()


def test_reduce_rejects_what_ptx_does_not_have():
    tm = TensorMap("float32", (4, 4), (16,), (4, 4))
    with pytest.raises(NotSupported, match=r"no \.max for float32"):
        tm.reduce(np.zeros(1024, np.uint8), 0, np.zeros(64, np.uint8), (0, 0), "max")
    with pytest.raises(NotSupported, match=r"no \.and for float32"):
        tm.reduce(np.zeros(1024, np.uint8), 0, np.zeros(64, np.uint8), (0, 0), "and")


def test_gather4_and_scatter4():
    rng = np.random.default_rng(5)
    memory = rng.integers(0, 256, 64 * 128, dtype=np.uint8)
    table = memory.reshape(64, 128)
    tm = TensorMap("float16", (64, 64), (128,), (64, 1), swizzle=SwizzleMode.B128)
    smem = np.zeros(4096, np.uint8)
    tm.gather4(memory, (0, 5, 63, 64, -1), smem, 1024)
    for i, row in enumerate((5, 63, 64, -1)):
        for byte in range(128):
            want = table[row, byte] if 0 <= row < 64 else 0
            assert smem[apply(SwizzleMode.B128, 1024 + i * 128 + byte)] == want
    target = np.zeros_like(memory)
    tm.scatter4(smem, 1024, target, (0, 7, 9, 64, 11))
    out = target.reshape(64, 128)
    assert np.array_equal(out[7], table[5]) and np.array_equal(out[9], table[63])
    assert not out[[i for i in range(64) if i not in (7, 9)]].any()
    with pytest.raises(BoxError, match="5 coordinates"):
        tm.gather4(memory, (0, 1), smem, 0)


def test_padded_fp4_load():
    """16 packed elements become 8 bytes of data and 8 bytes of padding in shared memory."""
    memory = np.random.default_rng(6).integers(0, 256, 4 * 128, dtype=np.uint8)
    tm = TensorMap("float4_e2m1fn", (256, 4), (128,), (128, 2), swizzle=SwizzleMode.B128)
    assert tm.problems() == []
    assert (tm.row_bytes, tm.box_bytes) == (128, 256)
    smem = np.full(1024, 255, np.uint8)
    tm.load(memory, (128, 1), smem, 0)
    for row in range(2):
        for chunk in range(8):
            at = apply(SwizzleMode.B128, row * 128 + chunk * 16)
            start = (row + 1) * 128 + 64 + chunk * 8
            assert np.array_equal(smem[at : at + 8], memory[start : start + 8])
            assert not smem[at + 8 : at + 16].any()


def test_tf32_maps_round_to_nearest():
    values = np.array([1.0 + 2.0**-11, 1.0 + 2.0**-12, -(1.0 + 2.0**-11), np.inf], np.float32)
    tm = TensorMap("tfloat32", (4,), (), (4,))
    smem = np.zeros(16, np.uint8)
    tm.load(values.view(np.uint8), (0,), smem, 0)
    assert smem.view(np.float32).tolist() == [1.0 + 2.0**-10, 1.0, -(1.0 + 2.0**-10), np.inf]


def good(**changes):
    base = {
        "dtype": "float16",
        "dims": (64, 64),
        "strides": (128,),
        "box": (64, 8),
        "swizzle": SwizzleMode.B128,
    }
    return TensorMap(**{**base, **changes})


@pytest.mark.parametrize("changes,address,words", [
    ({"dims": (), "strides": (), "box": ()}, 0, "1 to 5 dimensions"),
    ({"dims": (64,) * 6, "strides": (128,) * 5, "box": (64,) * 6}, 0, "1 to 5 dimensions"),
    ({"strides": ()}, 0, "1 strides, got 2, 2 and 0"),
    ({"dtype": "complex64"}, 0, "data type complex64"),
    ({}, 8, "multiple of 16 bytes, it is 0x8"),
    ({"dims": (0, 64)}, 0, "dimension 0 has extent 0"),
    ({"dims": (64, 2**32 + 1)}, 0, "dimension 1 has extent"),
    ({"strides": (120,)}, 0, "stride of dimension 1 is 120 bytes"),
    ({"strides": (1 << 40,)}, 0, "below 2\\^40"),
    ({"box": (64, 257)}, 0, "box extent 1 is 257"),
    ({"element_strides": (2, 1)}, 0, "element stride 0 is 2"),
    ({"element_strides": (1, 9)}, 0, "element stride 1 is 9"),
    ({"box": (4, 8)}, 0, "innermost box extent is 8 bytes"),
    ({"box": (72, 8)}, 0, "144 bytes, more than the 128 bytes"),
    ({"dtype": "int8", "oob_fill": 1}, 0, "NaN fill needs"),
    ({"oob_fill": 2}, 0, "fill 2 does not exist"),
    ({"interleave": 1}, 0, "interleaved"),
    ({"dtype": "float4_e2m1fn", "box": (64, 8)}, 0, "multiple of 128"),
])  # fmt: skip
def test_host_checks(changes, address, words):
    assert good().problems() == []
    found = good(**changes).problems(address)
    assert len(found) == 1, found
    assert re.search(words, found[0]), found


def test_errors_are_one_clear_line():
    tm = good(name="A_map")
    smem = np.zeros(4096, np.uint8)
    with pytest.raises(BoxError, match="takes 2 coordinates, got 1"):
        tm.load(np.zeros(8192, np.uint8), (0,), smem, 0)
    with pytest.raises(BoxError, match="box of tensor map A_map reaches byte 1024"):
        tm.load(np.zeros(512, np.uint8), (0, 0), smem, 0)
    with pytest.raises(BoxError, match="does not fit in 4096 bytes"):
        tm.load(np.zeros(8192, np.uint8), (0, 0), smem, 3584)
    with pytest.raises(BoxError, match="does not fit"):
        tm.store(smem, 3584, np.zeros(8192, np.uint8), (0, 0))
    with pytest.raises(NotSupported, match="im2col"):
        tm.im2col()
    with pytest.raises(NotSupported, match="interleaved"):
        good(interleave=1).load(np.zeros(8192, np.uint8), (0, 0), smem, 0)
    assert "multiple of 128" in tm.destination_problems(64)[0]
    assert tm.destination_problems(128) == []
