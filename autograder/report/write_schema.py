"""`python -m autograder.report.write_schema` writes the JSON Schema of a GradeReport beside this file."""

from __future__ import annotations

import json
from pathlib import Path

from autograder.report.model import json_schema

SCHEMA = Path(__file__).with_name("grade_report.schema.json")


def schema_text() -> str:
    return json.dumps(json_schema(), indent=2, sort_keys=True) + "\n"


if __name__ == "__main__":
    SCHEMA.write_text(schema_text(), encoding="utf-8")
