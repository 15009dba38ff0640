"""Input data that the measurement and the tests compute alike."""

from __future__ import annotations

import numpy as np


def words(n: int, seed: int) -> np.ndarray:
    """``n`` uint32 words of a fixed sequence (splitmix64)."""
    with np.errstate(over="ignore"):
        x = np.arange(1, n + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(seed)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((x ^ (x >> np.uint64(31))) >> np.uint64(32)).astype(np.uint32)


def numbers(n: int, seed: int) -> np.ndarray:
    """``n`` numbers between -4 and 4 with at most 8 fractional bits, some of them 1024 times smaller."""
    w = words(n, seed)
    return (
        ((w % np.uint32(2001)).astype(np.float64) - 1000) / 256 / np.where(w >> np.uint32(28) == 0, 1024, 1)
    )


def registers(fmt: str, n: int, seed: int) -> np.ndarray:
    """``n`` uint32 registers full of elements of a format."""
    if fmt == "bf16":
        bits = numbers(2 * n, seed).astype(np.float32).view(np.uint32) >> np.uint32(16)
        return bits.astype(np.uint16).view(np.uint32)
    if fmt == "f16":
        return numbers(2 * n, seed).astype(np.float16).view(np.uint32)
    if fmt in ("f32", "tf32"):
        return (numbers(n, seed) * 1.000123).astype(np.float32).view(np.uint32)
    if fmt == "s32":
        with np.errstate(over="ignore"):
            return (words(n, seed) % np.uint32(100003)).astype(np.int32).view(np.uint32) - np.uint32(50000)
    if fmt in ("e4m3", "e5m2"):
        return words(n, seed) & np.uint32(0xBFBFBFBF)
    return words(n, seed)


SEEDS = {
    "f16.f16": 1,
    "bf16.bf16": 2,
    "tf32.tf32": 3,
    "e4m3.e4m3": 4,
    "e4m3.e5m2": 5,
    "e5m2.e5m2": 6,
    "s8.s8": 7,
    "u8.s8": 8,
}
IMAGE_WORDS = 16384  # shared memory of a wgmma case: 64 KiB
ROW_ADDRESSES = (
    (np.arange(32) * 37 + 5) % 512 * 16
)  # byte offsets that the lanes of ldmatrix and stmatrix give
