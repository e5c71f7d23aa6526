"""The history, the statistics and the form of the page in a real browser, as people use them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from bounded import until
from browser_pages import PHONE, Open, answered, picture
from history_scene import FIRST, JOBS, site_with_a_past
from page_scene import HOSTILE
from service_fixtures import ServedSite, serving

from gpuqueue.text.sanitize import plain

if TYPE_CHECKING:
    from playwright.sync_api import FilePayload, Page

SCRIPT: FilePayload = {"name": "hello.py", "mimeType": "text/x-python", "buffer": b"print('hello')\n"}
NO_PROGRAM: FilePayload = {"name": "run.sh", "mimeType": "text/plain", "buffer": b"echo hello\n"}
#: What each view shows once it has its content, and what the page has asked for then.
VIEWS = {
    "history": (".history-table tbody tr", ("/history/folded",)),
    "statistics": (".charts", ("/stats", "/queue-table")),
    "submit": ("#job-mem", ("/web/form",)),
    "submit?how=again": (".suggestions li", ("/history",)),
}


@pytest.fixture(scope="module")
def past() -> Iterator[ServedSite]:
    """Return a site with a month of ended jobs."""
    with site_with_a_past() as site:
        yield site


def complete(page: Page, view: str) -> None:
    """Wait until a view has its content."""
    part, paths = VIEWS[view]
    page.locator(part).first.wait_for()
    answered(page, *paths)


def shown_ids(page: Page) -> list[str]:
    """Return the labels of the jobs in the table of the history."""
    return page.locator(".history-table tbody th.id").all_inner_texts()


@pytest.mark.full
def test_a_person_finds_a_job_and_submits_a_script(past: ServedSite, open_page: Open) -> None:
    """The history has the newest end first. A script travels, and a double click makes one job."""
    page = open_page(past, "history")
    complete(page, "history")
    assert str(FIRST + JOBS - 1) == shown_ids(page)[0]
    assert page.locator("td.name bdi", has_text="<script>").first.inner_text() == plain(HOSTILE)
    page.get_by_role("link", name="Submit", exact=True).click()
    page.get_by_label("Script", exact=True).set_input_files(SCRIPT)
    page.get_by_label("Memory on each device").fill("900")
    page.get_by_role("button", name="Submit").click()
    page.get_by_text("add the unit: 900M or 900G").wait_for()
    page.get_by_label("Memory on each device").fill("1G")
    page.get_by_label("Arguments").fill("--lr 'a b'")
    page.get_by_role("button", name="Submit").dblclick()
    page.wait_for_url(re.compile(r"#/jobs/\d+"))
    with past.client("unix") as owner:
        (job,) = owner.jobs.list(name="hello.py")
        assert (("python3", "hello.py", "--lr", "a b"), True) == (job.spec.argv, page.url.endswith(f"jobs/{job.id}"))
        owner.jobs.cancel(job.id)


@pytest.mark.full
def test_filters_and_pages_of_the_history_are_in_the_address(past: ServedSite, open_page: Open) -> None:
    """A link and a reload show the same jobs. The CSV has all that match, not only the page."""
    page = open_page(past, "history")
    complete(page, "history")
    page.get_by_role("link", name="Next 50").click()
    until(lambda: shown_ids(page)[:1] == [str(FIRST + JOBS - 51)], what="the second page")
    page.get_by_role("button", name="Failed", exact=True).click()
    page.get_by_label("User").fill("eve")
    until(lambda: {*page.locator("td.user").all_inner_texts()} == {"eve"}, what="the filter")
    assert "after=" not in page.url
    page.get_by_role("button", name="Peak memory").click()
    page.wait_for_url(re.compile("sort=peak"))
    page.get_by_text("More filters").click()
    page.get_by_label("Peak at least").fill("much")
    page.get_by_text("write a size such as 20G").wait_for()
    picture(page, "history-filters")
    page.get_by_label("Peak at least").fill("1G")
    page.wait_for_url(re.compile("min_peak=1G"))
    page.get_by_label("Period").select_option("7d")
    page.wait_for_url(re.compile("since=7d"))
    complete(page, "history")
    until(lambda: page.locator(".old").count() == 0, what="the new rows")
    shown = shown_ids(page)
    with page.expect_download() as download:
        page.get_by_role("button", name="CSV").click()
    lines = download.value.path().read_text().splitlines()
    assert "gpuqueue-history.csv" == download.value.suggested_filename
    assert [each.partition(",")[0] for each in lines[1:]] == shown
    page.reload()
    until(lambda: shown_ids(page) == shown, what="the same jobs")


@pytest.mark.full
def test_the_history_finds_parts_of_names_in_any_case(past: ServedSite, open_page: Open) -> None:
    """As the search of the queue does."""
    page = open_page(past, "history")
    complete(page, "history")
    page.get_by_label("Name").fill("RAIN-3")
    until(lambda: {*page.locator("td.name .job-name").all_inner_texts()} == {"train-3.py"}, what="the filter")
    page.get_by_label("Name").fill("train-[45]*")
    until(
        lambda: {*page.locator("td.name .job-name").all_inner_texts()} == {"train-4.py", "train-5.py"},
        what="the pattern",
    )


@pytest.mark.full
def test_statistics_lead_to_the_jobs(past: ServedSite, open_page: Open) -> None:
    """Who uses least of what they ask for comes first, and a number leads to the jobs behind it."""
    page = open_page(past, "statistics")
    complete(page, "statistics")
    assert "eve" == page.locator(".unused-table tbody th").first.inner_text()
    page.get_by_text("Running jobs that use least of what they hold").wait_for()
    page.get_by_role("button", name="By device").click()
    page.get_by_role("rowheader", name="nodeA:3").first.wait_for()
    page.get_by_role("button", name="By day").click()
    until(lambda: page.locator(".statistics-table tbody tr").count() > 20, what="a row for each day")
    picture(page, "statistics-by-day")
    page.get_by_role("button", name="By user").click()
    row = page.get_by_role("row", name=re.compile("^bob"))
    row.first.get_by_role("link", name=re.compile(" of ")).click()
    page.locator(".history-table tbody tr").first.wait_for()
    assert {"state=failed%2Clost", "user=bob", "since=30d"} <= {*page.url.partition("?")[2].split("&")}
    until(lambda: {*page.locator("td.user").all_inner_texts()} == {"bob"}, what="the jobs of bob")


@pytest.mark.full
def test_a_job_runs_again_with_changes(past: ServedSite, open_page: Open) -> None:
    """The link in the history fills the form, and what is changed there changes the new job."""
    page = open_page(past, "history?mine=1")
    complete(page, "history")
    label = shown_ids(page)[0]
    page.get_by_role("link", name=f"Run again: job {label}").click()
    page.get_by_label("Memory on each device").wait_for()
    assert "8G" == page.get_by_label("Memory on each device").input_value()
    page.get_by_label("Memory on each device").fill("many")
    page.get_by_role("button", name=f"Run job {label} again").click()
    page.locator(".field", has_text="Memory").get_by_role("alert").get_by_text("'many' is not a size").wait_for()
    assert "job-mem" == page.evaluate("document.activeElement.id")
    page.get_by_label("Memory on each device").fill("8G")
    page.get_by_label("Arguments").fill("--lr 7")
    page.get_by_label("Python", exact=True).fill("/opt/torch/bin/python")
    page.get_by_label("Tags").fill("again")
    page.get_by_label("Processors, at most").fill("many")
    page.get_by_role("button", name=f"Run job {label} again").click()
    page.locator(".field", has_text="Processors").get_by_role("alert").get_by_text("cpus must be a number").wait_for()
    page.get_by_label("Processors, at most").fill("4")
    page.get_by_label("Host memory, at most").fill("32G")
    picture(page, "submit-again")
    page.get_by_role("button", name=f"Run job {label} again").click()
    page.wait_for_url(re.compile(r"#/jobs/\d+"))
    with past.client("unix") as owner:
        job = next(each for each in owner.jobs.list() if each.spec.retry_of == int(label))
        assert (("/opt/torch/bin/python", "train.py", "--lr", "7"), ("again",)) == (job.spec.argv, job.tags)
        assert (4.0, 32 * 2**30) == (job.spec.cpus, job.spec.cpu_mem_bytes)
        page.get_by_text("at most 4 processors, 32G of host memory").wait_for()
        owner.jobs.cancel(job.id)
    page.goto(f"{page.url.partition('#')[0]}#/submit?again=999999")
    page.get_by_text("there is no job 999999").wait_for()


@pytest.mark.full
def test_a_script_that_cannot_start_is_named_before_it_travels(past: ServedSite, open_page: Open) -> None:
    """A file without an interpreter, and no file at all, are refused in the browser."""
    page = open_page(past, "submit")
    page.get_by_role("button", name="Submit").click()
    page.get_by_text("Choose a script first.").wait_for()
    page.get_by_label("Script", exact=True).set_input_files(NO_PROGRAM)
    page.get_by_role("button", name="Submit").click()
    page.get_by_text("run.sh is no .py file and does not begin with #!").wait_for()
    picture(page, "submit-wrong")


@pytest.mark.full
@pytest.mark.parametrize("view", VIEWS)
def test_a_phone_needs_no_sideways_scrolling(past: ServedSite, open_page: Open, view: str) -> None:
    """All is within the width of a phone."""
    page = open_page(past, view, viewport=PHONE, has_touch=True, is_mobile=True, device_scale_factor=2)
    complete(page, view)
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    height = min(2400, page.evaluate("document.documentElement.scrollHeight"))
    page.set_viewport_size({"width": PHONE["width"], "height": height})
    picture(page, f"{view.replace('?how=', '-')}-phone")


@pytest.mark.full
def test_an_empty_history_says_what_to_type(open_page: Open) -> None:
    """Each view names the command that fills it."""
    with serving() as site:
        page = open_page(site, "history")
        page.get_by_text("gpuqueue submit train.py --mem 6G").wait_for()
        picture(page, "history-empty")
        page.get_by_role("link", name="Statistics").click()
        page.get_by_text("Nothing ran in this time").wait_for()
        picture(page, "statistics-empty")
        page.get_by_role("link", name="Submit", exact=True).click()
        page.get_by_role("button", name="An earlier job again").click()
        page.get_by_text("None of your jobs has ended yet.").wait_for()
        picture(page, "submit-again-empty")
