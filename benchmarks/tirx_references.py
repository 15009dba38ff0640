"""Small problems and PyTorch references for the kernels of tirx-kernels (see ``tirx_kernels.py`` in this directory).

The tests of that package compare with libraries that need a GPU, under the libraries' own names. The functions here compute
the same thing in PyTorch, mostly in float32, and are put where the tests look for them. Only names that are listed here
exist; everything else of those libraries stays a placeholder.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import tirx_deepgemm
import torch
import torch.nn.functional as F
from tirx_numbers import from_ue8m0, pack_fp4, to_e2m1, ue8m0

SMALL: dict[str, dict[str, Any]] = {
    "rmsnorm": {"hidden_size": 4096, "batch_size": 4},
    "flash_attention4": {
        "batch_size": 1,
        "seq_len": 512,
        "num_qo_heads": 4,
        "num_kv_heads": 2,
        "head_dim": 128,
        "is_causal": True,
    },
    "flash_attention_backward_sm100": {
        "batch_size": 1,
        "seq_len": 256,
        "num_heads": 2,
        "head_dim": 128,
        "is_causal": True,
    },
    "fp16_bf16_gemm": {"dtype": "fp16", "M": 1024, "N": 1024, "K": 256},
    "sparse_flashmla_prefill_head128_small_topk_phase1": {
        "s_q": 4,
        "s_kv": 512,
        "topk": 128,
        "h_q": 128,
        "have_attn_sink": True,
    },
    "sparse_flashmla_prefill_head128_phase1": {
        "s_q": 2,
        "s_kv": 2048,
        "topk": 1408,
        "d_qk": 512,
        "h_q": 128,
        "have_attn_sink": True,
    },
    "sparse_flashmla_prefill_head64_phase1": {
        "s_q": 4,
        "s_kv": 512,
        "topk": 256,
        "d_qk": 576,
        "h_q": 64,
        "have_attn_sink": True,
    },
    "flash_mla_sparse_fwd": {
        "s_q": 4,
        "s_kv": 512,
        "topk": 256,
        "d_qk": 512,
        "h_q": 64,
        "have_attn_sink": True,
        "h_kv": 1,
        "d_v": 512,
    },
    "deepgemm_sm100_fp8_gemm_1d1d": {"M": 128, "N": 512, "K": 512},
    "deepgemm_sm100_fp8_bmm": {"expr": "bhr,hdr->bhd", "H": 2, "R": 512, "D": 256, "B": 4},
    "deepgemm_sm100_m_grouped_fp8_gemm_masked": {
        "num_groups": 2,
        "expected_m_per_group": 20,
        "N": 256,
        "K": 512,
    },
    "deepgemm_sm100_m_grouped_fp8_gemm_contiguous": {
        "num_groups": 2,
        "expected_m_per_group": 200,
        "N": 256,
        "K": 512,
    },
    "deepgemm_sm100_k_grouped_fp8_gemm_contiguous": {
        "num_groups": 2,
        "M": 256,
        "N": 256,
        "expected_k_per_group": 256,
        "gran_k": 128,
        "k_alignment": 128,
        "seed": 1,
    },
    "deepgemm_sm100_fp8_paged_mqa_logits": {
        "batch_size": 2,
        "next_n": 1,
        "max_num_pages": 8,
        "num_pages": 16,
        "logits_dtype": "float32",
        "seed": 1,
    },
    "deepgemm_sm100_fp4_paged_mqa_logits": {
        "batch_size": 2,
        "next_n": 1,
        "max_num_pages": 8,
        "num_pages": 16,
        "logits_dtype": "float32",
        "seed": 1,
    },
    "deepgemm_sm100_fp8_mqa_logits": {"seq_len": 16, "seq_len_kv": 512},
    "deepgemm_sm100_fp4_mqa_logits": {"seq_len": 16, "seq_len_kv": 512},
    "deepgemm_sm100_tf32_hc_prenorm_gemm": {"m": 137, "n": 24, "k": 1024, "num_splits": 2, "seed": 1},
    "msa_sparse_prepare_flat_schedule_sm100": {
        "batch": 1,
        "seqlen_q": 256,
        "seqlen_k": 512,
        "head_kv": 1,
        "qhead_per_kv": 4,
        "topk": 4,
        "blk_kv": 128,
        "seqlen_pattern": "uniform",
    },
    "msa_sparse_prepare_fwd_split_atomic_sm100": {
        "batch": 1,
        "seqlen_q": 256,
        "seqlen_k": 512,
        "head_kv": 1,
        "qhead_per_kv": 4,
        "topk": 4,
        "blk_kv": 128,
        "seqlen_pattern": "uniform",
    },
    "msa_sparse_atten_fwd_combine_sm100": {
        "batch": 1,
        "seqlen_q": 256,
        "seqlen_k": 512,
        "head_kv": 1,
        "qhead_per_kv": 4,
        "topk": 4,
        "blk_kv": 128,
        "seqlen_pattern": "uniform",
    },
    "msa_sparse_atten_fwd_sm100": {
        "batch": 1,
        "seqlen_q": 256,
        "seqlen_k": 512,
        "head_kv": 1,
        "qhead_per_kv": 4,
        "topk": 4,
        "blk_kv": 128,
        "seqlen_pattern": "uniform",
    },
    "msa_sparse_atten_fwd_nvfp4_kv_sm100": {
        "batch": 1,
        "seqlen_q": 256,
        "seqlen_k": 512,
        "head_kv": 1,
        "qhead_per_kv": 4,
        "topk": 4,
        "blk_kv": 128,
        "seqlen_pattern": "uniform",
    },
    "stable_sort_topk_by_value": {"dtype": "float32", "num_rows": 4, "k": 256, "pattern": "unique"},
    "sparse_flashmla_decode_head64": {
        "label": "small",
        "model_type": "V32",
        "b": 2,
        "s_q": 1,
        "s_kv": 512,
        "topk": 128,
        "page_block_size": 64,
        "have_attn_sink": True,
    },
    "cudnn_sm100_csa_compressor_fwd": {"seq_lens": [9, 16], "head_dim": 128, "coff": 2},
    "kda_forward_portfolio_multishape": {"num_heads": 8, "seq_lens": [65], "seed": 8},
    "vsa_multishape": {
        "seq_len": 512,
        "num_heads": 1,
        "block_size": 64,
        "topk": 2,
        "head_shared_mask": True,
        "num_partial_blocks": 0,
        "partial_block_len": 0,
        "seed": 0,
    },
    "cudnn_sm100_dsa_sparse_attention_backward": {
        "head_dim": 512,
        "num_head": 64,
        "seqlen_q": 8,
        "seqlen_kv": 256,
        "max_topk": 64,
        "has_topk_length": True,
        "dtype": "bfloat16",
        "topk_mode": "random",
        "sink_mode": "normal",
        "seed": 7,
    },
    "gdn_prefill_sm100": {"hq": 2, "hv": 8, "seq_lens": [256], "seed": 10005},
    "gdn_decode_bf16_wide_vec_t1": {
        "batch": 4,
        "num_heads": 2,
        "num_v_heads": 4,
        "tile_v": 64,
        "seed": 10033,
    },
    "recurrent_kda_decode_grouped": {
        "mode": "decode",
        "num_seqs": 1,
        "num_tokens": 1,
        "num_heads": 2,
        "num_value_heads": 2,
        "scratch_steps": None,
        "pool_size": 8,
        "lower_bound": -5.0,
        "padded_slots": 0,
        "empty_rows": 0,
        "orphan_tokens": 0,
        "seed": 20260812,
    },
    "recurrent_kda_decode_one_warp": {
        "num_seqs": 8,
        "num_heads": 16,
        "num_value_heads": 16,
        "pool_size": 16,
        "lower_bound": -5.0,
        "padded_slots": 0,
        "slot_stride_pad": 0,
        "seed": 20260811,
    },
    "act_and_mul": {"act": "silu", "dtype": "float16", "d": 1024, "num_tokens": 16},
}
# A smaller device for persistent kernels: each CTA works on several tiles.
NUM_SMS: dict[str, int] = {
    name: 4
    for name in SMALL
    if name.startswith("deepgemm_sm100_fp") or name.startswith(("deepgemm_sm100_m_", "deepgemm_sm100_k_"))
}

_SEVERAL = "works on several GPUs"
_RUBIN = "sm_107, with inputs from FlashInfer's source tree"
_PLAN = "the library plans the work that the kernel takes as input"
# Why a kernel does not run, where the cause is not the emulator.
REASONS: dict[str, str] = {
    "allgather_gemm": _SEVERAL,
    "gemm_reduce_scatter": _SEVERAL,
    "deepep_combine": _SEVERAL,
    "deepep_dispatch": _SEVERAL,
    "sm100_fp8_fp4_mega_moe": _SEVERAL,
    "bmm_fp8_rubin": _RUBIN,
    "grouped_gemm_masked_rubin": _RUBIN,
    "blockscaled_contiguous_gather_grouped_gemm_swiglu_fusion_rubin": _RUBIN,
    "cudnn_sm100_flex_attention_backward": _PLAN,
    "cudnn_sm100_flex_attention_forward_hd256": _PLAN,
    "cudnn_sm103_flex_attention_forward": _PLAN,
    "cudnn_sm100_bsa_backward_blk64": _PLAN,
    "cudnn_sm100_bsa_backward_blk128": _PLAN,
    "kda_backward_packed": _PLAN,
    "fastcu_nvfp4_gemm_gb300": "no kernel without the source tree of its library",
}

# --------------------------------------------------------------------------------------------------------- normalization


def rms_norm(x: Any, weight: Any, eps: float, bias: float = 0.0) -> Any:
    """float32 RMS norm over the last dimension."""
    x = x.float()
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + eps) * (weight.float() + bias)


def _norm_module(public: Any, norm: Any) -> None:
    def store(out: Any, value: Any, like: Any) -> Any:
        if out is None:
            return value.to(like.dtype)
        out.copy_(value.to(out.dtype))
        return out

    def plain(gemma: bool) -> Callable[..., Any]:
        def api(
            x: Any, weight: Any, eps: float = 1e-6, out: Any = None, enable_pdl: Any = None, **_: Any
        ) -> Any:
            cute = norm.qk_rmsnorm_cute if x.dim() == 3 else norm.rmsnorm_cute
            return cute(x, weight, eps, out, 1.0 if gemma else 0.0)

        return api

    def fused(gemma: bool) -> Callable[..., Any]:
        def api(x: Any, residual: Any, weight: Any, eps: float = 1e-6, enable_pdl: Any = None) -> None:
            norm.fused_add_rmsnorm_cute(x, residual, weight, eps, 1.0 if gemma else 0.0)

        return api

    def cute(x: Any, weight: Any, eps: float, out: Any, bias: float) -> Any:
        return store(out, rms_norm(x, weight, eps, bias), x)

    def fused_cute(x: Any, residual: Any, weight: Any, eps: float, bias: float) -> None:
        total = x.float() + residual.float()
        residual.copy_(total.to(residual.dtype))
        x.copy_(rms_norm(total, weight, eps, bias).to(x.dtype))

    def to_fp8(value: Any, out: Any) -> None:
        limit = torch.finfo(out.dtype).max
        out.copy_(value.clamp(-limit, limit).to(out.dtype))

    def quant_cute(out: Any, x: Any, weight: Any, scale: Any, eps: float) -> None:
        to_fp8(rms_norm(x, weight, eps) / scale.float(), out)

    def fused_quant_cute(out: Any, x: Any, residual: Any, weight: Any, scale: Any, eps: float) -> None:
        total = x.float() + residual.float()
        residual.copy_(total.to(residual.dtype))
        to_fp8(rms_norm(total, weight, eps) / scale.float(), out)

    def layer_norm(
        out: Any, x: Any, gamma: Any, beta: Any, eps: float = 1e-6, enable_pdl: Any = None
    ) -> None:
        out.copy_(F.layer_norm(x.float(), x.shape[-1:], gamma.float(), beta.float(), eps).to(out.dtype))

    norm._use_cuda_norm = lambda device: False
    norm.rmsnorm_cute = norm.qk_rmsnorm_cute = cute
    norm.fused_add_rmsnorm_cute, norm.layernorm_cute = fused_cute, layer_norm
    norm.rmsnorm_quant_cute, norm.fused_add_rmsnorm_quant_cute = quant_cute, fused_quant_cute
    norm.rmsnorm = public.rmsnorm = plain(False)
    norm.gemma_rmsnorm = public.gemma_rmsnorm = plain(True)
    norm.fused_add_rmsnorm = public.fused_add_rmsnorm = fused(False)
    norm.gemma_fused_add_rmsnorm = public.gemma_fused_add_rmsnorm = fused(True)
    norm.rmsnorm_quant = lambda out, x, w, s, eps=1e-6, enable_pdl=None: norm.rmsnorm_quant_cute(
        out, x, w, s, eps
    )
    norm.fused_add_rmsnorm_quant = lambda out, x, r, w, s, eps=1e-6, enable_pdl=None: (
        norm.fused_add_rmsnorm_quant_cute(out, x, r, w, s, eps)
    )


# --------------------------------------------------------------------------------------------------------- quantization


def swizzle_scales(scales: Any, layout: str) -> Any:
    """Scale bytes [rows, blocks] in the layout of the tensor core (128x4 atoms, or 8x4), zero padded; "linear": unchanged."""
    if layout == "linear":
        return scales.reshape(-1)
    rows = {"128x4": 128, "8x4": 8}[layout]
    m, k = scales.shape
    padded = torch.zeros((-(-m // rows) * rows, -(-k // 4) * 4), dtype=scales.dtype)
    padded[:m, :k] = scales
    mt, kt = padded.shape[0] // rows, padded.shape[1] // 4
    if layout == "8x4":
        return padded.view(mt, 8, kt, 4).permute(0, 2, 1, 3).reshape(-1)
    return padded.view(mt, 4, 32, kt, 4).permute(0, 3, 2, 1, 4).reshape(-1)


def _layout(value: Any, swizzled: Any = None, small: Any = None) -> str:
    if value is not None:
        return str(value)
    return "linear" if swizzled is False else "8x4" if small else "128x4"


def nvfp4(x: Any, global_scale: Any) -> tuple[Any, Any]:
    """(packed codes, e4m3 scale bytes) of blocks of 16."""
    x = x.float()
    blocks = x.reshape(x.shape[0], -1, 16)
    scale = (
        (float(global_scale) * (blocks.abs().amax(-1) * torch.tensor(1.0 / 6.0)))
        .clamp(max=448.0)
        .to(torch.float8_e4m3fn)
    )
    inverse = torch.where(scale.float() == 0, 0.0, 1.0 / (scale.float() * (1.0 / float(global_scale))))
    return pack_fp4(to_e2m1(blocks * inverse[..., None]).reshape(x.shape[0], -1)), scale.view(torch.uint8)


def mxfp8(x: Any) -> tuple[Any, Any]:
    blocks = x.float().reshape(x.shape[0], -1, 32)
    code = ue8m0(blocks.abs().amax(-1) * torch.tensor(1.0 / 448.0))
    values = (blocks / from_ue8m0(code)[..., None]).clamp(-448, 448)
    return values.to(torch.float8_e4m3fn).reshape(x.shape), code


def mxfp4(x: Any) -> tuple[Any, Any]:
    blocks = x.float().reshape(x.shape[0], -1, 32)
    code = ue8m0(blocks.abs().amax(-1) * torch.tensor(1.0 / 6.0))
    return pack_fp4(to_e2m1(blocks / from_ue8m0(code)[..., None]).reshape(x.shape)), code


def _quantization_module(public: Any, quantization: Any, enums: Any) -> None:
    class SfLayout:
        layout_linear, layout_128x4, layout_8x4 = "linear", "128x4", "8x4"

    def nvfp4_quantize(a: Any, gs: Any, sfLayout: Any = "128x4", do_shuffle: bool = False, **_: Any) -> Any:
        codes, scales = nvfp4(a, gs)
        return codes, swizzle_scales(scales, sfLayout)

    def silu_nvfp4(
        a: Any, gs: Any, is_sf_swizzled_layout: bool = True, is_sf_8x4_layout: bool = False, **_: Any
    ) -> Any:
        half = a.shape[-1] // 2
        gated = (F.silu(a[:, :half].float()) * a[:, half:].float()).to(a.dtype)
        return nvfp4_quantize(gated, gs, _layout(None, is_sf_swizzled_layout, is_sf_8x4_layout))

    def mx(function: Callable[..., Any]) -> Callable[..., Any]:
        def quantize(
            a: Any,
            is_sf_swizzled_layout: Any = None,
            sf_swizzle_layout: Any = None,
            sfLayout: Any = None,
            **_: Any,
        ) -> Any:
            codes, scales = function(a)
            return codes, swizzle_scales(
                scales, _layout(sf_swizzle_layout or sfLayout, is_sf_swizzled_layout)
            )

        return quantize

    public.SfLayout = quantization.SfLayout = enums.SfLayout = SfLayout
    public.nvfp4_quantize = quantization.nvfp4_quantize = nvfp4_quantize
    quantization.silu_and_mul_nvfp4_quantize = silu_nvfp4
    quantization.mxfp8_quantize, quantization.mxfp4_quantize = mx(mxfp8), mx(mxfp4)


# --------------------------------------------------------------------------------------------------------- attention


def attention(
    q: Any, k: Any, v: Any, softmax_scale: float | None = None, causal: bool = False, **_: Any
) -> tuple[Any, Any]:
    """Attention over [batch, sequence, heads, dim] with grouped key heads; (output, log-sum-exp [batch, heads, sequence])."""
    scale = softmax_scale if softmax_scale is not None else 1 / math.sqrt(q.shape[-1])
    group = q.shape[2] // k.shape[2]
    qf, kf, vf = (
        t.float().transpose(1, 2) for t in (q, k.repeat_interleave(group, 2), v.repeat_interleave(group, 2))
    )
    scores = qf @ kf.transpose(-1, -2) * scale
    if causal:
        rows, columns = scores.shape[-2:]
        scores = scores.masked_fill(
            torch.ones(rows, columns, dtype=torch.bool).triu(columns - rows + 1), -math.inf
        )
    lse = scores.logsumexp(-1)
    return (torch.softmax(scores, -1) @ vf).transpose(1, 2).contiguous().to(q.dtype), lse


def attention_backward(
    q: Any,
    k: Any,
    v: Any,
    out: Any,
    dout: Any,
    lse: Any,
    softmax_scale: Any = None,
    causal: bool = False,
    **_: Any,
) -> Any:
    qf, kf, vf = (t.detach().float().requires_grad_() for t in (q, k, v))
    with torch.enable_grad():
        value, _lse = attention(qf, kf, vf, softmax_scale, causal)
        gradients = torch.autograd.grad(value, (qf, kf, vf), dout.float())
    return tuple(g.to(t.dtype) for g, t in zip(gradients, (q, k, v), strict=True))


def merge_state(v_a: Any, s_a: Any, v_b: Any, s_b: Any) -> tuple[Any, Any]:
    """Two partial attention states; s are base-2 log-sum-exps."""
    top = torch.maximum(s_a, s_b)
    w_a, w_b = torch.exp2(s_a - top), torch.exp2(s_b - top)
    total = w_a + w_b
    value = (v_a.float() * (w_a / total)[..., None] + v_b.float() * (w_b / total)[..., None]).to(v_a.dtype)
    return value, torch.log2(total) + top


# --------------------------------------------------------------------------------------------------------- state space


def selective_state_update(
    state: Any, x: Any, dt: Any, a: Any, b: Any, c: Any, d: Any = None, z: Any = None, dt_bias: Any = None, dt_softplus: bool = False,
    state_batch_indices: Any = None, dst_state_batch_indices: Any = None, pad_slot_id: int = -1, state_scale: Any = None, out: Any = None,
    disable_state_update: bool = False, intermediate_states_buffer: Any = None, intermediate_state_indices: Any = None, rand_seed: Any = None,
    cache_steps: int = 0, **other: Any,
) -> Any:  # fmt: skip
    """One or several steps of Mamba-2: state = state * exp(A dt) + dt x B;  y = state C + D x, gated by z.

    Raises: NotImplementedError for stochastic rounding and scaled states.
    """
    if rand_seed is not None or state_scale is not None:
        raise NotImplementedError("stochastic rounding and scaled states")
    single = x.dim() == 3
    if single:
        x, dt, b, c = x[:, None], dt[:, None], b[:, None], c[:, None]
        z = None if z is None else z[:, None]
    batch, steps, heads, _dim = x.shape
    per_group = heads // b.shape[2]
    result = torch.zeros_like(x) if out is None else (out[:, None] if single else out)
    for i in range(batch):
        slot = i if state_batch_indices is None else int(state_batch_indices.reshape(batch, -1)[i, 0])
        if slot == pad_slot_id:
            h = torch.zeros_like(state[0], dtype=torch.float32)
        else:
            h = state[slot].float().clone()
        for t in range(steps):
            step = dt[i, t].float()
            if dt_bias is not None:
                step = step + dt_bias.float()
            if dt_softplus:
                step = torch.where(step <= 20, F.softplus(step), step)
            bb, cc = (m[i, t].float().repeat_interleave(per_group, 0) for m in (b, c))
            xx = x[i, t].float()
            h = h * torch.exp(a.float() * step[..., None]) + (step * xx)[..., None] * bb[:, None, :]
            if intermediate_states_buffer is not None and slot != pad_slot_id:
                row = i if intermediate_state_indices is None else int(intermediate_state_indices[i])
                intermediate_states_buffer[row, t].copy_(h.to(intermediate_states_buffer.dtype))
            y = (h * cc[:, None, :]).sum(-1)
            if d is not None:
                y = y + d.float() * xx
            if z is not None:
                y = y * F.silu(z[i, t].float())
            result[i, t].copy_(y.to(result.dtype))
        if not disable_state_update and slot != pad_slot_id:
            destination = (
                slot
                if dst_state_batch_indices is None
                else int(dst_state_batch_indices.reshape(batch, -1)[i, 0])
            )
            if destination != pad_slot_id:
                state[destination].copy_(h.to(state.dtype))
    return result[:, 0] if single and out is None else out if out is not None else result


# --------------------------------------------------------------------------------------------------------- selection


def _top_k_of(scores: Any, k: int, out: Any) -> None:
    values, indices = torch.topk(scores.float(), k, dim=-1)
    out["indices"].copy_(indices.to(out["indices"].dtype))
    if out.get("values") is not None:
        out["values"].copy_(values.to(out["values"].dtype))


def top_k(config: Any, data: Any, out: Any) -> None:
    """Reference of the plain mode of the top-k kernels."""
    if config["mode"] != "basic":
        raise NotImplementedError(config["mode"])
    _top_k_of(data["scores"], config["k"], out)


def cluster_top_k(data: Any, out: Any) -> None:
    if data["mode"] != "plain":
        raise NotImplementedError(data["mode"])
    _top_k_of(data["logits"], data["k"], out)


# --------------------------------------------------------------------------------------------------------- delta rule


def gated_delta_rule(case: dict[str, Any], output: Any, final_state: Any) -> None:
    """One token after the other: the state decays, forgets what it says about k, and learns v. States are [value, key]."""
    groups = case["v"].shape[1] // case["q"].shape[1]
    q, k = (case[x].float().repeat_interleave(groups, 1) for x in ("q", "k"))
    ends = case["cu_seqlens"].tolist()
    for n, (first, last) in enumerate(itertools.pairwise(ends)):
        state = case["initial_state"][n].float()
        for t in range(first, last):
            state = state * case["gate"][t][:, None, None]
            known = torch.einsum("hk,hvk->hv", k[t], state)
            learned = case["beta"][t][:, None] * (case["v"][t].float() - known)
            state = state + learned[:, :, None] * k[t][:, None, :]
            output[t] = (torch.einsum("hk,hvk->hv", q[t], state) * case["scale"]).to(output.dtype)
        final_state[n] = state


def gated_delta_rule_in_chunks(case: dict[str, Any], output: Any, final_state: Any) -> None:
    config = case["config"]
    if config.indexed_state:
        raise NotImplementedError("indexed states")
    initial = case["initial_state"] if config.needs_initial_state else torch.zeros_like(final_state)
    gated_delta_rule(case | {"gate": case["alpha"], "initial_state": initial}, output, final_state)


# The tests' own float32 result in place of the library's: the kernel is then compared with the former alone.
OWN_REFERENCE: dict[str, tuple[str, Callable[..., Any]]] = {
    "deepgemm_sm100_fp8_mqa_logits": ("_run_deepgemm_mqa", lambda data, clean_logits: data["reference"]),
    "deepgemm_sm100_fp4_mqa_logits": ("_run_deepgemm_mqa", lambda data, clean_logits: data["reference"]),
    "deepgemm_sm100_fp8_paged_mqa_logits": (
        "_run_deepgemm_paged_mqa",
        lambda data, clean_logits: data["reference"],
    ),
    "deepgemm_sm100_fp4_paged_mqa_logits": (
        "_run_deepgemm_paged_mqa",
        lambda data, clean_logits: data["reference"],
    ),
    "radix_topk_multi_cta": ("run_reference", top_k),
    "radix_topk_single_cta": ("run_reference", top_k),
    "filtered_topk": ("run_reference", top_k),
    "fast_topk_clusters": ("run_reference", cluster_top_k),
    "gdn_prefill_sm100": ("_run_oracle", gated_delta_rule),
    "gdn_cp_prefill_sm100": ("_run_oracle", gated_delta_rule_in_chunks),
}

# --------------------------------------------------------------------------------------------------------- installation


def _module(name: str) -> Any:
    """A placeholder module of this name that can be given real functions; its parents link to it."""
    import importlib

    module = importlib.import_module(name)
    parent, _, child = name.rpartition(".")
    if parent:
        setattr(_module(parent), child, module)
    return module


def install(name: str, module: Any) -> None:
    """Put the references in place for one kernel (a process runs one kernel)."""
    flashinfer = _module("flashinfer")
    _norm_module(flashinfer, _module("flashinfer.norm"))
    _quantization_module(flashinfer, _module("flashinfer.quantization"), _module("flashinfer.tllm_enums"))
    activation = _module("flashinfer.activation")
    for key, act in {
        "silu": F.silu,
        "gelu": F.gelu,
        "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    }.items():

        def and_mul(x: Any, out: Any = None, enable_pdl: Any = None, act: Any = act) -> Any:
            half = x.shape[-1] // 2
            return (act(x[..., :half].float()) * x[..., half:].float()).to(x.dtype)

        setattr(activation, f"{key}_and_mul", and_mul)
    flashinfer.merge_state = merge_state
    _module("flashinfer.mamba").selective_state_update = selective_state_update
    interface = _module("flash_attn.cute.interface")
    interface._flash_attn_fwd, interface._flash_attn_bwd = attention, attention_backward
    tirx_deepgemm.install(_module("deep_gemm"), _module("deep_gemm.utils.math"))
    if name in OWN_REFERENCE:
        setattr(module, *OWN_REFERENCE[name])
