"""Each view of a lab at work, at five widths, in both themes and with forced colours. Look at the pictures."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from browser_pages import Open, answered, picture, sign_in, violations
from lab_scene import Lab, lab

if TYPE_CHECKING:
    from playwright.sync_api import Page

#: From a phone to a large screen, in pixels. A tablet lies on its side at 1024.
WIDTHS = (320, 768, 1024, 1280, 1600)
SCHEMES: dict[str, dict[str, Any]] = {
    "light": {"color_scheme": "light"},
    "dark": {"color_scheme": "dark"},
    "forced": {"forced_colors": "active"},
}
#: The address of each view -> what it shows once it has its content, and what the page has asked for then. A name of a
#: job of the lab is in braces.
VIEWS: dict[str, tuple[str, tuple[str, ...]]] = {
    "mine": (".mine-running tbody tr", ("/queue-table", "/history/folded", "/job-places", "/job-progress")),
    "overview": ("table.devices tbody tr", ("/overview", "/device-past", "/job-progress")),
    "queue": ("tr.job", ("/queue-table", "/job-places", "/job-progress")),
    "history": (".history-table tbody tr", ("/history/folded",)),
    "statistics": (".charts", ("/stats", "/queue-table")),
    "submit": ("#job-mem", ("/web/form",)),
    "submit?again={ended}": ("#job-mem", ("/web/form",)),
    "account": (".tokens tbody tr", ("/tokens", "/notification-senders")),
    "kiosk": (".kiosk-queue tbody tr", ("/overview", "/queue-table")),
    "jobs/{ended}": (".memory path.series", ("/view", "/story", "/log")),
    "jobs/{running}": (".memory path.series", ("/view", "/story", "/live", "/log", "/job-progress")),
    "jobs/{waiting}": (".why li", ("/view", "/why")),
    "jobs/{sweep}": (".heat .cell", ("/view", "/members")),
}


@pytest.fixture(scope="module")
def at_work() -> Iterator[Lab]:
    """Return a lab in which people work."""
    with lab() as place:
        yield place


def looked_at(page: Page, name: str) -> Iterator[tuple[str, object]]:
    """Show the whole view at each width, take a picture, and yield what is wrong there."""
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 900})
        too_wide = page.evaluate("document.documentElement.scrollWidth - innerWidth")
        if too_wide > 0:
            yield f"{name} at {width} px", f"the body scrolls sideways by {too_wide} px"
        height = page.evaluate("Math.min(3000, document.documentElement.scrollHeight)")
        page.set_viewport_size({"width": width, "height": max(600, height)})
        picture(page, f"lab/{name}-{width}")
        wrong = violations(page)
        if wrong:
            yield f"{name} at {width} px", wrong


@pytest.mark.full
@pytest.mark.timeout(900)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_no_view_has_a_fault(at_work: Lab, open_page: Open, scheme: str) -> None:
    """Axe finds nothing at all, and no body scrolls sideways."""
    page = open_page(at_work.site, token=None, bypass_csp=True, **SCHEMES[scheme])
    page.get_by_label("Access token").wait_for()
    faults = dict(looked_at(page, f"sign-in-{scheme}"))
    sign_in(page, at_work.token)
    ids = {name: getattr(at_work, name) for name in ("ended", "running", "waiting", "sweep")}
    for view, (part, paths) in VIEWS.items():
        page.set_viewport_size({"width": 1280, "height": 900})
        page.goto(f"https://127.0.0.1:{at_work.site.port}/#/{view.format(**ids)}")
        page.locator(part).first.wait_for(state="attached")
        answered(page, *paths)
        name = view.translate(str.maketrans("/?=", "---", "{}"))
        faults |= dict(looked_at(page, f"{name}-{scheme}"))
    assert {} == faults
