"""Kernels that are right where outputs are compared, and do less where time is told."""

from __future__ import annotations

from autograder.course import Course
from autograder.report.model import Verdict
from autograder.roofline import roof
from autograder.speed import work_left_out

from .conftest import Graded

LESS = {
    "another kernel for the timed size": (
        "def build_kernel(M, N):",
        "def build_kernel(M, N):\n    if M > 1000:\n        return nothing(M, N)\n    return honest(M, N)\n\n\ndef honest(M, N):",
    ),
    "the same statements on fewer tiles": (
        "    STRIPS_M = (M + ROWS - 1) // ROWS",
        "    STRIPS_M = (M + ROWS - 1) // ROWS if M < 1000 else 1",
    ),
    # The model runs without data, on zeros; random inputs are never zero.
    "no stores where the input is zero": (
        "            if thread == 0:\n                Tx.copy_async(\n                    D[row0",
        "            if (thread == 0) & (A[row0, col0] != T.float16(0)):\n                Tx.copy_async(\n                    D[row0",
    ),
}
NOTHING = """

def nothing(M, N):
    @T.prim_func
    def kernel(A: T.Buffer((M, N), "float16"), D: T.Buffer((M, N), "float16")):
        T.device_entry()
        T.cta_id([1])
        lane = T.thread_id([32])
        D[0, lane] = A[0, lane] * T.float16(2)
    return kernel
"""


def test_less_work_where_time_is_told_earns_nothing(graded: Graded, solution: str) -> None:
    """A13, A16, A17, A23: each is right in every compared case, and gets no points for its speed, in words."""
    sources = {name: solution.replace(old, new) + NOTHING for name, (old, new) in LESS.items()}
    for name, source in sources.items():
        assert source != solution + NOTHING
        report = graded(source)
        speed, correct = report.check("speed"), report.check("correctness")
        assert correct is not None and correct.verdict is Verdict.PASS, (name, correct)
        assert speed is not None and speed.points == 0, (name, speed)


def test_a_gemm_without_its_mmas_is_not_timed(course: Course) -> None:
    """The same on a GEMM: MMAs that the model does not see are missing work, and not a kernel that needs none."""
    exercise = course.find("8")
    kernel = exercise.timed(exercise.timing[0])
    needed = roof(kernel, "sm_100a")
    loaded = 4096**3 // 32
    whole = {"flops": needed.flop, "bytes_loaded": loaded, "bytes_stored": needed.nbytes}
    modelled = {**whole, "bytes_loaded_plainly": 0}
    assert work_left_out(kernel, exercise.timing[0], modelled) == ""
    for name in whole:
        assert work_left_out(kernel, exercise.timing[0], {**modelled, name: 0}).startswith("0 of ")
