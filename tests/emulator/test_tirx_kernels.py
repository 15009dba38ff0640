"""Kernels nobody here wrote: some of the PyPI package tirx-kernels, unmodified, against PyTorch references.

All of them: ``python benchmarks/tirx_kernels.py`` (docs/tirx_kernels.md).
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
FAST = (
    "act_and_mul", "cudnn_sm100_bsa_forward_blk128", "deepgemm_sm100_fp8_bmm", "deepgemm_sm100_fp8_paged_mqa_logits", "flash_attention4", "flashinfer_fused_add_rmsnorm", "flashinfer_fused_add_rmsnorm_quant", "flashinfer_layernorm",
    "flashinfer_rmsnorm", "flashinfer_rmsnorm_quant", "fp16_bf16_gemm", "merge_state", "msa_sparse_prepare_flat_schedule_sm100",
    "msa_sparse_atten_fwd_combine_sm100", "mxfp4_quantize", "mxfp8_quantize", "nvfp4_quantize",
    "rmsnorm", "stable_sort_topk_by_value",
)  # fmt: skip

pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec("tirx_kernels") is None,
        reason="needs the package tirx-kernels (pip install --no-deps tirx-kernels==0.1.2.post1)",
    ),
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs PyTorch for the references"),
]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """One run of the benchmark over the fast kernels, in a process of its own (it imports PyTorch)."""
    folder = tmp_path_factory.mktemp("tirx_kernels")
    out = folder / "results.json"
    command = [
        sys.executable,
        str(ROOT / "benchmarks" / "tirx_kernels.py"),
        *FAST,
        "--json",
        str(out),
        "--scratch",
        str(folder / "each"),
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=600, env={**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return {r["name"]: r for r in json.loads(out.read_text())}


@pytest.mark.parametrize("name", FAST)
def test_right_and_without_finding(results: dict[str, dict[str, Any]], name: str) -> None:
    result = results[name]
    assert result["status"] == "correct", result["why"]
    assert result["launches"] >= 1
    serious = {k: v for k, v in result["findings"].items() if not k.startswith("lint:")}
    assert not serious, result["examples"]
