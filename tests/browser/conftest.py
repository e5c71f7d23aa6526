"""The fixtures of the browser are for these tests only."""

from browser_pages import chromium, lively, open_page
from job_scene import played

__all__ = ["chromium", "lively", "open_page", "played"]
