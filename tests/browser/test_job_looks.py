"""How the view of a job looks and reads: light, dark and on a phone, and for people who do not see it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from browser_pages import PHONE, Open, answered, picture
from job_scene import JobScene
from service_fixtures import ServedSite

if TYPE_CHECKING:
    from playwright.sync_api import Page

#: What is shown -> what is there once it is complete, and what the page has asked for then.
SHOWN = {
    "ended": (".memory path.series", ("/view", "/story", "/log")),
    "running": (".memory path.series", ("/view", "/story", "/live", "/log", "/job-progress")),
    "after": (".why li", ("/view", "/why")),
    "sweep": (".heat .cell", ("/view", "/members")),
}


def complete(page: Page, which: str) -> None:
    """Wait until a job has its parts."""
    part, paths = SHOWN[which]
    page.locator(part).first.wait_for(state="attached")
    answered(page, *paths)


@pytest.mark.full
@pytest.mark.parametrize("which", SHOWN)
def test_a_phone_needs_no_sideways_scrolling(played: tuple[ServedSite, JobScene], open_page: Open, which: str) -> None:
    """All is within the width of a phone."""
    site, scene = played
    options = {"viewport": PHONE, "has_touch": True, "is_mobile": True, "device_scale_factor": 2}
    page = open_page(site, f"jobs/{getattr(scene, which)}", **options)
    complete(page, which)
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    page.set_viewport_size({**PHONE, "height": page.evaluate("document.documentElement.scrollHeight")})
    picture(page, f"job-{which}-phone")
