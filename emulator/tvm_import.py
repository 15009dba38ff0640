"""Import TVM without PyTorch.

tvm_ffi imports torch when it finds it, which costs two seconds that neither building nor emulating a kernel needs.
"""

from __future__ import annotations

import sys
from typing import Any


def import_tvm() -> Any:
    """The tvm module. A later `import torch` by anyone works as usual."""
    blocked = "torch" not in sys.modules and "tvm" not in sys.modules
    if blocked:
        sys.modules["torch"] = None  # type: ignore[assignment]
    try:
        import tvm
        import tvm.script
        import tvm.tirx
    finally:
        if blocked:
            del sys.modules["torch"]
    return tvm
