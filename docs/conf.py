"""The course as a site: `pip install -e '.[docs]'`, then `sphinx-build -b html docs _build/html`."""

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent)]

import lessons  # noqa: E402

from autograder import cli  # noqa: E402

cli.grade.hidden = (
    False  # the terminal's list of commands leaves it out, because its name need not be written
)

project = "GPU kernels for Blackwell"
copyright = "the authors, under the Apache License 2.0"
language = "en"

extensions = ["myst_parser", "sphinx_click"]
exclude_patterns = ["_build", "_templates"]
myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 4
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}

html_theme = "furo"
html_title = "GPU kernels for Blackwell"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sphinx = False
pygments_style = "friendly"
pygments_dark_style = "monokai"

lessons.write()


def setup(app):  # type: ignore[no-untyped-def]
    def leave_out_the_summary(app, ctx, lines):  # type: ignore[no-untyped-def]
        """The group's help is a table for a terminal; the page has the commands themselves."""
        if ctx.parent is None and ctx.command.name == "cli":
            lines[:] = ["Without an exercise or a command it says where you are and what comes next.", ""]

    app.connect("sphinx-click-process-description", leave_out_the_summary)
