"""Checks of a view of the page: for people who do not see it, and on a phone."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Page

AXE = Path(__file__).parents[2] / "node_modules" / "axe-core" / "axe.min.js"
PHONE: dict[str, Any] = {
    "viewport": {"width": 390, "height": 844},
    "has_touch": True,
    "is_mobile": True,
    "device_scale_factor": 2,
}


def serious_faults(page: Page) -> dict[str, list[str]]:
    """Return what axe finds that is serious: names, roles, contrast. The page must bypass its policy."""
    if not AXE.exists():
        pytest.skip("axe-core is not installed: python3 page_parts.py --tests")
    page.evaluate(AXE.read_text(encoding="utf-8"))
    found: list[dict[str, Any]] = page.evaluate("axe.run().then(result => result.violations)")
    return {
        each["id"]: [node["html"][:200] for node in each["nodes"]][:3]
        for each in found
        if each["impact"] in {"serious", "critical"}
    }


def is_within(page: Page) -> bool:
    """Return whether the page needs no sideways scrolling."""
    width: int = page.evaluate("document.documentElement.scrollWidth")
    return width <= page.evaluate("window.innerWidth")
