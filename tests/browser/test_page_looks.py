"""How the page looks and reads: light, dark and on a phone, and for people who do not see it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from browser_pages import PHONE, Open, answered, picture, violations
from page_scene import fill, offers, remember
from service_fixtures import ServedSite, serving

if TYPE_CHECKING:
    from playwright.sync_api import Page

#: What each view shows once it has its content, and what the page has asked for then.
VIEWS = {
    "overview": ("table.devices tbody tr", ("/overview",)),
    "queue": ("tr.job", ("/queue-table", "/job-places", "/job-progress")),
}


def shown(page: Page, view: str) -> None:
    """Wait until a view has its content."""
    part, paths = VIEWS[view]
    page.locator(part).first.wait_for()
    answered(page, *paths)


@pytest.mark.full
@pytest.mark.parametrize("view", VIEWS)
def test_a_phone_needs_no_sideways_scrolling(lively: ServedSite, open_page: Open, view: str) -> None:
    """All is within the width of a phone."""
    page = open_page(lively, view, viewport=PHONE, has_touch=True, is_mobile=True, device_scale_factor=2)
    shown(page, view)
    picture(page, f"{view}-phone")
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]


@pytest.mark.full
@pytest.mark.parametrize("width", [721, 1000])
def test_a_tablet_shows_why_a_job_waits(lively: ServedSite, open_page: Open, width: int) -> None:
    """Regression: the jobs of a device had 65 pixels, and the reasons in the queue were beyond the edge."""
    page = open_page(lively, viewport={"width": width, "height": 800})
    inside = "document.documentElement.scrollWidth <= innerWidth"
    shown(page, "overview")
    assert page.evaluate(inside)
    assert (page.locator("td.jobs").first.bounding_box() or {})["width"] > width / 2
    page.get_by_role("link", name="Queue").click()
    shown(page, "queue")
    box = page.locator("td.story").first.bounding_box() or {}
    assert page.evaluate(inside)
    assert box["width"] > 120, box
    assert box["x"] + box["width"] <= width, box


@pytest.mark.full
def test_forced_colours_keep_the_bars(lively: ServedSite, open_page: Open) -> None:
    """The parts of a memory bar differ, and axe finds nothing."""
    page = open_page(lively, forced_colors="active", bypass_csp=True)
    shown(page, "overview")
    colour = "name => getComputedStyle(document.querySelector(`.bar .${name}`)).backgroundColor"
    names = ("used", "allocated", "headroom", "free")
    assert len(names) == len({page.evaluate(colour, each) for each in names})
    assert {} == violations(page)


@pytest.mark.full
def test_a_chosen_theme_is_remembered(lively: ServedSite, open_page: Open) -> None:
    """It counts before that of the system, from the first paint on."""
    page = open_page(lively, color_scheme="light")
    light = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.get_by_label("Theme").select_option("dark")
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.reload()
    page.get_by_role("heading", name="nodeA").wait_for()
    assert (dark, True) == (page.evaluate("getComputedStyle(document.body).backgroundColor"), light != dark)


@pytest.mark.full
def test_an_empty_site_says_what_to_type(open_page: Open) -> None:
    """Without devices and jobs, each view names the command that changes that."""
    with serving() as site:
        for each in site.queue.devices.all():
            site.queue.devices.withdraw(each.host, each.device.uuid)
        page = open_page(site, "queue")
        page.get_by_text("gpuqueue submit train.py --mem 6G").wait_for()
        picture(page, "queue-empty")
        page.get_by_role("link", name="Devices").click()
        page.get_by_text("gpuqueue up", exact=True).wait_for()
        picture(page, "overview-empty")


@pytest.mark.full
def test_the_last_hours_of_a_device_are_below_its_memory(open_page: Open) -> None:
    """A service that starts again has them from its file. In words for those who do not see it."""
    with serving(GPUQUEUE_HEARTBEAT="10s") as site:
        fill(site.queue, site.settings.runs_dir)
        remember(site, offers())
        page = open_page(site, bypass_csp=True)
        page.locator(".sparkline").first.wait_for()
        picture(page, "overview-past")
        words = page.locator(".sparkline").first.get_attribute("aria-label") or ""
        assert re.fullmatch(r"last 5h\S* ?\S*: memory used up to 80 %, load \d+ % on average", words), words
        assert {} == violations(page)
