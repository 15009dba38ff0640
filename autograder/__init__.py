"""The autograder of the course: the `autograde` command, and `check` and `draw` for notebooks (more in `autograder.notebook`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from autograder.drawing import draw as draw
    from autograder.nbgrader_bridge import check as check

__version__ = "0.1.0"
__all__ = ["__version__", "check", "draw"]


def __getattr__(name: str) -> Any:
    """`check` and `draw` are imported when they are first used, so that `import autograder` stays cheap."""
    if name == "check":
        from autograder.nbgrader_bridge import check

        return check
    if name == "draw":
        from autograder.drawing import draw

        return draw
    raise AttributeError(f"module 'autograder' has no attribute '{name}'")
