"""The 32-bit instruction descriptor of tcgen05.mma: shape, formats, majorness and options of one MMA.

Dense and integer kinds (PTX ISA, "tcgen05 Instruction descriptor"):

    [0,2) sparsity selector   2 sparse   3 saturate (i8)   [4,6) D format (0 f16, 1 f32, 2 s32)
    [7,10) A format   [10,13) B format   13/14 negate A/B   15/16 A/B MN-major
    [17,23) N/8   [24,29) M/16   [30,32) maximum shift of B reuse (.ws)

Block-scaled kinds (mxf8f6f4, mxf4, mxf4nvf4) differ in:

    [4,6) byte of the SFB cell   23 scale format (0 ue4m3, 1 ue8m0)   [29,31) byte of the SFA cell   31 K = 96
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from emulator.machine.smem_descriptor import Major
from emulator.numerics import formats
from emulator.numerics.formats import ElementFormat

Kind = Literal["f16", "tf32", "f8f6f4", "i8", "mxf8f6f4", "mxf4", "mxf4nvf4"]
BLOCK_SCALED = frozenset({"mxf8f6f4", "mxf4", "mxf4nvf4"})

_D_FORMATS = {0: "f16", 1: "f32", 2: "s32"}
_F8F6F4 = {0: "e4m3", 1: "e5m2", 3: "e2m3", 4: "e3m2", 5: "e2m1"}
_AB_FORMATS: dict[str, dict[int, str]] = {
    "f16": {0: "f16", 1: "bf16"},
    "tf32": {2: "tf32"},
    "f8f6f4": _F8F6F4,
    "i8": {0: "u8", 1: "s8"},
    "mxf8f6f4": _F8F6F4,
    "mxf4": {1: "e2m1"},
    "mxf4nvf4": {1: "e2m1"},
}
_D_FORMATS_OF_KIND: dict[str, tuple[str, ...]] = {
    "f16": ("f16", "f32"),
    "tf32": ("f32",),
    "f8f6f4": ("f16", "f32"),
    "i8": ("s32",),
}
_K = {"f16": 16, "tf32": 8, "f8f6f4": 32, "i8": 32, "mxf8f6f4": 32, "mxf4": 64, "mxf4nvf4": 64}
# (kind, scale format) -> legal .scale_vec sizes; PTX ISA, "Valid combinations of scale_vec_size"
_SCALE_VECS = {
    ("mxf8f6f4", "ue8m0"): (1,),
    ("mxf4", "ue8m0"): (2,),
    ("mxf4nvf4", "ue8m0"): (2, 4),
    ("mxf4nvf4", "ue4m3"): (4,),
}


@dataclass(frozen=True)
class InstrDescriptor:
    """A decoded instruction descriptor of one MMA kind.

    Formats are PTX names, None when the code is reserved for the kind. `a_sf_id` and `b_sf_id` are byte
    positions inside the 32-bit scale factor cell; they and `scale_format` matter to block-scaled kinds only.
    """

    kind: Kind
    m: int
    n: int
    d_format: str | None = "f32"
    a_format: str | None = None
    b_format: str | None = None
    a_major: Major = "K"
    b_major: Major = "K"
    negate_a: bool = False
    negate_b: bool = False
    saturate: bool = False
    sparse: bool = False
    sparse_selector: int = 0
    max_shift: int = 0
    scale_format: str | None = None
    a_sf_id: int = 0
    b_sf_id: int = 0
    k96: bool = False
    reserved_bits: int = 0

    @staticmethod
    def decode(value: int, kind: Kind) -> InstrDescriptor:
        """Decode a descriptor for an MMA of `kind`. Raises ValueError for an unknown kind."""
        return _decode(int(value), kind)

    def encode(self) -> int:
        """The 32-bit value. Raises ValueError for a format that the kind cannot encode."""
        value = self.sparse_selector & 3 | self.sparse << 2 | self.reserved_bits
        value |= _code(_AB_FORMATS[self.kind], self.a_format, self.kind) << 7
        value |= _code(_AB_FORMATS[self.kind], self.b_format, self.kind) << 10
        value |= self.negate_a << 13 | self.negate_b << 14
        value |= (self.a_major == "MN") << 15 | (self.b_major == "MN") << 16
        value |= (self.n >> 3 & 63) << 17 | (self.m >> 4 & 31) << 24
        if self.kind in BLOCK_SCALED:
            value |= self.b_sf_id << 4 | (self.scale_format == "ue8m0") << 23
            return value | self.a_sf_id << 29 | self.k96 << 31
        value |= _code(_D_FORMATS, self.d_format, self.kind) << 4
        return value | self.saturate << 3 | self.max_shift << 30

    @property
    def block_scaled(self) -> bool:
        return self.kind in BLOCK_SCALED

    @property
    def k(self) -> int:
        """Elements of K that one instruction consumes (of the uncompressed A when sparse)."""
        if self.k96:
            return 96
        return _K[self.kind] * (2 if self.sparse else 1)

    @property
    def a_operand(self) -> ElementFormat:
        """How A's elements lie in SMEM or TMEM (e2m1 is padded to a byte in kinds f8f6f4 and mxf8f6f4)."""
        return _operand(self.kind, self.a_format)

    @property
    def b_operand(self) -> ElementFormat:
        """How B's elements lie in SMEM."""
        return _operand(self.kind, self.b_format)

    def problems(self, cta_group: int = 1, ws: bool = False, scale_vec: int | None = None) -> list[str]:
        """Everything illegal about this descriptor for the instruction it is given to, one sentence each.

        `scale_vec` is the 1, 2 or 4 of `.scale_vec::1X/2X/4X` of a block-scaled MMA.
        """
        return list(_problems(self, cta_group, ws, scale_vec))


