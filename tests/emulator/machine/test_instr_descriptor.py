"""Instruction descriptors: fields, TVM as an oracle for values and legal shapes, and diagnosis."""

import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.machine.instr_descriptor import InstrDescriptor, legal_n

KINDS = ["f16", "tf32", "f8f6f4", "i8", "mxf8f6f4", "mxf4", "mxf4nvf4"]
TVM_DTYPES = {
    "f16": "float16", "bf16": "bfloat16", "tf32": "tf32", "e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2",
    "e2m3": "float6_e2m3fn", "e3m2": "float6_e3m2fn", "e2m1": "float4_e2m1fn", "f32": "float32",
    "ue8m0": "float8_e8m0fnu", "ue4m3": "float8_e4m3fn",
}  # fmt: skip


@pytest.mark.parametrize(
    "value,m,n,b_major",
    [(136314896, 128, 128, "K"), (136380432, 128, 128, "MN"), (272629776, 256, 256, "K")],
)
def test_known_values(value, m, n, b_major):
    desc = InstrDescriptor.decode(value, "f16")
    assert (desc.m, desc.n, desc.a_major, desc.b_major) == (m, n, "K", b_major)
    assert (desc.d_format, desc.a_format, desc.b_format) == ("f32", "f16", "f16")
    assert desc.encode() == value
    assert desc.problems(cta_group=2 if m == 256 else 1) == []


@given(st.sampled_from(KINDS), st.integers(0, 2**32 - 1))
def test_decode_then_encode_is_the_identity_when_formats_are_legal(kind, value):
    desc = InstrDescriptor.decode(value, kind)
    if desc.a_format and desc.b_format and desc.d_format:
        assert desc.encode() == value
    else:
        assert any("reserved" in sentence for sentence in desc.problems())


@pytest.mark.parametrize("kind,a,b", [
    ("f16", "f16", "f16"), ("f16", "bf16", "bf16"), ("tf32", "tf32", "tf32"), ("f8f6f4", "e4m3", "e5m2"),
    ("f8f6f4", "e2m3", "e3m2"), ("f8f6f4", "e2m1", "e4m3"),
])  # fmt: skip
def test_dense_values_match_tvm(kind, a, b):
    descriptors = pytest.importorskip(
        "tvm.backend.cuda.cpp.descriptors", reason="TVM is the oracle of this test"
    )
    for m, n in ((128, 64), (64, 256)):
        for trans_b in (False, True):
            if trans_b and b in ("e2m3", "e3m2", "e2m1"):
                continue
            mine = InstrDescriptor(kind, m, n, "f32", a, b, b_major="MN" if trans_b else "K")
            theirs = descriptors.encode_instr_descriptor_dense_uint32(
                m, n, mine.k, "float32", TVM_DTYPES[a], TVM_DTYPES[b], False, trans_b
            )
            assert mine.encode() == theirs
            assert mine.problems() == []


@pytest.mark.parametrize("kind,a,scale", [
    ("mxf8f6f4", "e4m3", "ue8m0"), ("mxf8f6f4", "e5m2", "ue8m0"), ("mxf4", "e2m1", "ue8m0"),
    ("mxf4nvf4", "e2m1", "ue4m3"),
])  # fmt: skip
def test_block_scaled_values_match_tvm(kind, a, scale):
    descriptors = pytest.importorskip(
        "tvm.backend.cuda.cpp.descriptors", reason="TVM is the oracle of this test"
    )
    mine = InstrDescriptor(kind, 256, 128, "f32", a, a, scale_format=scale)
    theirs = descriptors.encode_instr_descriptor_block_scaled_uint32(
        256, 128, mine.k, "float32", TVM_DTYPES[a], TVM_DTYPES[a], TVM_DTYPES[scale], False, False, 2
    )
    assert mine.encode() == theirs
    assert mine.problems(cta_group=2) == []


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cta_group", [1, 2])
def test_legal_shapes_match_tvm(kind, cta_group):
    descriptors = pytest.importorskip(
        "tvm.backend.cuda.cpp.descriptors", reason="TVM is the oracle of this test"
    )
    k = InstrDescriptor(kind, 128, 128).k
    for m, n in itertools.product((16, 32, 64, 96, 128, 192, 256), range(8, 273, 8)):
        try:
            legal = bool(descriptors._check_tcgen05_mma_matrix_shape(kind, cta_group, m, n, k, False))
        except ValueError:
            legal = False
        assert (n in legal_n(kind, m, cta_group)) == legal, (m, n)


