"""A process of the pool that examines a course."""

from __future__ import annotations

from typing import Any

from autograder.pool import serve


def main() -> None:
    from autograder.check_course.jobs import do
    from autograder.check_course.model import Job

    def answer(fields: dict[str, Any]) -> dict[str, Any]:
        return do(Job(**fields)).to_json()

    serve(answer)


if __name__ == "__main__":
    main()