def _code(table: dict[int, str], name: str | None, kind: str) -> int:
    for code, candidate in table.items():
        if candidate == name:
            return code
    raise ValueError(f"kind::{kind} cannot encode the format {name!r}; it takes {', '.join(table.values())}")


def _operand(kind: str, name: str | None) -> ElementFormat:
    if name is None:
        raise ValueError(f"the instruction descriptor names a reserved operand format for kind::{kind}")
    if name == "e2m1" and kind in ("f8f6f4", "mxf8f6f4"):
        return formats.E2M1_PADDED
    return formats.lookup(name)


@lru_cache(maxsize=4096)
def _decode(value: int, kind: Kind) -> InstrDescriptor:
    if kind not in _AB_FORMATS:
        raise ValueError(f"unknown MMA kind {kind!r}; known: {', '.join(_AB_FORMATS)}")
    ab = _AB_FORMATS[kind]
    scaled = kind in BLOCK_SCALED
    reserved = 1 << 6 | (1 << 3 if scaled else 1 << 23 | 1 << 29)
    return InstrDescriptor(
        kind=kind,
        m=((value >> 24) & 31) << 4,
        n=((value >> 17) & 63) << 3,
        d_format="f32" if scaled else _D_FORMATS.get((value >> 4) & 3),
        a_format=ab.get((value >> 7) & 7),
        b_format=ab.get((value >> 10) & 7),
        a_major="MN" if value >> 15 & 1 else "K",
        b_major="MN" if value >> 16 & 1 else "K",
        negate_a=bool(value >> 13 & 1),
        negate_b=bool(value >> 14 & 1),
        saturate=not scaled and bool(value >> 3 & 1),
        sparse=bool(value >> 2 & 1),
        sparse_selector=value & 3,
        max_shift=0 if scaled else value >> 30 & 3,
        scale_format=("ue8m0" if value >> 23 & 1 else "ue4m3") if scaled else None,
        a_sf_id=value >> 29 & 3 if scaled else 0,
        b_sf_id=value >> 4 & 3 if scaled else 0,
        k96=scaled and bool(value >> 31 & 1),
        reserved_bits=value & reserved,
    )


def legal_n(kind: Kind, m: int, cta_group: int, ws: bool = False, sparse: bool = False) -> tuple[int, ...]:
    """The N that go with an M, () when that M is illegal. Source: PTX ISA, "tcgen05 Matrix shape"."""
    if ws:
        if cta_group != 1 or kind in BLOCK_SCALED or m not in (32, 64, 128):
            return ()
        return (64, 128) if sparse else (64, 128, 256)
    if kind in BLOCK_SCALED:
        if cta_group == 2 and sparse and m != 256:
            return ()
        steps = {128: 8} if cta_group == 1 else {128: 16, 256: 16}
    elif cta_group == 2:
        steps = {128: 32, 256: 32}
    elif kind == "i8":
        steps = {64: 16, 128: 16}
    else:
        steps = {64: 8, 128: 16}
    if m not in steps:
        return ()
    extra = {8, 24} if kind == "i8" and cta_group == 1 else set()
    return tuple(sorted({*range(steps[m], 257, steps[m]), *extra}))


@lru_cache(maxsize=4096)
def _problems(desc: InstrDescriptor, cta_group: int, ws: bool, scale_vec: int | None) -> tuple[str, ...]:
    return (
        *_shape_problems(desc, cta_group, ws),
        *_format_problems(desc),
        *_option_problems(desc, cta_group, ws),
        *(_scale_problems(desc, scale_vec) if desc.block_scaled else ()),
    )


