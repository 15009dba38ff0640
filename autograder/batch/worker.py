"""A process of the pool that grades a class."""

from __future__ import annotations

from typing import Any

from autograder.pool import serve


def main() -> None:
    from autograder.batch.grading import Task, run_task

    def answer(fields: dict[str, Any]) -> dict[str, Any]:
        try:
            record = run_task(Task(**fields))
        except OSError as error:
            return {"error": f"the record cannot be written ({error.strerror or error})"}
        return {"final": record.final, "seconds": record.seconds}

    serve(answer)


if __name__ == "__main__":
    main()
