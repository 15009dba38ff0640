"""The process of `autograde doctor` that confines itself like a submission's and says what is in force.

Standard input brings {"work": folder, "outside": namespaces of the grader}, the channel carries {"stage": "ready", "isolation": {...}}.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from autograder.runner.confinement import confine
from autograder.runner.frames import encode, read_frame


def main(channel: int) -> None:
    frame = read_frame(sys.stdin.buffer)
    if frame is not None:
        facts = confine([], Path(frame.header["work"]), frame.header["outside"])
        os.write(channel, encode({"stage": "ready", "isolation": facts}))
