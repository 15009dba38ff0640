"""The assembly process: CUDA source of a PrimFunc, and what ptxas says about it. No Python of the submission runs here.

Standard input brings {"stage": "kernel", "nvcc": path, "options": [...], "memory_mib": n, "cpu_seconds": s} + graph
JSON, and later {"stage": "compile"}. The channel carries

    {"stage": "generated", "compiler": ..., "options": [...]} + CUDA source      {"stage": "refused", "message": ...}
    {"stage": "compiled", "version": ..., "used": {...}}
    {"stage": "compiled", "version": ..., "error": first error, "unknown_arch": bool}

The source may contain text of the learner's, so nvcc reaches the system's files and its own folder, and no others.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, BinaryIO

from autograder.runner.frames import encode, read_frame

_USED = {
    "registers": r"Used (\d+) registers",
    "barriers": r"used (\d+) barriers",
    "static_smem_bytes": r"(\d+) bytes smem",
}
_SPILLS = r"(\d+) bytes spill (?:stores|loads)"


def main(channel: int) -> None:
    os.set_inheritable(channel, False)
    from autograder.runner import limits
    from emulator.tvm_import import import_tvm

    limits.die_with_parent()
    tvm = import_tvm()
    sys.setrecursionlimit(10_000)
    frame = read_frame(sys.stdin.buffer)
    if frame is None:
        return
    nvcc, options = Path(frame.header["nvcc"]), list(frame.header["options"])
    limits.set_resource_limits(frame.header["memory_mib"], frame.header["cpu_seconds"])
    with os.fdopen(channel, "wb") as out:
        try:
            source = _source(tvm, frame.raw.decode(), options)
        except Exception as error:  # whatever TVM's code generator raises
            return _answer(
                out, {"stage": "refused", "message": f"TVM generates no CUDA source: {_last(error)}"}
            )
        compiler = f"{nvcc.resolve()} {nvcc.stat().st_mtime_ns}"
        header = {"stage": "generated", "compiler": compiler, "options": options}
        _answer(out, header, source.encode())
        if read_frame(sys.stdin.buffer) is not None:
            _confine(nvcc)
            _answer(out, {"stage": "compiled", **_compile(nvcc, options, source)})


def _source(tvm: Any, graph: str, options: list[str]) -> str:
    from autograder.runner.ir_json import load

    arch = next(option for option in options if option.startswith("-arch=")).removeprefix("-arch=")
    target = tvm.target.Target({"kind": "cuda", "arch": arch})
    with target:
        module = tvm.compile(tvm.IRModule({"main": load(graph)}), target=target, tir_pipeline="tirx")
    return str(module.mod.imports[0].inspect_source())


def _confine(nvcc: Path) -> None:
    from autograder.runner import limits

    toolkits = {Path("/usr/local/cuda").resolve(), *nvcc.resolve().parents[1:2], *nvcc.parents[1:2]}
    readable = [*limits.system_folders(), *toolkits, Path("/etc/alternatives"), Path("/proc/self")]
    limits.confine_files(readable, [Path.cwd(), Path("/dev/null")])


def _compile(nvcc: Path, options: list[str], source: str) -> dict[str, Any]:
    """Numbers of the kernel, or nvcc's first error."""
    Path("kernel.cu").write_text(source, encoding="utf-8")
    version = re.search(r"release (\d+\.\d+)", _run([str(nvcc), "--version"])[1])
    done, printed = _run([str(nvcc), *options, "-o", "kernel.cubin", "kernel.cu"])
    found = {"version": version[1] if version else "of an unknown version"}
    if done != 0:
        lines = [line.strip() for line in printed.splitlines() if line.strip()]
        errors = [line for line in lines if re.search(r"\b(error|fatal)\b", line, re.IGNORECASE)]
        error = (errors or lines[-1:] or [f"exit status {done}"])[0][:500]
        unknown = "gpu-architecture" in error or "Unsupported gpu architecture" in error
        return {**found, "error": error, "unknown_arch": unknown}
    return {**found, "used": read_ptxas(printed)}


def read_ptxas(printed: str) -> dict[str, int]:
    """Registers per thread, spilled bytes per thread (stores and loads), static SMEM and barriers per CTA.

    Of several kernels, the most of any; what ptxas does not mention is 0.
    """
    used = {
        name: max((int(n) for n in re.findall(pattern, printed)), default=0)
        for name, pattern in _USED.items()
    }
    spilled = [
        sum(int(n) for n in re.findall(_SPILLS, line)) for line in printed.splitlines() if "spill" in line
    ]
    return used | {"spill_bytes": max(spilled, default=0)}


def _run(command: list[str]) -> tuple[int, str]:
    done = subprocess.run(command, capture_output=True, text=True, errors="replace")
    return done.returncode, done.stdout + done.stderr


def _last(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines or [type(error).__name__])[-1][:300]


def _answer(out: BinaryIO, header: dict[str, Any], raw: bytes = b"") -> None:
    out.write(encode(header, raw))
    out.flush()
