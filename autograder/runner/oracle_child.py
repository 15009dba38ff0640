"""The oracle process: makes the inputs, computes the reference with PyTorch, compares outputs. It never sees
code.

Standard input brings {"stage": "plan", "seed": n, "cases": [{"id": ..., "inputs": family, "kernel": i}, ...],
"kernels": [{"oracle": name, "terms": n, "accumulate_eps": x, "options": {...}, "tensors": [...]}, ...]} and later
{"stage": "output", "case": id} + the raw bytes of the outputs. The channel carries
{"stage": "inputs", "case": id} + raw bytes for every case at once, and {"stage": "verdict", "case": id, ...}
for every output.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import Any

from autograder.runner.frames import Frame, encode, first_request, read_frame


def main(channel: int) -> None:
    os.set_inheritable(channel, False)
    from autograder.runner import limits

    limits.die_with_parent()
    plan = first_request(sys.stdin.buffer, _Judge)
    if plan is None:
        return
    with os.fdopen(channel, "wb") as out:
        cases = {}
        for case in plan.header["cases"]:
            kernel = plan.header["kernels"][case["kernel"]]
            cases[case["id"]] = _make_inputs(plan.header["seed"], kernel, case)
            out.write(encode({"stage": "inputs", "case": case["id"]}, cases[case["id"]].launch_bytes))
            out.flush()
        judge = _Judge()
        out.write(encode({"stage": "loaded", "versions": judge.versions}))
        out.flush()
        while (frame := read_frame(sys.stdin.buffer)) is not None:
            out.write(encode({"stage": "verdict", "case": frame.header["case"], **judge(cases, frame)}))
            out.flush()


@dataclass(frozen=True)
class _Case:
    """The kernel's part of the plan, inputs as fp64 arrays (rounded to their dtype), the bytes of the launch."""

    kernel: dict[str, Any]
    inputs: list[Any]
    launch_bytes: bytes


def numpy_dtype(name: str) -> Any:
    """The NumPy dtype of a tensor; bfloat16 comes from ml_dtypes."""
    import numpy as np

    if name == "bfloat16":
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(name)


def _make_inputs(seed: int, kernel: dict[str, Any], case: dict[str, Any]) -> _Case:
    import numpy as np

    from autograder.compare import fill_pattern
    from autograder.inputs import FAMILIES, generator

    tensors = kernel["tensors"]
    shapes = [tuple(t["shape"]) for t in tensors if t["role"] == "input"]
    values = iter(FAMILIES[case["inputs"]](generator(seed, case["id"]), shapes))
    launch, inputs = [], []
    for tensor in tensors:
        dtype = numpy_dtype(tensor["dtype"])
        if tensor["role"] == "input":
            rounded = next(values).astype(dtype)
            inputs.append(rounded.astype(np.float64))
        else:
            rounded = np.full(tensor["shape"], fill_pattern(dtype), dtype)
        launch.append(np.ascontiguousarray(rounded).tobytes())
    return _Case(kernel, inputs, b"".join(launch))


class _Judge:
    """Holds PyTorch; called with one output frame at a time."""

    def __init__(self) -> None:
        import torch

        from autograder import oracles

        oracles.load_all()

        torch.set_num_threads(1)
        self.versions = {"torch": torch.__version__}

    def __call__(self, cases: dict[str, _Case], frame: Frame) -> dict[str, Any]:
        import numpy as np

        from autograder.compare import allowed_interval, compare
        from autograder.k_steps import explain
        from autograder.oracles import MISTAKES, ORACLES, taken

        case = cases[frame.header["case"]]
        kernel, inputs = case.kernel, case.inputs
        (output,) = (t for t in kernel["tensors"] if t["role"] == "output")
        dtype = numpy_dtype(output["dtype"])
        actual = np.frombuffer(frame.raw, dtype).reshape(output["shape"])
        compute, options = ORACLES[kernel["oracle"]], kernel["options"]
        reference = _checked(kernel["oracle"], compute(inputs, **taken(compute, options)), actual.shape)
        interval = allowed_interval(reference, kernel["terms"], kernel["accumulate_eps"], dtype)
        mistakes = MISTAKES.get(kernel["oracle"])
        named = mistakes(inputs, **taken(mistakes, options)) if mistakes else ()
        found = compare(actual, *interval, mistakes=named).to_json()
        if found["mismatches"] and kernel["oracle"] == "gemm_nt":
            wrong = ~((actual >= interval[1]) & (actual <= interval[2]))
            found["k_step"] = explain(inputs[0], inputs[1], actual, reference.exact, wrong)
        return found


def _checked(name: str, reference: Any, shape: tuple[int, ...]) -> Any:
    """The reference as it is.

    Raises:
        ValueError: nothing can be compared with it; that is a mistake of the course.
    """
    import numpy as np

    for what, values in (("exact", reference.exact), ("magnitude", reference.magnitude)):
        if values.dtype != np.float64 or values.shape != shape:
            found = f"{values.dtype} {tuple(values.shape)}"
            raise ValueError(
                f"a mistake of the course: {what} of the oracle '{name}' is {found}, not float64 {shape}"
            )
        if not np.isfinite(values).all():
            raise ValueError(
                f"a mistake of the course: {what} of the oracle '{name}' is not finite everywhere"
            )
    return reference
