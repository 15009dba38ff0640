"""Small problems and PyTorch references for the kernels of tirx-kernels (see :mod:`tirx_kernels` in this directory).

The tests of that package compare with libraries that need a GPU. Each function here computes the same thing in PyTorch and
stands in the place from where the test takes it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

SMALL: dict[str, dict[str, Any]] = {
    "rmsnorm": {"hidden_size": 4096, "batch_size": 4},
    "flash_attention4": {"batch_size": 1, "seq_len": 512, "num_qo_heads": 4, "num_kv_heads": 2, "head_dim": 128, "is_causal": True},
}
NUM_SMS: dict[str, int] = {}

INSTALLERS: dict[str, Callable[[Any], None]] = {}


def install(name: str, module: Any) -> None:
    """Put the references of one kernel in place."""
    if name in INSTALLERS:
        INSTALLERS[name](module)