def _shape_problems(desc: InstrDescriptor, cta_group: int, ws: bool) -> list[str]:
    kind, m = desc.kind, desc.m
    where = (
        f"kind::{kind}.cta_group::{cta_group}" + (".ws" if ws else "") + (" (sparse)" if desc.sparse else "")
    )
    allowed = [x for x in (32, 64, 128, 256) if legal_n(kind, x, cta_group, ws, desc.sparse)]
    if m not in allowed:
        choices = " or ".join(map(str, allowed)) or "no M at all"
        return [f"M = {m} in the instruction descriptor is illegal for {where}, which takes {choices}"]
    steps = legal_n(kind, m, cta_group, ws, desc.sparse)
    if desc.n not in steps:
        listed = "64, 128 or 256" if steps == (64, 128, 256) else f"{steps[0]} to {steps[-1]} in steps"
        if steps == (64, 128):
            listed = "64 or 128"
        elif listed.endswith("steps"):
            listed += f" of {steps[-1] - steps[-2]}"
        return [f"N = {desc.n} in the instruction descriptor is illegal for {where} with M = {m}: {listed}"]
    return []


def _format_problems(desc: InstrDescriptor) -> list[str]:
    found = []
    legal = ", ".join(dict.fromkeys(_AB_FORMATS[desc.kind].values()))
    for name, fmt, major in (("A", desc.a_format, desc.a_major), ("B", desc.b_format, desc.b_major)):
        if fmt is None:
            found.append(f"the format code of {name} is reserved for kind::{desc.kind}, which takes {legal}")
        elif major == "MN" and formats.lookup(fmt).bits < 8:
            found.append(f"{name} is {fmt} and marked MN-major: operands below 8 bits must be K-major")
        elif major == "MN" and desc.kind in ("mxf4", "mxf4nvf4"):
            found.append(f"{name} is marked MN-major: kind::{desc.kind} takes K-major operands only")
    if not desc.block_scaled and desc.d_format not in _D_FORMATS_OF_KIND[desc.kind]:
        takes = " or ".join(_D_FORMATS_OF_KIND[desc.kind])
        named = desc.d_format or "the reserved code 3"
        found.append(f"the format of D is {named}, kind::{desc.kind} accumulates in {takes}")
    if desc.kind == "f16" and desc.d_format == "f16" and "bf16" in (desc.a_format, desc.b_format):
        found.append("D cannot be f16 when an operand is bf16: accumulate in f32")
    if desc.kind == "f16" and None not in (desc.a_format, desc.b_format) and desc.a_format != desc.b_format:
        found.append(
            f"A is {desc.a_format} and B is {desc.b_format}: kind::f16 takes two operands of one format"
        )
    return found


def _option_problems(desc: InstrDescriptor, cta_group: int, ws: bool) -> list[str]:
    found = []
    if (desc.negate_a or desc.negate_b) and desc.kind == "i8":
        found.append("kind::i8 cannot negate an operand")
    if desc.saturate and desc.kind != "i8":
        found.append(f"the saturate bit is for kind::i8 only, this is kind::{desc.kind}")
    if desc.max_shift and not ws:
        found.append("the maximum shift of B reuse is for tcgen05.mma.ws only")
    if desc.sparse_selector and not desc.sparse:
        found.append("the sparsity selector is set but the sparse bit is not")
    if desc.sparse and desc.kind in ("tf32", "mxf4", "mxf4nvf4") and desc.sparse_selector > 1:
        found.append(f"kind::{desc.kind} knows the sparsity selectors 0 and 1 only")
    if desc.k96:
        found.append("K = 96 (bit 31) needs sm_103a")
    if desc.reserved_bits:
        found.append(f"reserved bits of the instruction descriptor are set: {desc.reserved_bits:#x}")
    if ws and cta_group != 1:
        found.append("tcgen05.mma.ws exists for cta_group::1 only")
    return found


def _scale_problems(desc: InstrDescriptor, scale_vec: int | None) -> list[str]:
    legal = _SCALE_VECS.get((desc.kind, desc.scale_format or ""))
    if legal is None:
        return [f"kind::{desc.kind} does not take {desc.scale_format} scale factors (bit 23)"]
    if scale_vec is None:
        scale_vec = legal[0]
    if scale_vec not in legal:
        listed = " or ".join(f"scale_vec::{v}X" for v in legal)
        return [
            f"kind::{desc.kind} with {desc.scale_format} scales takes {listed}, not scale_vec::{scale_vec}X"
        ]
    found = []
    for name, sf_id in (("A", desc.a_sf_id), ("B", desc.b_sf_id)):
        if sf_id % scale_vec:
            ids = ", ".join(str(i) for i in range(0, 4, scale_vec))
            found.append(f"scale factor ID {sf_id} of {name} is illegal for scale_vec::{scale_vec}X: {ids}")
    return found
