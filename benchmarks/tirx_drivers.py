"""Runs of kernels of tirx-kernels whose own tests need a CUDA library: inputs by the package, launch, own reference.

A driver takes the kernel's module and its configuration, draws inputs with the package's own ``prepare_data``, builds the
kernel with ``get_kernel``, launches it, and compares with a few lines of PyTorch here. It returns what it compared with, or
None if it only ran the kernel. Raises AssertionError if the results differ.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from tirx_references import nvfp4

Driver = Callable[[Any, dict[str, Any]], "str | None"]


def close(actual: Any, expected: Any, tolerance: float, what: str) -> None:
    """Largest difference relative to the largest expected magnitude.

    Raises: AssertionError beyond ``tolerance``, and for values that are not finite.
    """
    actual, expected = actual.float(), expected.float()
    assert bool(torch.isfinite(actual).all()), f"{what}: a value is not finite"
    scale = max(float(expected.abs().max()), 1e-30)
    worst = float((actual - expected).abs().max()) / scale
    assert worst <= tolerance, (
        f"{what}: largest difference {worst:.3g} of the largest magnitude, allowed {tolerance:g}"
    )


def _launch(module: Any, config: dict[str, Any], data: Any) -> Any:
    from tirx_kernels.runner import compile_kernel

    outputs = module.make_outputs(data)
    compile_kernel(module.get_kernel(**config))(*module.tirx_args(data, outputs))
    return outputs


# --------------------------------------------------------------------------------------------------------- MSA


def _stored_columns(width: int) -> Any:
    """Where the float32 partial outputs keep column c: inside 16 columns, pairs (p, p + 4) lie side by side."""
    c = torch.arange(width)
    pair = c % 16 // 2
    return c // 16 * 16 + pair % 4 * 4 + pair // 4 * 2 + c % 2


def msa_schedule(module: Any, config: dict[str, Any]) -> str:
    data = module.prepare_data(**config)
    module.assert_schedule_matches(data, _launch(module, config, data))
    return "the work items that the package's test computes"


def msa_split(module: Any, config: dict[str, Any]) -> str:
    data = module.prepare_data(**config)
    outputs = _launch(module, config, data)
    module.assert_split_metadata(data, outputs)
    assert torch.equal(outputs["split_counts"].long(), data["degrees"].long()), "split counts"
    return "the contract that the package's test checks, and the degrees"


def msa_combine(module: Any, config: dict[str, Any]) -> str:
    """Partial results weighted by exp(log-sum-exp)."""
    data = module.prepare_data(**config)
    outputs = _launch(module, config, data)
    live = data["live"]
    lse = torch.where(live, data["lse_partial"], -math.inf).double()
    total = lse.logsumexp(0)
    weight = torch.exp(lse - total)[..., None].nan_to_num(0)
    partial = data["o_partial"].double()[..., _stored_columns(data["o_partial"].shape[-1])]
    value = (weight * torch.where(live[..., None], partial, 0)).sum(0)
    some = module.written_row_mask(data) & torch.isfinite(total)
    close(outputs["o_out"][some], value[some], 1e-2, "output")
    close(outputs["lse_out"][some], total[some], 1e-5, "log-sum-exp")
    return "float64 PyTorch"


def msa_attention(module: Any, config: dict[str, Any]) -> str:
    """Every edge (query, block of keys): softmax over the block alone, and its log-sum-exp."""
    data = module.prepare_data(**config)
    # The package leaves the block's number within its sequence zero in the work items; the producer kernel writes it.
    number = [i for length in data["seqlens_k"] for i in range(-(-int(length) // data["blk_kv"]))]
    work = data["scheduler_metadata"]
    work[:, 5] = torch.tensor(number, dtype=work.dtype)[work[:, 1].long()]
    outputs = _launch(module, config, data)
    q = data["q"].float()
    k, v = data["k_dequantized"].float(), data["v_dequantized"].float()
    block, group = data["blk_kv"], data["qhead_per_kv"]
    mask = torch.zeros_like(outputs["lse_partial"], dtype=torch.bool)
    o, lse = torch.zeros(outputs["o_partial"].shape), torch.zeros(outputs["lse_partial"].shape)
    rows = [
        (batch, first)
        for batch, length in enumerate(data["seqlens_k"])
        for first in range(0, int(length), block)
    ]
    for head in range(data["head_kv"]):
        ends = data["k2q_row_ptr"][head].tolist()
        for row, (batch, first) in enumerate(rows):
            q0, k0 = int(data["cu_seqlens_q"][batch]), int(data["cu_seqlens_k"][batch])
            n_q, n_k = int(data["seqlens_q"][batch]), int(data["seqlens_k"][batch])
            last = min(first + block, n_k)
            keys, values = k[k0 + first : k0 + last, head], v[k0 + first : k0 + last, head]
            for edge in data["k2q_qsplit_indices"][head, ends[row] : ends[row + 1]].tolist():
                at, slot = edge & 0xFFFFFF, edge >> 24 & 0xFF
                heads = slice(head * group, (head + 1) * group)
                scores = q[q0 + at, heads] @ keys.T * data["softmax_scale"]
                if data["causal"]:
                    seen = torch.arange(first, last) <= at + n_k - n_q
                    scores = scores.masked_fill(~seen, -math.inf)
                o[slot, q0 + at, heads] = torch.softmax(scores, -1) @ values
                lse[slot, q0 + at, heads] = scores.logsumexp(-1)
                mask[slot, q0 + at, heads] = True
    assert torch.equal(mask, module_mask(module, data)), "slots"
    mask &= torch.isfinite(lse)
    close(outputs["lse_partial"][mask], lse[mask], 1e-2, "log-sum-exp")
    close(outputs["o_partial"][..., _stored_columns(o.shape[-1])][mask], o[mask], 2e-2, "partial output")
    return "float32 PyTorch"


def module_mask(module: Any, data: Any) -> Any:
    from tirx_kernels.ported.msa.sparse_atten_fwd import live_partial_mask

    return live_partial_mask(data)


# --------------------------------------------------------------------------------------------------------- FlashMLA


def flashmla_decode(module: Any, config: dict[str, Any]) -> str:
    """V32 pages: 512 e4m3 values with four float32 scales, then 64 bfloat16 values of the rotary part."""
    case = module.prepare_data(**config)
    cfg = case["config"]
    executables = module._compile_decode_kernels(**config)
    case["out"].fill_(math.nan)
    case["lse"].fill_(math.nan)
    module._launch_tirx(case, executables)
    raw = case["kv_storage"].view(-1)
    assert cfg.normalized_model_type is module.ModelType.V32
    pages, page = case["kv"].shape[0], case["kv"].shape[1]
    rows = raw.as_strided((pages, page, 656), (case["kv"].stride(0), 656, 1)).reshape(-1, 656).contiguous()
    nope = rows[:, :512].view(torch.float8_e4m3fn).float() * rows[:, 512:528].contiguous().view(
        torch.float32
    ).repeat_interleave(128, 1)
    keys = torch.cat(
        [nope.to(torch.bfloat16).float(), rows[:, 528:].contiguous().view(torch.bfloat16).float()], 1
    )
    for b in range(cfg.b):
        for s in range(cfg.s_q):
            index = case["indices"][b, s]
            mine = keys[index[index >= 0].long()]
            scores = case["q"][b, s].float() @ mine.T * cfg.d_qk**-0.5
            lse = scores.logsumexp(-1)
            value = torch.softmax(scores, -1) @ mine[:, :512]
            if cfg.have_attn_sink:
                value = value * torch.sigmoid(lse - case["attn_sink"])[:, None]
            close(case["out"][b, s], value, 2e-2, "output")
            close(
                case["lse"][b, s] if case["lse"].shape[1] == cfg.s_q else case["lse"][b, :, s],
                lse,
                1e-3,
                "log-sum-exp",
            )
    return "float32 PyTorch"


# --------------------------------------------------------------------------------------------------------- FlashInfer


def stable_sort(module: Any, config: dict[str, Any]) -> str:
    from tirx_kernels.runner import compile_kernel

    cfg = module._normalize_config(config)
    data = module.prepare_data(**cfg)
    got = module.clone_inputs(data)
    compile_kernel(module.get_kernel(**cfg))(*module.build_tirx_args(cfg, data, got))
    values, order = torch.sort(data["values"].float(), dim=-1, descending=True, stable=True)
    assert torch.equal(got["values"].float(), values), "values"
    assert torch.equal(got["indices"].long(), data["indices"].long().gather(-1, order)), "indices"
    return "torch.sort"


def rmsnorm_fp4(module: Any, config: dict[str, Any]) -> str:
    """The package checks the 4-bit values and their scales against its formula in PyTorch."""
    data = module._prepare_tensors(config)
    output = module._prepare_output(config, initialize=True)
    executable = module._compiled_test_specialization(
        str(config["input_dtype"]), int(config["H"]), int(config["block_size"]), str(config["scale_format"]),
        bool(config["swizzled"]), bool(config["enable_pdl"]),
    )  # fmt: skip
    module._launch_tirx(executable, data, output, config)
    module._assert_math(output, data, config)
    return "PyTorch, by the package"


def add_rmsnorm_fp4(module: Any, config: dict[str, Any]) -> str:
    data = module._prepare_tensors(config)
    snapshot = module._snapshot_inputs(data)
    output = module._prepare_output(config)
    executable = module._compiled_test_specialization(
        str(config["input_dtype"]), int(config["H"]), int(config["block_size"]), str(config["scale_format"]),
        bool(config["swizzled"]), bool(config["output_both_sf_layouts"]), bool(config["enable_pdl"]), bool(config["output_norm"]),
    )  # fmt: skip
    module._launch_tirx(executable, data, output, config)
    module._assert_inputs_and_residual(data, snapshot, config, name="emulator")
    module._assert_math(output, data, snapshot, config)
    return "PyTorch, by the package"


def silu_experts(module: Any, config: dict[str, Any]) -> str:
    """silu(left half) * right half of the first rows of every expert, quantised in blocks of 16."""
    from tirx_kernels.runner import compile_kernel

    a, mask, global_scale = module.prepare_data(**config)
    shape = config["dtype"], config["n_experts"], config["m"], config["k"]
    out, scales = module._alloc_outputs(*shape)
    module._run_launch(
        compile_kernel(module.get_kernel(**config)), a, global_scale, out, scales, mask, *shape[1:]
    )
    half = a.shape[-1] // 2
    for expert in range(config["n_experts"]):
        rows = int(mask[expert])
        x = a.view(config["n_experts"], config["m"], -1)[expert, :rows].float()
        gated = (torch.nn.functional.silu(x[:, :half]) * x[:, half:]).to(a.dtype)
        codes, _scale = nvfp4(gated, global_scale.reshape(-1)[expert])
        same = (
            (out.view(config["n_experts"], config["m"], -1)[expert, :rows].view(torch.uint8) == codes)
            .float()
            .mean()
        )
        assert float(same) > 0.99, f"4-bit values of expert {expert}: {float(same):.3f} equal"
    return "PyTorch"


# --------------------------------------------------------------------------------------------------------- DeepGEMM


def tf32_prenorm(module: Any, config: dict[str, Any]) -> str:
    """A (bfloat16) times B (float32, rounded to tf32 by the tensor map), and the sum of squares of A's rows."""
    data = module.prepare_data(**config)
    d, squares = module._final_outputs(*module._launch_tirx_hc(data), data["config"])
    a = data["a"].float()
    b = (data["b"].view(torch.int32) + 0x1000 & ~0x1FFF).view(torch.float32)
    close(d, a @ b.T, 1e-5, "product")
    close(squares, a.square().sum(-1), 1e-5, "sum of squares")
    return "float32 PyTorch"


