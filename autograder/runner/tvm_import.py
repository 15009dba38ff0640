"""Import TVM without PyTorch.

tvm_ffi imports torch when it finds it, which costs two seconds that neither building nor emulating a kernel
needs.
"""

from __future__ import annotations

import sys
from typing import Any


def import_tvm() -> Any:
    """The tvm module. A later `import torch` by anyone works as usual."""
    missing = object()
    before: Any = sys.modules.get("torch", missing)
    if before is missing:
        sys.modules["torch"] = None  # type: ignore[assignment]
    try:
        import tvm
        import tvm.script
    finally:
        if before is missing:
            del sys.modules["torch"]
    return tvm
