"""4-bit and 8-bit formats in PyTorch, for the references of the kernels of tirx-kernels."""

from __future__ import annotations

from typing import Any

import torch

E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])


def to_e2m1(x: Any) -> Any:
    """4-bit codes (uint8), round to nearest even, saturating."""
    magnitude = x.float().abs().clamp(max=6.0)
    distance = (magnitude[..., None] - E2M1).abs()
    best = distance.min(-1, keepdim=True).values
    ties = distance == best
    even = torch.tensor([0, 1, 0, 1, 0, 1, 0, 1])
    code = (ties.float() * 2 - ties.float() * even).argmax(-1)
    return (code | (torch.signbit(x.float()).long() << 3)).to(torch.uint8)


def pack_fp4(codes: Any) -> Any:
    """Two codes a byte, the first in the low half."""
    return codes[..., 0::2] | (codes[..., 1::2] << 4)


def ue8m0(x: Any) -> Any:
    """Exponent bytes of the smallest power of two that is not below x."""
    bits = x.float().view(torch.int32)
    exponent = (bits >> 23) & 0xFF
    return (exponent + ((bits & 0x7FFFFF) != 0).int()).clamp(max=254).to(torch.uint8)


def from_ue8m0(code: Any) -> Any:
    return torch.exp2(code.float() - 127)