# --------------------------------------------------------------------------------------------------------- cuDNN


def bsa_forward(module: Any, config: dict[str, Any]) -> str:
    """Blocks of 128 keys; the attention over the listed blocks, by the package and by PyTorch."""
    from tirx_kernels.runner import compile_kernel

    data = module.prepare_data(**config)
    module._tirx_launch(compile_kernel(module.get_kernel(**config)), data)()
    out, lse = module._oracle(data)
    finite = torch.isfinite(lse)
    close(data["tirx"]["out"], out, 2e-2, "output")
    if config["return_lse"]:
        assert torch.equal(torch.isfinite(data["tirx"]["lse"]), finite), "log-sum-exp of rows without keys"
        close(data["tirx"]["lse"][finite], lse[finite], 2e-3, "log-sum-exp")
    return "float32 PyTorch, by the package"


def bsa_forward_64(module: Any, config: dict[str, Any]) -> str:
    """Every 64 queries attend to their listed blocks of 64 keys."""
    from tirx_kernels.runner import compile_kernel

    data = module.prepare_data(**config)
    module._data.tirx_launch([compile_kernel(f) for f in module.get_kernel(**config)], data)()
    inputs, out, lse = data["inputs"], data["tirx"]["out"], data["tirx"]["lse"]
    group = config["num_q_heads"] // config["num_kv_heads"]
    for batch in range(config["batch"]):
        for head in range(config["num_q_heads"]):
            for block in range(inputs["block_index"].shape[2]):
                count = int(inputs["block_nums"][batch, head, block])
                keys = [
                    torch.arange(
                        i * 64, min(i * 64 + int(inputs["block_sizes"].reshape(-1)[i]), config["seqlen_kv"])
                    )
                    for i in inputs["block_index"][batch, head, block, :count].tolist()
                ]
                at = torch.cat(keys)
                rows = slice(block * 64, min(block * 64 + 64, config["seqlen_q"]))
                k, v = (inputs[x][batch, head // group, at].float() for x in ("k", "v"))
                scores = inputs["q"][batch, head, rows].float() @ k.T * inputs["softmax_scale"]
                close(out[batch, head, rows], torch.softmax(scores, -1) @ v, 2e-2, "output")
                close(lse[batch, head, rows], scores.logsumexp(-1), 2e-3, "log-sum-exp")
    return "float32 PyTorch"


def swiglu_gemm(module: Any, config: dict[str, Any]) -> str:
    """alpha A B^T, and of every 64 of its columns the first 32 times silu of the other 32."""
    from tirx_kernels.runner import compile_kernel

    data = module.prepare_data(**config)
    module._tirx_launch(compile_kernel(module.get_kernel(**config)), data, config["alpha"])()
    a, b = (data[x]["source"].float() for x in ("a", "b"))
    product = config["alpha"] * torch.einsum("mkl,nkl->mnl", a, b)
    pairs = product.unflatten(1, (-1, 2, 32))
    gated = (pairs[:, :, 0] * torch.nn.functional.silu(pairs[:, :, 1])).flatten(1, 2)
    close(data["tirx_ab12"]["source"], product, 1e-2, "product")
    close(data["tirx_c"]["source"], gated, 1e-2, "gated product")
    return "float32 PyTorch"


def bsa_combine(module: Any, config: dict[str, Any]) -> str:
    from tirx_kernels.runner import compile_kernel

    data = module.prepare_data(**config)
    module._tirx_launch(compile_kernel(module.get_kernel(**config)), data)()
    out, lse = module._oracle(data)
    close(data["tirx"]["out"], out, 1e-2, "output")
    finite = torch.isfinite(lse)
    close(data["tirx"]["lse"][finite], lse[finite], 1e-5, "log-sum-exp")
    return "float32 PyTorch, by the package"


def with_data_oracle(module: Any, config: dict[str, Any]) -> str:
    """The package's own data module launches, and compares with an oracle in PyTorch."""
    from tirx_kernels.runner import compile_kernel

    data = module.prepare_data(**config)
    module._data.tirx_launch([compile_kernel(f) for f in module.get_kernel(**config)], data)()
    module._data.validate_outputs(data, sources=("tirx",), with_oracle=True)
    return "float32 PyTorch, by the package"


def compressor(module: Any, config: dict[str, Any]) -> str:
    """A softmax over the tokens of a window, per channel, weighs the window's values."""
    from tirx_kernels.runner import compile_kernel

    data = module.prepare_data(**config)
    executable = compile_kernel(module.get_kernel(**config))
    module._launch(executable, data)
    ratio, width = (
        data["ape"].numel() // (config["coff"] * config["head_dim"]),
        config["coff"] * config["head_dim"],
    )
    kv, score = (data[x].view(-1, width).float() for x in ("kv", "score"))
    ape, dim, at, first = data["ape"].view(ratio, width), config["head_dim"], 0, 0
    actual = data["out"].view(-1, dim)
    for length in config["seq_lens"]:
        for block in range(length // ratio):
            rows = slice(first + block * ratio, first + (block + 1) * ratio)
            scores, values = score[rows] + ape, kv[rows]
            if config["coff"] == 2:  # the first half of the channels looks one window back
                before = slice(first + (block - 1) * ratio, first + block * ratio)
                past = (score[before] + ape)[:, :dim] if block else torch.full((ratio, dim), -math.inf)
                old = kv[before][:, :dim] if block else torch.zeros(ratio, dim)
                scores, values = torch.cat([past, scores[:, dim:]]), torch.cat([old, values[:, dim:]])
            close(actual[at], (torch.softmax(scores, 0) * values).sum(0), 1e-2, "output")
            at += 1
        first += length
    return "float32 PyTorch"


DRIVERS: dict[str, Driver] = {
    "cudnn_sm100_bsa_forward_blk64": bsa_forward_64,
    "cudnn_sm100_dense_gemm_persistent_swiglu": swiglu_gemm,
    "flashinfer_rmsnorm_fp4quant": rmsnorm_fp4,
    "flashinfer_add_rmsnorm_fp4quant": add_rmsnorm_fp4,
    "silu_and_mul_nvfp4_experts_quantize": silu_experts,
    "deepgemm_sm100_tf32_hc_prenorm_gemm": tf32_prenorm,
    "cudnn_sm100_bsa_forward_blk128": bsa_forward,
    "cudnn_sm100_bsa_forward_combine_blk64": bsa_combine,
    "cudnn_sm100_moe_blockscaled_grouped_gemm_dglu_dbias": with_data_oracle,
    "cudnn_sm100_csa_compressor_fwd": compressor,
    "cudnn_sm100_bsa_backward_blk64": with_data_oracle,
    "cudnn_sm100_bsa_backward_blk128": with_data_oracle,
    "msa_sparse_prepare_flat_schedule_sm100": msa_schedule,
    "msa_sparse_prepare_fwd_split_atomic_sm100": msa_split,
    "msa_sparse_atten_fwd_combine_sm100": msa_combine,
    "msa_sparse_atten_fwd_sm100": msa_attention,
    "msa_sparse_atten_fwd_nvfp4_kv_sm100": msa_attention,
    "sparse_flashmla_decode_head64": flashmla_decode,
    "stable_sort_topk_by_value": stable_sort,
}
