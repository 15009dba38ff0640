"""Input values per PTX type: the special ones that show rounding and saturation, then random bits and magnitudes."""

from __future__ import annotations

import numpy as np

Rng = np.random.Generator


def _f32_specials() -> np.ndarray:
    bits = [
        0x00000000, 0x80000000, 0x00000001, 0x80000001, 0x007FFFFF, 0x00800000, 0x00800001, 0x7F7FFFFF, 0xFF7FFFFF, 0x7F800000,
        0xFF800000, 0x7FC00000, 0xFFC00000, 0x7F800001, 0xFFFFFFFF, 0x3F800000, 0xBF800000, 0x3F7FFFFF, 0x3F800001, 0x3F000000,
        0xBF000000, 0x3EFFFFFF, 0x3FC00000, 0x40200000, 0xC0200000, 0x4F000000, 0xCF000000, 0x4EFFFFFF, 0x4F7FFFFF, 0x4F800000,
        0x5F000000, 0xDF000000, 0x5F7FFFFF, 0x5F800000, 0x477FE000, 0x477FEFFF, 0x477FF000, 0x47800000, 0x38800000, 0x387FE000,
        0x33800000, 0x33000000, 0x33000001, 0x3F801000, 0x3F803000, 0x3F800800, 0x3F808000, 0x3F818000, 0x7F7F8000, 0x7F7F7FFF,
        0x43E00000, 0x43E80000, 0x43E7FFFF, 0x43F00000, 0x47600000, 0x47680000, 0x3C800000, 0x3B000000, 0x3A800000, 0x3A7FFFFF,
        0x37800000, 0x37000000, 0x37000001, 0x42FE0000, 0x42FF0000, 0x43000000, 0xC3000000, 0xC3008000, 0x437F0000, 0x437F8000,
        0x46FFFE00, 0x46FFFF00, 0x47000000, 0xC7000000, 0x477FFF00, 0x477FFF80, 0x00400000, 0x00000400, 0x7E800000, 0x7EFFFFFF,
        0x7F000000, 0x3F801FFF, 0x3F802000, 0x3F802001, 0x4B000000, 0x4B800001, 0x4AFFFFFF, 0x42280000, 0xC2FC0000, 0x42FE8000,
    ]  # fmt: skip
    return np.array(bits, np.uint32)


def f32(rng: Rng, n: int) -> np.ndarray:
    """float32: specials, random bits, values near 1, near the limits of the 16- and 8-bit formats."""
    special = _f32_specials()
    bits = rng.integers(0, 2**32, n, dtype=np.uint32)
    scale = np.float32(2.0) ** rng.integers(-20, 20, n).astype(np.float32)
    normal = (rng.standard_normal(n).astype(np.float32) * scale).view(np.uint32)
    ties = (rng.integers(0x30000000, 0x48000000, n, dtype=np.uint32) & np.uint32(0xFFFFF000)) | (
        rng.integers(0, 2, n, dtype=np.uint32) << np.uint32(31)
    )
    pick = rng.integers(0, 4, n)
    x = np.choose(pick, [special[rng.integers(0, len(special), n)], bits, normal, ties]).astype(np.uint32)
    x[: len(special)] = special[:n]
    return x.view(np.float32)


_F16 = [0x0000, 0x8000, 0x0001, 0x8001, 0x03FF, 0x0400, 0x0401, 0x7BFF, 0xFBFF, 0x7C00, 0xFC00, 0x7E00, 0xFE00, 0x7C01, 0xFFFF,
        0x3C00, 0xBC00, 0x3BFF, 0x3C01, 0x3800, 0x4200, 0x5BFF, 0x5C00, 0x6400, 0x7800, 0x0010, 0x2000, 0x4248, 0x57F0]  # fmt: skip
_BF16 = [0x0000, 0x8000, 0x0001, 0x8001, 0x007F, 0x0080, 0x0081, 0x7F7F, 0xFF7F, 0x7F80, 0xFF80, 0x7FC0, 0xFFC0, 0x7F81, 0xFFFF,
         0x3F80, 0xBF80, 0x3F7F, 0x3F81, 0x3F00, 0x4040, 0x43E0, 0x47FF, 0x0040, 0x7E80, 0x3880, 0x4049]  # fmt: skip


