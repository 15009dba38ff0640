"""The loop of a measurement and the verdict on its samples, without a GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from autograder import gpu as gpus
from autograder.course import Course, Timing, load_course, parse_course
from autograder.errors import CourseError, MachineError
from autograder.gpu import Gpu, NoGpu, choose, find_gpu
from autograder.report.model import Fault, Measured, ModelledTime
from autograder.roofline import PEAKS, roof
from autograder.runner.backends.cuda import classify
from autograder.runner.measure import KERNEL, WARM_UP_PAIRS, Sample, measure
from autograder.speed import against_the_roof, floor_us, interval, judge, work_left_out

from .conftest import REPOSITORY, course_of

TIERS = {"full": 0.9, "partial": 0.7, "source": "a test"}
TIMING = Timing(params={"M": 64, "N": 64}, reference="copy", tiers={"H200": {"library": TIERS}})  # type: ignore[dict-item]
TIMED = load_course(REPOSITORY).find("2").timed(TIMING)
FACTS = {"device": "X", "l2_bytes": 50, "input_bytes": 1000, "output_bytes": 1000, "peak_bytes_per_s": 1e9}


class Bench:
    """Counts what is asked of it; `wrong_at` is the call whose output is wrong."""

    def __init__(self, wrong_at: int | None = None) -> None:
        self.wrong_at, self.log, self.number = wrong_at, [], -1

    log: list[tuple[str, int]]

    def prepare(self, number: int) -> None:
        self.number = number
        self.log.append(("prepare", number))

    def call(self, which: str) -> Sample:
        self.log.append((which, self.number))
        return Sample(10.0 + self.number if which == KERNEL else 5.0, self.number % 2 == 0)

    def verify(self) -> str:
        self.log.append(("verify", self.number))
        return "bad" if self.number == self.wrong_at else ""

    def clocks(self) -> dict[str, Any]:
        return {"sm_mhz": 1000 + self.number}

    def facts(self) -> dict[str, Any]:
        return dict(FACTS)


def clock(step: float) -> Any:
    time = [0.0]

    def now() -> float:
        time[0] += step
        return time[0]

    return now


def test_every_call_has_fresh_inputs_and_is_verified() -> None:
    bench = Bench()
    samples = measure(bench, 20, seed=1, seconds=100, now=clock(0.1))
    assert len(samples["kernel"]) == len(samples["reference"]) == 20
    assert samples["calls"] == 20 + WARM_UP_PAIRS, "warm-up pairs are no samples"
    assert samples["kernel"][0] == 10.0 + WARM_UP_PAIRS
    for number in range(samples["calls"]):
        seen = [what for what, n in bench.log if n == number]
        assert seen[0] == "prepare" and sorted(seen[1:]) == ["kernel", "reference", "verify"]
        assert seen.index("verify") == seen.index("kernel") + 1, "before the reference can write anything"
    first = [next(w for w, n in bench.log if n == k and w in ("kernel", "reference")) for k in range(28)]
    assert len(set(first)) == 2, "the order within a pair varies"


def test_a_wrong_output_ends_the_measurement() -> None:
    samples = measure(Bench(wrong_at=3), 20, seed=1, seconds=100, now=clock(0.1))
    assert samples["wrong"] == {"3": "bad"} and samples["calls"] == 4
    result = judged(samples)
    assert (result.verdict, result.fault) == ("error", Fault.YOUR_CODE)


def test_time_runs_out() -> None:
    samples = measure(Bench(), 1000, seed=1, seconds=3, now=clock(0.1))
    assert 0 < len(samples["kernel"]) < 40


def judged(samples: dict[str, Any], **tiers: dict[str, Any]) -> Measured:
    """The verdict on an H200 with these tiers; by default those of TIMING."""
    timing = Timing(**TIMING.model_dump() | {"tiers": {"H200": tiers}}) if tiers else TIMING
    return judge(samples, timing, TIMED, "sm_90a")


def made(kernel: Any, reference: Any, **changes: Any) -> dict[str, Any]:
    kernel, reference = (list(np.broadcast_to(x, 60).astype(float)) for x in (kernel, reference))
    whole = {
        "kernel": kernel,
        "reference": reference,
        "covered": [True] * 60,
        "wrong": {},
        "clocks": [],
        "facts": FACTS,
    }
    return whole | changes


NOISE = 1 + 0.01 * np.sin(np.arange(60.0))


def test_the_interval_holds_the_true_ratio() -> None:
    """Coverage over repeated draws: about 95 of 100 intervals hold the ratio that the samples were drawn from."""
    random = np.random.default_rng(3)
    held = 0
    for seed in range(100):
        kernel, reference = (mean * (1 + 0.02 * random.standard_normal(60)) for mean in (100.0, 90.0))
        low, high = interval(kernel, reference, seed)
        held += low <= 0.9 <= high
    assert held >= 88


@pytest.mark.parametrize(
    ("samples", "verdict", "tier", "fault", "words"),
    [
        (made(10.0 * NOISE, 9.9), "fast", "full", None, ""),
        (made(10.0 * NOISE, 8.0), "slow", "partial", None, ""),
        (made(10.0 * NOISE, 5.0), "slow", "none", None, ""),
        (made(10.0 * (1 + 0.1 * np.sin(np.arange(60.0))), 9.0), "inconclusive", "full", None, ""),
        (made(1.0, 9.0), "error", "none", Fault.GRADER, "faster than its bytes allow"),
        (made(10.0, 1.0), "error", "none", Fault.GRADER, "faster than its bytes allow"),
        (made(10.0, 9.0, neighbours=1), "error", "none", Fault.MACHINE, "1 other process"),
        (made(10.0, 9.0, clocks=[{"processes": 1}, {"processes": 3}, {"processes": 3}]), "error", "none", Fault.MACHINE, "2 other process"),
        (made(10.0, 9.0, clocks=[{"processes": 3}, {"processes": 1}, {"processes": 1}]), "fast", "full", None, ""),
        (made(10.0, 9.0, covered=[False] * 20 + [True] * 40), "error", "none", Fault.MACHINE, "host was slower"),
        (made(10.0, 9.0, clocks=[{"reasons": 0x40}]), "error", "none", Fault.MACHINE, "thermal slowdown"),
        (made(10.0, 9.0, clocks=[{"reasons": 0x4}]), "fast", "full", None, ""),
        (made(10.0, 9.0, clocks=[{"sm_mhz": 1980}, {"sm_mhz": 1700}]), "error", "none", Fault.MACHINE, "1700 and 1980 MHz"),
        (made(10.0, 9.0) | {"kernel": [10.0] * 9, "reference": [9.0] * 9}, "error", "none", Fault.MACHINE, "only 9 pairs"),
        (made(10.0, 9.0) | {"kernel": [], "reference": [], "covered": []}, "error", "none", Fault.MACHINE, "only 0 pairs"),
    ],
)  # fmt: skip
def test_verdicts(samples: dict[str, Any], verdict: str, tier: str, fault: Fault | None, words: str) -> None:
    result = judged(samples)
    assert (result.verdict, result.tier if verdict != "error" else "none", result.fault) == (
        verdict,
        tier,
        fault,
    )
    assert words in result.message
    assert ("no verdict" in result.sentence()) == (verdict == "error")


def test_ten_percent_are_told_apart() -> None:
    """Intervals of a kernel and of one that takes a tenth longer do not touch, at a noise of 1 %."""
    same, slower = (judged(made(x * NOISE, 10.0)).interval for x in (10.0, 11.0))
    assert same is not None and slower is not None and same[0] > slower[1]


def test_the_floor() -> None:
    """1000 bytes in, of 1000 bytes out all but the 50 that L2 may keep, at 1 GB/s."""
    assert floor_us(FACTS) == pytest.approx(1.95)
    assert floor_us({**FACTS, "peak_bytes_per_s": None}) is None


def test_the_roofline_is_the_other_yardstick_and_the_better_one_counts() -> None:
    """16384 bytes at 1 GB/s take 16.4 us, and a kernel of 20 us reaches 82 % of that, whatever PyTorch does."""
    facts = {**FACTS, "input_bytes": 8192, "output_bytes": 8192}
    slow_library = made(20.0 * NOISE, 40.0, facts=facts)
    whole = judged(slow_library, library={**TIERS, "full": 3.0}, roofline={**TIERS, "full": 0.8})
    assert whole.roof is not None and whole.roof.microseconds == pytest.approx(16.384)
    assert [(g.to, g.tier) for g in whole.goals] == [("library", "partial"), ("roofline", "full")]
    assert (whole.verdict, whole.tier) == ("fast", "full")
    low, high = whole.goals[1].interval or (0, 0)
    assert low <= whole.goals[1].ratio <= high and whole.goals[1].ratio == pytest.approx(0.8192, rel=0.01)
    neither = judged(slow_library, library={**TIERS, "full": 3.0}, roofline=TIERS)
    assert (neither.verdict, neither.tier) == ("slow", "partial")
    assert judge(slow_library, TIMING, TIMED, "sm_100a").message == "course.yaml has no tiers for B200"


def test_the_physical_roof() -> None:
    """A GEMM of 4096 cubed: 2 * 4096^3 FLOP at 8192 per clock and SM; a copy: its bytes."""
    course = load_course(REPOSITORY)
    gemm = course.find("8")
    bound = roof(gemm.timed(gemm.timing[0]), "sm_100a", clock_ghz=1.85)
    assert not bound.memory and bound.microseconds == pytest.approx(2 * 4096**3 / (8192 * 148 * 1850))
    copy = course.find("2")
    bound = roof(copy.timed(copy.timing[0]), "sm_90a")
    assert bound.memory and bound.microseconds == pytest.approx(
        2 * 8192 * 8192 * 2 / PEAKS["sm_90a"].bytes_per_us
    )
    add = course.find("1")
    assert roof(add.timed(add.timing[0]), "sm_100a").flop == 67108864


def test_a_modelled_time_against_its_tiers() -> None:
    spec = load_course(REPOSITORY).find("8")
    (timing,) = spec.timing
    kernel = spec.timed(timing)
    tiers = timing.tiers["modelled"].roofline
    assert tiers is not None
    bound = roof(kernel, "sm_100a", 1.85).microseconds
    for ratio, tier in ((tiers.full, "full"), (0.99 * tiers.full, "partial"), (0.99 * tiers.partial, "none")):
        time = ModelledTime(
            builder="k", params={}, device="B200", clock_ghz=1.85, microseconds=0.9999 * bound / ratio,
            bytes_dram=1, flops=1, bottleneck="",
        )  # fmt: skip
        found = against_the_roof(time, timing, kernel)
        assert (
            found.tier == tier and found.roof is not None and found.roof.microseconds == pytest.approx(bound)
        )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({}, ""),
        ({"flops": 2 * 4096**3 - 2**34}, "FLOP by MMAs"),
        ({"bytes_loaded": 2**20}, "1048576 of 67108864 bytes loaded"),
        ({"bytes_loaded": 2**30}, "1073741824 of 2147483648 bytes loaded by TMA"),
        ({"bytes_loaded_plainly": 2**30}, "1073741824 of 2147483648 bytes loaded by TMA"),
        ({"bytes_stored": 0}, "0 of 33554432 bytes stored"),
    ],
)
def test_work_that_is_left_out(change: dict[str, int], words: str) -> None:
    spec = load_course(REPOSITORY).find("8")
    whole = {"flops": 2 * 4096**3, "bytes_loaded": 2**31, "bytes_stored": 2**25, "bytes_loaded_plainly": 0}
    found = work_left_out(spec.timed(spec.timing[0]), spec.timing[0], whole | change)
    assert words in found and bool(words) == bool(found)


def test_loads_that_are_asked_for_beyond_each_input_once() -> None:
    """Exercise 06 loads 128 rows of A and B for each tile, by threads."""
    spec = load_course(REPOSITORY).find("6")
    whole = {"flops": 2 * 4096**3, "bytes_stored": 2**25}
    for loaded, words in ((2**31, ""), (2**30, "1073741824 of 2147483648 bytes loaded")):
        counted = {**whole, "bytes_loaded": loaded, "bytes_loaded_plainly": loaded}
        assert work_left_out(spec.timed(spec.timing[0]), spec.timing[0], counted) == words


# course.yaml ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (
            "params: {M: 8192, N: 8192}",
            "params: {M: 8192, K: 8192}",
            "timing.params has 'K', which is no parameter",
        ),
        ("params: {M: 8192, N: 8192}", "params: {M: 8192}", "timing.params needs N"),
        ("reference: copy", "reference: add", "the reference 'add' takes 2 inputs"),
        ("reference: copy", "reference: cpy", "did you mean 'copy'?"),
        (
            "full: 0.86, partial: 0.7",
            "full: 0.86, partial: 0.95",
            "partial (0.95) must be less than full (0.86)",
        ),
        ("H200:", "H20:", "did you mean 'H200'?"),
        (
            "          modelled:\n            roofline:",
            "          modelled:\n            library:",
            "roofline only",
        ),
        (
            "          modelled:\n            roofline:",
            "          modelled:\n            rooflin:",
            "did you mean 'roofline'?",
        ),
        ("          H200:\n", "          modelled:\n", "key 'modelled' appears twice"),
        (
            "- params: {M: 8192",
            "- builder: build_kernal\n        params: {M: 8192",
            "did you mean 'build_kernel'?",
        ),
        ("runs_on: sm_90", "runs_on: sm_9", "'sm_9' is not one of sm_90, sm_100"),
    ],
)
def test_mistakes_in_the_course_are_named(old: str, new: str, words: str) -> None:
    text = course_of("exercise_02")
    assert old in text
    with pytest.raises(CourseError) as error:
        parse_course(text.replace(old, new, 1))
    assert words in str(error.value) and "\n" not in str(error.value)


# Which device -----------------------------------------------------------------------------------

H200, B200, OLD = (Gpu(n, c, "580") for n, c in (("H200", (9, 0)), ("B200", (10, 0)), ("A100", (8, 0))))


@pytest.fixture(autouse=True)
def toolkit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_PATH", "/somewhere")


@pytest.mark.parametrize(
    ("number", "gpu", "runs"),
    [("2", H200, True), ("2", B200, True), ("2", OLD, False), ("5", H200, False), ("5", B200, True)],
)
def test_auto_takes_the_gpu_that_can_run_the_exercise(
    course: Course, number: str, gpu: Gpu, runs: bool
) -> None:
    exercise = course.find(number)
    assert choose("auto", exercise, gpu) == (gpu if runs else None)
    assert choose("emulated", exercise, gpu) is None
    if runs:
        assert choose("cuda", exercise, gpu) is gpu
    else:
        with pytest.raises(MachineError, match=f"{exercise.id} needs compute capability"):
            choose("cuda", exercise, gpu)


def test_without_a_gpu(course: Course) -> None:
    exercise = course.find("2")
    assert choose("auto", exercise, NoGpu("none")) is None
    with pytest.raises(MachineError, match="--device cuda: none"):
        choose("cuda", exercise, NoGpu("none"))


def test_without_a_compiler(course: Course, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "missing_software", lambda: "there is no compiler")
    assert choose("auto", course.find("2"), H200) is None
    with pytest.raises(MachineError, match="there is no compiler"):
        choose("cuda", course.find("2"), H200)


SMI = """#!/bin/sh
echo "NVIDIA H200, 9.0, 580.159.04, GPU-aa"
echo "NVIDIA B200, 10.0, 580.159.04, GPU-bb"
exit ${SMI_STATUS:-0}
"""


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        (None, ("NVIDIA H200", "0")),
        ("1", ("NVIDIA B200", "1")),
        ("GPU-b", ("NVIDIA B200", "GPU-b")),
        ("", None),
        ("7", None),
    ],
)
def test_what_the_driver_lists(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, visible: str | None, expected: tuple[str, str] | None
) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(SMI)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    found = find_gpu()
    assert (None if isinstance(found, NoGpu) else (found.name, found.visible)) == expected
    monkeypatch.setenv("SMI_STATUS", "9")
    assert isinstance(find_gpu(), NoGpu)


def test_doctor_says_where_kernels_run(monkeypatch: pytest.MonkeyPatch) -> None:
    from autograder import doctor

    def text(found: Gpu | NoGpu) -> tuple[bool, str]:
        monkeypatch.setattr(gpus, "find_gpu", lambda: found)
        finding = doctor._gpu()
        assert finding.optional
        return finding.good, finding.text

    assert text(H200) == (
        True,
        "H200, compute capability 9.0, driver 580; runs the exercises without tcgen05, compiled for sm_90a",
    )
    assert text(B200)[1].endswith("runs all exercises, compiled for sm_100a")
    good, said = text(OLD)
    assert not good and "compiles for 9.0 and 10.0, so kernels run on the emulator" in said
    assert text(NoGpu("no driver")) == (False, "no driver; kernels run on the emulator")
    monkeypatch.setattr(gpus, "missing_software", lambda: "there is no compiler")
    assert text(H200)[1].endswith("kernels run on the emulator, because there is no compiler")


def test_without_landlock_the_confinement_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """In a container whose kernel or policy has no Landlock, nothing is confined, nothing fails, and doctor lists it."""
    from autograder.runner import confinement, limits

    monkeypatch.setattr(limits, "landlock_version", lambda: 0)
    assert limits.confine_files([], []) is False
    (tmp_path / "still").write_text("writable")
    for name in ("die_with_parent", "sees_children", "has_resource_limits"):
        monkeypatch.setattr(limits, name, lambda: False)
    monkeypatch.setattr(confinement, "confine_system_calls", lambda: False)
    active = confinement.confine([], tmp_path, {})
    assert not active["files"] and not active["no network"] and not active["signals"]
    assert confinement.level(active) == "none"


@pytest.mark.parametrize(
    "message", ["cudaErrorNoDevice (100)", "CUDA_ERROR_NOT_INITIALIZED", "something else entirely", ""]
)
def test_an_unknown_error_is_never_the_kernels(message: str) -> None:
    assert classify(message)[0] == "machine"
