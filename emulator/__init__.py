"""A virtual Blackwell GPU: runs the lowered TIRx kernel instruction by instruction on a CPU and finds its bugs.

>>> import emulator
>>> run = emulator.run(prim_func, a, b, d, arch="sm_100a")        # doctest: +SKIP
>>> run.ok, run.findings, run.counters["tcgen05.mma"]              # doctest: +SKIP

The names below are the whole public interface; TVM is imported when the first of them is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from emulator.checks.findings import Finding, SourceLocation
    from emulator.errors import DeviceFault, EmulatorError, LaunchError, LoweringError, UnsupportedInstruction
    from emulator.exploration import Exploration, explore
    from emulator.host import HostTensorMap
    from emulator.kernel import Access, Kernel, Run, compile, run
    from emulator.translate import Operation

_HOME = {
    "Finding": "checks.findings",
    "SourceLocation": "checks.findings",
    "EmulatorError": "errors",
    "DeviceFault": "errors",
    "LaunchError": "errors",
    "LoweringError": "errors",
    "UnsupportedInstruction": "errors",
    "Access": "kernel",
    "HostTensorMap": "host",
    "Kernel": "kernel",
    "Operation": "translate",
    "Run": "kernel",
    "compile": "kernel",
    "run": "kernel",
    "Exploration": "exploration",
    "explore": "exploration",
}
__all__ = [
    "Access", "DeviceFault", "EmulatorError", "Exploration", "Finding", "HostTensorMap", "Kernel", "LaunchError", "LoweringError", "Operation", "Run", "SourceLocation",
    "UnsupportedInstruction", "compile", "explore", "run",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    import importlib

    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'emulator' has no attribute {name!r}")
    module = importlib.import_module(f"emulator.{home}")
    for other, where in _HOME.items():
        if where == home:
            globals()[other] = getattr(module, other)
    return globals()[name]