def halves(rng: Rng, n: int, bf16: bool) -> np.ndarray:
    """Bits of float16 or bfloat16 values: specials, all exponents, values near 1."""
    special = np.array(_BF16 if bf16 else _F16, np.uint16)
    bits = rng.integers(0, 2**16, n, dtype=np.uint16)
    near = rng.standard_normal(n).astype(np.float32) * np.float32(3)
    normal = (
        (near.view(np.uint32) >> np.uint32(16)).astype(np.uint16)
        if bf16
        else near.astype(np.float16).view(np.uint16)
    )
    return np.choose(rng.integers(0, 3, n), [special[rng.integers(0, len(special), n)], bits, normal]).astype(
        np.uint16
    )


def f64(rng: Rng, n: int) -> np.ndarray:
    """float64: specials (those of float32, too), random bits, moderate values."""
    bits = rng.integers(0, 2**64, n, dtype=np.uint64)
    from_f32 = f32(rng, n).astype(np.float64).view(np.uint64)
    nudge = from_f32 + rng.integers(0, 3, n, dtype=np.uint64) - np.uint64(1)
    half = from_f32 + (np.uint64(1) << np.uint64(28))
    x = np.choose(rng.integers(0, 4, n), [bits, from_f32, nudge, half]).astype(np.uint64)
    return x.view(np.float64)


def integers(rng: Rng, n: int, bits: int) -> np.ndarray:
    """Unsigned integers of ``bits`` bits: edges, small values of both signs, powers of two, random bits."""
    dtype = np.dtype(f"uint{bits}")
    top = 2**bits
    edges = np.array([x % top for x in (0, 1, 2, 3, 7, 8, 31, 32, 33, 63, 64, 127, 128, 255, 256, 0x7FFF, 0x8000, 0xFFFF, 0x10000,
                                        -1, -2, -128, -129, -32768, -32769, top // 2, top // 2 - 1, top // 2 + 1, 2**24 - 1, 2**24 + 1,
                                        2**25 + 3, 2**31 - 64, 2**31 + 64)], dtype)  # fmt: skip
    small = rng.integers(-40, 80, n).astype(np.int64).astype(np.uint64).astype(dtype)
    power = (np.uint64(1) << rng.integers(0, bits, n).astype(np.uint64)).astype(dtype) - rng.integers(
        0, 2, n
    ).astype(dtype)
    random = rng.integers(0, top, n, dtype=dtype) if bits < 64 else rng.integers(0, 2**64, n, dtype=np.uint64)
    x = np.choose(
        rng.integers(0, 4, n), [edges[rng.integers(0, len(edges), n)], small, power, random]
    ).astype(dtype)
    x[: len(edges)] = edges[:n]
    return x


def of_type(rng: Rng, n: int, ptx_type: str, dtype: str) -> np.ndarray:
    """Inputs for an operand of a PTX type that travels in a TVM dtype."""
    target = np.dtype(dtype)
    if ptx_type in ("f32", "tf32"):
        return f32(rng, n).view(target)
    if ptx_type == "f64":
        return f64(rng, n).view(target)
    if ptx_type in ("f16", "bf16"):
        return halves(rng, n, ptx_type == "bf16").view(target)
    if ptx_type in ("f16x2", "bf16x2"):
        low, high = (halves(rng, n, ptx_type == "bf16x2").astype(np.uint32) for _ in range(2))
        return (low | high << np.uint32(16)).view(target)
    if ptx_type in ("e4m3x2", "e5m2x2"):
        every = np.arange(n, dtype=np.uint32) * np.uint32(0x9E35)
        return (every & np.uint32(0xFFFF)).astype(np.uint16).view(target)
    if ptx_type == "pred":
        return rng.integers(0, 2, n).astype(target)
    return (
        integers(rng, n, target.itemsize * 8).view(target)
        if target.kind in "iu"
        else f32(rng, n).view(target)
    )