def test_instruction_k_and_operand_formats():
    assert [InstrDescriptor(kind, 128, 128).k for kind in KINDS] == [16, 8, 32, 32, 32, 64, 64]
    assert InstrDescriptor("f8f6f4", 128, 128, a_format="e2m1", b_format="e4m3").a_operand.smem_bits == 8
    assert InstrDescriptor("mxf4", 128, 128, a_format="e2m1", b_format="e2m1").a_operand.smem_bits == 4
    with pytest.raises(ValueError, match="reserved operand format"):
        _ = InstrDescriptor("f16", 128, 128).a_operand


def test_scale_factor_ids_follow_the_runtime_patch():
    """TIRx patches (d & ~0x60000030) | id << 29 | id << 4 into the descriptor at run time."""
    base = InstrDescriptor("mxf8f6f4", 128, 64, "f32", "e4m3", "e4m3", scale_format="ue8m0").encode()
    for sf_id in range(4):
        desc = InstrDescriptor.decode((base & ~0x60000030) | sf_id << 29 | sf_id << 4, "mxf8f6f4")
        assert (desc.a_sf_id, desc.b_sf_id) == (sf_id, sf_id)


F16 = {"a_format": "f16", "b_format": "f16"}
F4 = {"a_format": "e2m1", "b_format": "e2m1"}


@pytest.mark.parametrize(
    "desc,kwargs,words",
    [
        (InstrDescriptor("f16", 256, 128, **F16), {}, "M = 256 .* takes 64 or 128"),
        (InstrDescriptor("f16", 128, 24, **F16), {}, "N = 24 .* 16 to 256 in steps of 16"),
        (InstrDescriptor("f16", 256, 48, **F16), {"cta_group": 2}, "N = 48 .* steps of 32"),
        (InstrDescriptor("f16", 64, 32, **F16), {"ws": True}, "N = 32 .* 64, 128 or 256"),
        (InstrDescriptor("f16", 128, 128, "s32", **F16), {}, "accumulates in f16 or f32"),
        (InstrDescriptor("f16", 128, 128, "f16", "bf16", "bf16"), {}, "cannot be f16"),
        (InstrDescriptor("f16", 128, 128, "f32", "f16", "bf16"), {}, "one format"),
        (InstrDescriptor.decode(136314896 | 2 << 7, "f16"), {}, "format code of A is reserved"),
        (InstrDescriptor("f16", 128, 128, saturate=True, **F16), {}, "saturate bit"),
        (InstrDescriptor("f16", 128, 128, max_shift=1, **F16), {}, "maximum shift"),
        (InstrDescriptor("f16", 128, 128, sparse_selector=1, **F16), {}, "sparse bit is not"),
        (InstrDescriptor.decode(136314896 | 1 << 6, "f16"), {}, "reserved bits .* 0x40"),
        (InstrDescriptor("i8", 128, 128, "s32", "s8", "u8", negate_a=True), {}, "negate"),
        (InstrDescriptor("f8f6f4", 128, 128, "f32", "e2m3", "e4m3", a_major="MN"), {}, "below 8 bits"),
        (InstrDescriptor("mxf4", 128, 128, scale_format="ue4m3", **F4), {}, "does not take ue4m3"),
        (InstrDescriptor("mxf4nvf4", 128, 128, scale_format="ue4m3", **F4), {"scale_vec": 2}, "4X, not"),
        (InstrDescriptor("mxf4", 128, 128, scale_format="ue8m0", a_sf_id=1, **F4), {}, "ID 1 of A"),
        (InstrDescriptor("mxf4", 128, 128, scale_format="ue8m0", k96=True, **F4), {}, "sm_103a"),
    ],
)  # fmt: skip
def test_problems_are_named(desc, kwargs, words):
    found = desc.problems(**kwargs)
    assert len(found) == 1, found
    assert re.search(words, found[0]), found
