"""What the DeepGEMM kernels of tirx-kernels need of the library ``deep_gemm``, in PyTorch: casts, scale layouts, results.

Scales are powers of two. Packed scales hold one exponent byte (UE8M0) for each block along k, four to an int32.
:func:`transform_sf` remembers the scales it packed, so that a result can be computed from the packed operands alone.
"""

from __future__ import annotations

import os
from typing import Any

import torch
from tirx_numbers import E2M1, from_ue8m0, pack_fp4, to_e2m1, ue8m0


def align(x: int, to: int) -> int:
    return -(-x // to) * to


# --------------------------------------------------------------------------------------------------------- casts


def _cast_fp8(x: Any, block_rows: int, gran_k: int) -> tuple[Any, Any]:
    """(e4m3 values, power-of-two scales) of blocks of ``block_rows`` x ``gran_k``."""
    m, k = x.shape
    padded = torch.zeros(align(m, block_rows), align(k, gran_k))
    padded[:m, :k] = x.float()
    blocks = padded.view(padded.shape[0] // block_rows, block_rows, padded.shape[1] // gran_k, gran_k)
    scale = from_ue8m0(ue8m0(blocks.abs().amax((1, 3)).clamp(min=1e-4) / 448.0))
    values = (
        (blocks / scale[:, None, :, None])
        .to(torch.float8_e4m3fn)
        .view(torch.uint8)
        .view(padded.shape)[:m, :k]
    )
    return values.contiguous().view(torch.float8_e4m3fn), scale


def per_token_cast_to_fp8(
    x: Any, use_ue8m0: bool = True, gran_k: int = 128, use_packed_ue8m0: bool = False, **_: Any
) -> tuple[Any, Any]:
    values, scale = _cast_fp8(x, 1, gran_k)
    return values, _packed(scale) if use_packed_ue8m0 else scale


def per_block_cast_to_fp8(x: Any, use_ue8m0: bool = True, gran_k: int = 128, **_: Any) -> tuple[Any, Any]:
    return _cast_fp8(x, gran_k, gran_k)


def per_channel_cast_to_fp8(x: Any, use_ue8m0: bool = True, gran_k: int = 128, **_: Any) -> tuple[Any, Any]:
    values, scale = _cast_fp8(x.T.contiguous(), 1, gran_k)
    return values.view(torch.uint8).T.contiguous().view(torch.float8_e4m3fn), scale.T.contiguous()


def per_custom_dims_cast_to_fp8(x: Any, dims: tuple[int, ...], use_ue8m0: bool) -> tuple[Any, Any]:
    """e4m3 values and float32 scales, one scale per index of ``dims``."""
    reduce = tuple(i for i in range(x.dim()) if i not in dims)
    scale = x.float().abs().amax(reduce, keepdim=True).clamp(min=1e-4) / 448.0
    return (x.float() / scale).to(torch.float8_e4m3fn), scale.squeeze()


def _packed(scale: Any) -> Any:
    """Powers of two [rows, blocks] as exponent bytes, four to an int32: [rows, blocks / 4]."""
    codes = ((scale.contiguous().view(torch.int32) >> 23) & 0xFF).to(torch.uint8)
    words = align(codes.shape[-1], 4)
    padded = torch.zeros(*codes.shape[:-1], words, dtype=torch.uint8)
    padded[..., : codes.shape[-1]] = codes
    return padded.view(torch.int32)


def _unpacked(packed: Any) -> Any:
    return from_ue8m0(packed.contiguous().view(torch.uint8))


def per_token_cast_to_fp4(
    x: Any, use_ue8m0: bool = True, gran_k: int = 128, use_packed_ue8m0: bool = False, **_: Any
) -> tuple[Any, Any]:
    """(two e2m1 codes a byte, int8 [rows, k / 2], power-of-two scales [rows, k / gran_k] or packed)."""
    blocks = x.float().reshape(x.shape[0], -1, gran_k)
    scale = from_ue8m0(ue8m0(blocks.abs().amax(-1).clamp(min=6 * 2.0**-126) / 6.0))
    codes = to_e2m1(blocks / scale[..., None]).reshape(x.shape[0], -1)
    return pack_fp4(codes).view(torch.int8), _packed(scale) if use_packed_ue8m0 else scale


def from_fp4(packed: Any) -> Any:
    """float32 values of packed e2m1 codes: [..., k / 2] to [..., k]."""
    raw = packed.view(torch.uint8).long()
    codes = torch.stack([raw & 15, raw >> 4], -1).flatten(-2)
    return E2M1[codes & 7] * torch.where(codes >= 8, -1.0, 1.0)


def cast_back_from_fp4(packed: Any, scale: Any, gran_k: int = 128, use_packed_ue8m0: bool = False) -> Any:
    factors = _unpacked(scale) if use_packed_ue8m0 else scale
    values = from_fp4(packed)
    return values * factors.repeat_interleave(gran_k, -1)[..., : values.shape[-1]]


# --------------------------------------------------------------------------------------------------------- scale layouts

_SCALES: dict[
    int, tuple[Any, int]
] = {}  # address of a packed tensor: its scales [groups, mn, blocks], gran_k


def _mn_contiguous(packed: Any) -> Any:
    """[groups, mn, words] with mn contiguous and padded to 16 bytes."""
    groups, mn, words = packed.shape
    out = torch.zeros(groups, words, align(mn, 4), dtype=torch.int32).transpose(1, 2)[:, :mn]
    out.copy_(packed)
    return out


def transform_sf(
    sf: Any, mn: int, k: int, recipe: Any = None, num_groups: Any = None, *_: Any, **__: Any
) -> Any:
    """Scales as exponent bytes, four along k in an int32, mn contiguous and padded to 16 bytes."""
    gran_mn, gran_k = recipe[-2], recipe[-1]
    grouped = sf if num_groups is not None or sf.dim() == 3 else sf[None]
    expanded = grouped.float().index_select(1, torch.arange(mn) // gran_mn)
    out = _mn_contiguous(_packed(expanded))
    _SCALES[out.data_ptr()] = expanded, gran_k
    return out if sf.dim() == 3 else out[0]


def k_grouped_sf(
    sf: Any, layout: Any, ks: list[int], gran_k: int, k_alignment: int, use_psum_layout: bool
) -> Any:
    """Scales [sum of blocks, mn] of groups along k, packed group by group: [sum of words, mn].

    Raises: NotImplementedError for the layout by prefix sums.
    """
    if use_psum_layout:
        raise NotImplementedError("groups by prefix sums")
    rows, first = [], 0
    for k in ks:
        count = -(-k // gran_k)
        rows.append(_packed(sf[first : first + count].T).T)
        first += count
    packed = torch.cat(rows).contiguous()
    _SCALES[packed.data_ptr()] = sf.T[None], gran_k
    return packed


def _dequantize(pair: tuple[Any, Any]) -> Any:
    values, sf = pair
    expanded, gran_k = _SCALES[sf.data_ptr()]
    plain = from_fp4(values) if values.dtype == torch.int8 else values.float()
    full = expanded.repeat_interleave(gran_k, 2)[:, :, : plain.shape[-1]]
    return plain * (full if values.dim() == 3 else full[0])


# --------------------------------------------------------------------------------------------------------- results


def gemm(a: Any, b: Any, d: Any, c: Any = None, **_: Any) -> None:
    value = _dequantize(a) @ _dequantize(b).transpose(-1, -2)
    d.copy_((value + (c.float() if c is not None else 0)).to(d.dtype))


def m_grouped_contiguous(
    a: Any, b: Any, d: Any, layout: Any, use_psum_layout: bool = False, **_: Any
) -> None:
    """Row i of a times matrix layout[i] of b; rows with layout -1 stay zero."""
    if use_psum_layout:
        raise NotImplementedError("groups by prefix sums")
    rows, matrices = _dequantize(a), _dequantize(b)
    d.zero_()
    for group, matrix in enumerate(matrices):
        mine = layout == group
        d[mine] = (rows[mine] @ matrix.T).to(d.dtype)


def m_grouped_masked(a: Any, b: Any, d: Any, counts: Any, expected_m: int, **_: Any) -> None:
    d.copy_((_dequantize(a) @ _dequantize(b).transpose(-1, -2)).to(d.dtype))


def k_grouped(a: Any, b: Any, d: Any, ks: list[int], layout: Any, c: Any, **_: Any) -> None:
    """d[g] = c[g] + A[rows of g]^T B[rows of g]; operands [sum of k, mn]."""

    def plain(pair: tuple[Any, Any]) -> Any:
        values, sf = pair
        scales, gran_k = _SCALES[sf.data_ptr()]
        out, block, first = values.float(), 0, 0
        for k in ks:
            count = -(-k // gran_k)
            full = scales[0].T[block : block + count].repeat_interleave(gran_k, 0)[:k]
            out[first : first + k] *= full
            block, first = block + count, first + k
        return out

    left, right, first = plain(a), plain(b), 0
    for group, k in enumerate(ks):
        d[group] = c[group] + left[first : first + k].T @ right[first : first + k]
        first += k


def einsum(expression: str, x: Any, y: Any, d: Any, c: Any = None, **_: Any) -> None:
    """The three batched products; scales are remembered as [batch, mn, blocks along k]."""
    views = {
        "bhr,hdr->bhd": ((1, 0, 2), (0, 1, 2)),
        "bhd,hdr->bhr": ((1, 0, 2), (0, 2, 1)),
        "bhd,bhr->hdr": ((2, 0, 1), (2, 0, 1)),
    }[expression]
    plain = []
    for (values, sf), view in zip((x, y), views, strict=True):
        scales, gran_k = _SCALES[sf.data_ptr()]
        factors = scales.repeat_interleave(gran_k, 2).permute(view)
        plain.append(values.float() * factors[tuple(slice(0, n) for n in values.shape)])
    value = torch.einsum(expression, *plain)
    d.copy_((value + (c.float() if c is not None else 0)).to(d.dtype))


def paged_metadata(context_lens: Any, page_size: int, num_sms: int, indices: Any = None) -> Any:
    """First work item of every SM, and the end: [num_sms + 1, 2] of (query, split of 256 keys), int32.

    The splits of all queries, in order, go to the SMs in equal shares; the first SMs take one more.
    """
    if indices is not None:
        raise NotImplementedError("queries of one request by index")
    splits = [-(-int(n) // 256) for n in context_lens.reshape(context_lens.shape[0], -1)[:, -1].tolist()]
    if context_lens.dim() == 2 and context_lens.shape[1] > 1:
        splits = [-(-int(n) // 256) for n in context_lens.reshape(-1).tolist()]
    items = [(query, split) for query, count in enumerate(splits) for split in range(count)]
    items.append((len(splits), 0))
    share, more = divmod(len(items) - 1, num_sms)
    firsts = [sm * share + min(sm, more) for sm in range(num_sms + 1)]
    return torch.tensor([items[i] for i in firsts], dtype=torch.int32)


def install(deep_gemm: Any, maths: Any) -> None:
    """Give the placeholder modules ``deep_gemm`` and ``deep_gemm.utils.math`` these functions."""
    casts = {
        f.__name__: f
        for f in (
            per_token_cast_to_fp8, per_block_cast_to_fp8, per_channel_cast_to_fp8, per_custom_dims_cast_to_fp8, per_token_cast_to_fp4,
            cast_back_from_fp4,
        )
    }  # fmt: skip
    for key, value in casts.items():
        setattr(maths, key, value)
        setattr(deep_gemm.utils, key, value)
    maths.ceil_div, maths.align = lambda a, b: -(-a // b), align
    deep_gemm.transform_sf_into_required_layout = transform_sf
    deep_gemm.get_k_grouped_mn_major_tma_aligned_packed_ue8m0_tensor = k_grouped_sf
    deep_gemm.set_mk_alignment_for_contiguous_layout = lambda n: None
    deep_gemm.fp8_fp4_gemm_nt = deep_gemm.fp8_gemm_nt = gemm
    deep_gemm.m_grouped_fp8_fp4_gemm_nt_contiguous = m_grouped_contiguous
    deep_gemm.m_grouped_fp8_fp4_gemm_nt_masked = m_grouped_masked
    deep_gemm.k_grouped_fp8_gemm_tn_contiguous = k_grouped
    deep_gemm.fp8_einsum = einsum
    deep_gemm.get_paged_mqa_logits_metadata = paged_metadata
    deep_gemm.get_num_sms = lambda: int(os.environ["TIRX_PREPARE_NUM_SMS"])
