"""The fixtures of the browser are for these tests only."""

from browser_pages import chromium, lively, open_page

__all__ = ["chromium", "lively", "open_page"]
