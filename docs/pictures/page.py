#!/usr/bin/env python3
"""Takes the pictures of the web page for the documentation: a lab with its month of jobs, in a real browser.

    .venv/bin/python docs/pictures/page.py [DIRECTORY]

The lab is tests/support/lab_scene.py, on the store, the history and the service of the tests. It writes the pictures of
the documentation into DIRECTORY, and each view in both themes into build/pictures/lab. Look at them before you commit.
"""

from __future__ import annotations

import shutil
import sys
from datetime import datetime, timezone
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT / "tests" / "support"))

from browser_pages import PROGRAMS, QUIET, answered, sign_in  # noqa: E402 - behind the path
from lab_scene import Lab, lab  # noqa: E402 - as above
from PIL import Image  # noqa: E402 - as above
from playwright.sync_api import Browser, sync_playwright  # noqa: E402 - as above

#: Where both themes of each view are.
BOTH = ROOT / "build" / "pictures" / "lab"
#: The view of a picture -> its theme in the documentation, what it shows once it is complete, and what it asks for.
VIEWS = {
    "devices": ("light", "table.devices tbody tr", ("/overview",)),
    "queue": ("dark", "tr.job", ("/queue-table", "/job-places", "/job-progress")),
    "job": ("light", ".memory path.series", ("/view", "/story", "/log")),
    "statistics": ("light", ".charts", ("/stats", "/queue-table")),
}
#: Views that are shown as long as they are. The others are as high as a screen.
WHOLE = ("job", "statistics")
#: The page has few colours. With so many, a picture is half of its size, and looks the same.
COLOURS = 160
#: The hour of the day that the pictures show, whenever they are taken.
HOUR = 15


def main(directory: Path) -> None:
    """Write the pictures into *directory*."""
    program = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if program is None:
        sys.exit("no Chromium here to show the page: apt install chromium")
    BOTH.mkdir(parents=True, exist_ok=True)
    with lab() as place, sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program, args=[*QUIET])
        for view, (theme, _, _) in VIEWS.items():
            for scheme in ("light", "dark"):
                taken = BOTH / f"{view}-{scheme}.png"
                take(browser, place, view, scheme, taken)
                if scheme == theme:
                    reduce(taken, directory / f"page-{view}.png")
        browser.close()


def take(browser: Browser, place: Lab, view: str, scheme: str, into: Path) -> None:
    """Take the picture of a view in a browser of its own, as ada."""
    _, part, paths = VIEWS[view]
    east = (HOUR - datetime.now(timezone.utc).hour + 11) % 24 - 11
    context = browser.new_context(
        ignore_https_errors=True,
        viewport={"width": 1280, "height": 800},
        color_scheme="dark" if scheme == "dark" else "light",
        locale="en-GB",
        timezone_id=f"Etc/GMT{-east:+d}",  # these names count to the west
    )
    page = context.new_page()
    base = f"https://127.0.0.1:{place.site.port}/"
    page.goto(base)
    sign_in(page, place.token)
    page.goto(f"{base}#/{ {'devices': 'overview', 'job': f'jobs/{place.ended}'}.get(view, view) }")
    page.locator(part).first.wait_for(state="attached")
    answered(page, *paths)
    if view in WHOLE:
        page.set_viewport_size({"width": 1280, "height": page.evaluate("document.documentElement.scrollHeight")})
    page.screenshot(path=str(into), animations="disabled")
    context.close()


def reduce(taken: Path, into: Path) -> None:
    """Write a picture with fewer colours."""
    with Image.open(taken) as picture:
        small = picture.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
    small.save(into, optimize=True)
    print(f"{into}: {into.stat().st_size} bytes")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE)
