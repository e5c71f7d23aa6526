"""Hooks of MkDocs: what GitHub shows of a page and Markdown's other readers do not."""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkdocs.structure.pages import Page

DOCS = Path(__file__).resolve().parents[1]


def on_page_markdown(markdown: str, *, page: Page, **_: Any) -> str:
    """Return the text of *page* as MkDocs is to read it."""
    source = PurePosixPath(page.file.src_uri)
    return re.sub(r"`[^`\n]*\\\|[^`\n]*`", _code_with_bars, _named_instead_of_linked(markdown, source))


def _code_with_bars(found: re.Match[str]) -> str:
    """Return code in a cell of a table: on GitHub a bar is escaped there, here the backslash would be seen."""
    text = found[0].strip("`").replace("&", "&amp;").replace("<", "&lt;").replace("\\|", "&#124;")
    return f"<code>{text}</code>"


def _named_instead_of_linked(markdown: str, source: PurePosixPath) -> str:
    """Return the text with links to files of the repository that are no pages turned into the files' names."""

    def name(found: re.Match[str]) -> str:
        there = (DOCS / source.parent / found["path"]).resolve()
        outside = not there.is_relative_to(DOCS) and there.exists()
        return f"{found['text']} (`{there.relative_to(DOCS.parent)}`)" if outside else found[0]

    return re.sub(r"\[(?P<text>[^\]]+)\]\((?P<path>\.\./[^)#\s]+)\)", name, markdown)
