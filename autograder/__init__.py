"""The autograder of the course: the `autograde` command, and `check` for notebooks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from autograder.nbgrader_bridge import check as check

__version__ = "0.1.0"
__all__ = ["__version__", "check"]


def __getattr__(name: str) -> Any:
    """`check` is imported when it is first used, so that `import autograder` stays cheap."""
    if name == "check":
        from autograder.nbgrader_bridge import check

        return check
    raise AttributeError(f"module 'autograder' has no attribute '{name}'")
