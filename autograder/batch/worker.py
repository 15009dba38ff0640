"""A process of the pool: one task as a JSON line on standard input, one answer as a JSON line on standard output."""

from __future__ import annotations

import json
import os
import signal
import sys


def main() -> None:
    """Answer until standard input ends. Whatever else prints goes to standard error."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the pool decides when this process ends
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    from autograder.batch.grading import Task, run_task
    from autograder.runner.limits import die_with_parent

    die_with_parent()
    for line in sys.stdin:
        try:
            record = run_task(Task(**json.loads(line)))
            answer: dict[str, object] = {"final": record.final, "seconds": record.seconds}
        except OSError as error:
            answer = {"error": f"the record cannot be written ({error.strerror or error})"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
