"""Links of Markdown text that lead to files of the course. Links into the network are not followed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

_LINK = re.compile(r"\[[^\]]*\]\(\s*<?([^)\s>]+)>?[^)]*\)")
_CODE = re.compile(r"^(```|~~~).*?^\1|`[^`\n]*`", re.MULTILINE | re.DOTALL)
_GENERATED = "lessons/"  # pages of the site that docs/lessons.py writes


def dead_links(path: Path, text: str) -> Iterator[str]:
    """One message for each link of a Markdown file `path` with this text that leads nowhere."""
    for target in _LINK.findall(_CODE.sub("", text)):
        parts = urlsplit(target)
        if parts.scheme or parts.netloc or (path.parent.name == "docs" and target.startswith(_GENERATED)):
            continue
        goal = (path.parent / unquote(parts.path)).resolve() if parts.path else path
        if not goal.exists():
            yield f"the link {target} leads nowhere"
        elif parts.fragment and goal.suffix == ".md":
            there = text if goal == path else goal.read_text(encoding="utf-8")
            if unquote(parts.fragment).lower() not in _anchors(there):
                yield f"the link {target} leads to no heading"


def _anchors(text: str) -> set[str]:
    """Anchors of the headings, as GitHub and MyST write them."""
    headings = re.findall(r"^#{1,6} +(.*?) *#*$", _without_blocks(text), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def _without_blocks(text: str) -> str:
    return re.sub(r"^(```|~~~).*?^\1", "", text, flags=re.MULTILINE | re.DOTALL)
