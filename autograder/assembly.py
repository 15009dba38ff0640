"""What nvcc makes of a kernel: registers, spills, static SMEM and barriers of the sm_100a code, where there is an nvcc.

The CUDA source is the one that TVM generates from the submission's PrimFunc. It is compiled in a process of its own and
never run. Results are kept by the digest of source, compiler and options, since a compilation costs seconds.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from autograder.course import MEASURES
from autograder.files import write_atomically
from autograder.runner.process import Child, ChildEnded, Pump

OPTIONS = ("-cubin", "-O3", "-std=c++17", "-Xptxas", "-v")
MAX_SOURCE_BYTES = 16 << 20
NO_NVCC = "there is no nvcc on this machine"


@dataclass(frozen=True)
class Assembly:
    """One compilation.

    used: numbers per thread (registers) and per CTA, by name; empty when there are none.
    compiler: nvcc's version, such as `13.0`.
    reason: why nothing was compiled; empty when something was.
    error: nvcc's first error when it rejects the source.
    """

    used: dict[str, int] = field(default_factory=dict)
    compiler: str = ""
    reason: str = ""
    error: str = ""


def find_nvcc() -> Path | None:
    """nvcc, by CUDA_PATH, the PATH, or where its installer puts it."""
    places = [Path(os.environ["CUDA_PATH"]) / "bin" / "nvcc"] if os.environ.get("CUDA_PATH") else []
    on_path = shutil.which("nvcc")
    places += [Path(on_path)] if on_path else []
    places.append(Path("/usr/local/cuda/bin/nvcc"))
    return next((place for place in places if place.is_file() and os.access(place, os.X_OK)), None)


@dataclass
class Assembler:
    """Compiles one kernel beside the emulator. `cache`: folder that keeps results, None to keep none."""

    pump: Pump
    nvcc: Path
    cache: Path | None = None
    child: Child | None = None

    def start(self) -> None:
        """Start the process; it loads while the builder runs."""
        self.child = self.pump.start(
            "assembly", "assembly_child", self.pump.private_folder("assembly"), max_raw=MAX_SOURCE_BYTES
        )

    def send(self, graph: bytes, arch: str, memory_mib: int, seconds: float) -> None:
        """Ask for a kernel's code. `seconds`: of processor time for TVM and nvcc together."""
        assert self.child is not None
        request = {
            "stage": "kernel",
            "nvcc": str(self.nvcc),
            "options": [f"-arch={arch}", *OPTIONS],
            "memory_mib": memory_mib,
            "cpu_seconds": seconds,
        }
        self.pump.send(self.child, request, graph)

    def result(self, seconds: float) -> Assembly:
        """The numbers, from the cache where they are known. Never raises: what fails is a reason."""
        assert self.child is not None
        try:
            generated = self.pump.receive(self.child, seconds)
            if generated.stage != "generated":
                return Assembly(reason=str(generated.header.get("message", "TVM generates no CUDA source")))
            compiler = str(generated.header["compiler"])
            key = hashlib.sha256(
                "\0".join([compiler, *generated.header["options"]]).encode() + b"\0" + generated.raw
            ).hexdigest()
            known = self._known(key)
            if known is not None:
                self.pump.kill(self.child)
                return known
            self.pump.send(self.child, {"stage": "compile"})
            answer = self.pump.receive(self.child, seconds).header
        except ChildEnded as ended:
            return Assembly(reason=f"nvcc did not answer ({ended.end})")
        version = str(answer.get("version", ""))
        if "error" in answer:
            known = Assembly(compiler=version, error=str(answer["error"]))
        else:
            used = {name: int(answer["used"][name]) for name in MEASURES}
            known = Assembly(used=used, compiler=version)
        if not answer.get("unknown_arch"):
            self._keep(key, known)
            return known
        return Assembly(reason=f"nvcc {version} does not know the architecture: {answer['error']}")

    def _known(self, key: str) -> Assembly | None:
        if self.cache is None:
            return None
        with suppress(OSError, ValueError, TypeError):
            found = Assembly(**json.loads((self.cache / f"{key}.json").read_bytes()))
            if not found.used or set(found.used) == set(MEASURES):
                return found
        return None

    def _keep(self, key: str, assembly: Assembly) -> None:
        if self.cache is not None:
            with suppress(OSError):
                self.cache.mkdir(parents=True, exist_ok=True)
                write_atomically(self.cache / f"{key}.json", json.dumps(asdict(assembly)).encode())
