"""The GPU's part of a grade: compile beside the emulator, launch every case, measure what is right.

The processes here hold a GPU and no Python of the submission. A kernel is launched only after the emulator's process
has accepted it. A launch that does not end is killed with its process; a fault costs the rest of that kernel's cases.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from autograder.checks import CaseRun
from autograder.course import Case, Exercise, Limits, Timing
from autograder.diagnosis import Failure, Stopped, clean, graders, machines, one_line, with_last_line
from autograder.gpu import Gpu
from autograder.report.model import Fault, Measured
from autograder.runner.process import Child, ChildEnded, End, Pump
from autograder.speed import judge

BACKEND = "autograder.runner.backends.cuda"
MAX_OUTPUT_BYTES = 1 << 30
MORE_PAIRS = 4  # times as many, where the first measurement was inconclusive


@dataclass
class GpuSide:
    """The processes of one grade that use the GPU: one per kernel of the exercise, and one that measures."""

    pump: Pump
    gpu: Gpu
    exercise: Exercise
    limits: Limits
    backend: str = BACKEND
    roots: tuple[Path, ...] = ()
    children: list[Child] = field(default_factory=list)
    timer: Child | None = None
    stopped: dict[int, str] = field(default_factory=dict)  # kernel -> why its remaining cases do not run
    versions: dict[str, str] = field(default_factory=dict)

    def start(self, measure: bool) -> None:
        """Start the processes; they load while the builder runs."""
        for number in range(len(self.exercise.kernels)):
            self.children.append(self._child(f"gpu-{number}", "cuda_child"))
        if measure and self.exercise.timing:
            self.timer = self._child("timer", "timing_child")

    def _child(self, name: str, module: str) -> Child:
        folder = self.pump.private_folder(name)
        return self.pump.start(
            name, module, folder, roots=self.roots, max_raw=MAX_OUTPUT_BYTES, gpu=self.gpu.visible
        )

    def compile(self, graphs: list[bytes | None]) -> None:
        """Send each kernel to its process; the compiler runs beside the emulator."""
        for number, (child, graph) in enumerate(zip(self.children, graphs, strict=True)):
            if graph is None:
                self.stopped[number] = "the kernel does not build"
                self.pump.kill(child)
                continue
            self.pump.send(child, {"stage": "kernel", "backend": self.backend, "arch": self.gpu.arch}, graph)

    def await_compiled(self) -> None:
        """Raises Stopped when a kernel does not compile for the GPU, which is not the learner's fault: the emulator has
        lowered the same program."""
        for number, child in enumerate(self.children):
            if number in self.stopped:
                continue
            self._receive(child, self.limits.start_seconds, "starting the GPU's process")
            answer = self._receive(child, self.limits.start_seconds, "compiling for the GPU")
            if answer.stage == "refused":
                message = one_line(str(answer.header.get("message")))[:300]
                fix = "`autograde doctor` looks at the compiler; --device emulated grades without it"
                raise Stopped(graders(f"the CUDA compiler rejects the kernel: {message}", fix))
            if answer.stage == "fault":
                raise Stopped(self._machine_fault(answer.header))
            self.versions |= {name: clean(text) for name, text in answer.header["versions"].items()}

    def launch(self, number: int, case: Case, run: CaseRun, inputs: bytes) -> bytes | None:
        """Run one case; the raw output, or None. What happened stands in `run.gpu`.

        Raises:
            Stopped: the machine or the grader failed.
        """
        if number in self.stopped:
            run.gpu = {"status": "not run", "message": self.stopped[number]}
            return None
        child = self.children[number]
        tensors = self.exercise.kernels[number].tensor_specs()
        self.pump.send(child, {"stage": "run", "case": case.id, "tensors": tensors}, inputs)
        started = time.perf_counter()
        try:
            answer = self.pump.receive(child, self.limits.gpu_seconds)
        except ChildEnded as ended:
            if ended.end is not End.TIMEOUT:
                message = with_last_line(f"the GPU's process ended (exit status {ended.status})", child)
                raise Stopped(machines(message, child.tail)) from None
            run.gpu = {"status": "hang", "seconds": self.limits.gpu_seconds}
            self.stopped[number] = "the kernel hung in an earlier case"
            return None
        seen = answer.header
        if answer.stage == "fault":
            if seen["kind"] == "machine":
                raise Stopped(self._machine_fault(seen))
            run.gpu = {"status": "fault", "kind": seen["kind"], "message": one_line(seen["message"])[:300]}
            if seen["kind"] == "hang":
                run.gpu["status"] = "hang"
            if seen["sticky"]:
                self.stopped[number] = f"the GPU stopped the kernel in an earlier case ({seen['kind']})"
            return None
        run.gpu = {"status": "ran", "seconds": time.perf_counter() - started}
        run.changed_inputs = list(dict.fromkeys([*run.changed_inputs, *map(str, seen["changed_inputs"])]))
        return answer.raw

    def end(self) -> None:
        """Leave the GPU to the measurement."""
        for child in self.children:
            self.pump.kill(child)

    # Measurement ---------------------------------------------------------------------------------

    def measure(self, timed: list[tuple[Timing, bytes | str]], seed: int) -> list[Measured]:
        """One result per entry: (what to time, its graph, or in words why there is none)."""
        results = []
        for number, (timing, graph) in enumerate(timed):
            kernel = self.exercise.timed(timing)
            answer: dict[str, Any] | str = (
                graph if isinstance(graph, str) else self._samples(kernel, timing, graph, seed + number)
            )
            if isinstance(answer, str):
                fault = Fault.YOUR_CODE if isinstance(graph, str) else Fault.MACHINE
                results.append(unmeasured(kernel, timing, self.gpu, answer, fault))
            else:
                results.append(self._judge(answer, kernel, timing, graph, seed + number))
        return results

    def _judge(
        self, samples: dict[str, Any], kernel: Exercise, timing: Timing, graph: bytes | str, seed: int
    ) -> Measured:
        """The verdict; where the interval holds the tier, one with more pairs decides, if it can."""
        found = judge(samples, timing, kernel, self.gpu.arch or "")
        if found.verdict != "inconclusive" or not found.goals or isinstance(graph, str):
            return found
        more = timing.model_copy(update={"pairs": MORE_PAIRS * timing.pairs})
        again = self._samples(kernel, more, graph, seed + 1000)
        return found if isinstance(again, str) else judge(again, timing, kernel, self.gpu.arch or "")

    def _samples(self, kernel: Exercise, timing: Timing, graph: bytes, seed: int) -> dict[str, Any] | str:
        """The raw samples, or why there are none. A measurement that fails spoils no grade."""
        if self.timer is None:
            return "the process that measures is not there"
        plan = {
            "tensors": kernel.tensor_specs(),
            "reference": timing.reference,
            "oracle": kernel.oracle,
            "terms": kernel.size(kernel.tolerance.terms),
            "accumulate_eps": kernel.tolerance.eps,
            "options": kernel.options,
        }
        request: dict[str, Any] = {
            "stage": "time",
            "backend": self.backend,
            "arch": self.gpu.arch,
            "plan": plan,
            "seed": seed % 2**32,
        }
        request |= {"pairs": timing.pairs, "seconds": self.limits.timing_seconds / 2}
        self.pump.send(self.timer, request, graph)
        try:
            answer = self.pump.receive(self.timer, self.limits.timing_seconds + self.limits.start_seconds)
            if answer.stage == "ready":
                answer = self.pump.receive(self.timer, self.limits.timing_seconds + self.limits.start_seconds)
        except ChildEnded as ended:
            tail, why = self.timer.tail, str(ended.end)
            self.timer = None
            last = one_line((tail.strip().splitlines() or [""])[-1])[:200]
            return f"the measurement did not end ({why}{': ' + last if last else ''})"
        if answer.stage != "samples":
            if answer.header.get("sticky"):
                self.timer = None
            return f"the kernel could not be measured: {one_line(str(answer.header.get('message')))[:300]}"
        return answer.header

    # Helpers -------------------------------------------------------------------------------------

    def _receive(self, child: Child, seconds: float, doing: str) -> Any:
        try:
            return self.pump.receive(child, seconds)
        except ChildEnded as ended:
            why = (
                f"took more than {seconds:g} s"
                if ended.end is End.TIMEOUT
                else f"failed (exit status {ended.status})"
            )
            raise Stopped(machines(with_last_line(f"{doing} {why}", child), child.tail)) from None

    def _machine_fault(self, seen: dict[str, Any]) -> Failure:
        return machines(f"the GPU does not run the kernel: {one_line(str(seen['message']))[:300]}")


def unmeasured(kernel: Exercise, timing: Timing, gpu: Gpu, message: str, fault: Fault) -> Measured:
    """An entry of `timing` for which there are no samples."""
    return Measured(
        builder=kernel.builder.name,
        params=dict(timing.params),
        reference=timing.reference,
        device=gpu.name,
        verdict="error",
        pairs=0,
        bytes_moved=0,
        fault=fault,
        message=message,
    )


def explain(runs: list[CaseRun], gpu: Gpu, emulated: str) -> list[str]:
    """How the GPU and the emulator compare over all launches, one sentence each."""
    runs = [run for run in runs if run.gpu is not None and run.gpu["status"] != "not run"]
    ran = [run for run in runs if run.same_bytes is not None]
    said = []
    if ran and all(run.same_bytes for run in ran):
        said.append(f"{gpu.name} and {emulated} left the same bytes in all {len(ran)} launches")
    elif ran:
        different = [run.title for run in ran if not run.same_bytes]
        said.append(f"{gpu.name} and {emulated} left different bytes in: {', '.join(different)}")
    elif runs:
        said.append(f"no launch on {gpu.name} came to its end")
    for run in runs:
        if run.emulated is not None and run.correct != (run.emulated["mismatches"] == 0):
            where = ("right", "wrong") if run.correct else ("wrong", "right")
            said.append(f"{run.title}: {where[0]} on {gpu.name}, {where[1]} on {emulated}")
    return said
