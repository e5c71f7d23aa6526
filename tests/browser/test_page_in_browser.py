"""The page in a real browser, as people use it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from bounded import until
from browser_pages import Open, picture
from page_scene import HOSTILE
from service_fixtures import ServedSite

from gpuqueue.text.sanitize import plain

if TYPE_CHECKING:
    from playwright.sync_api import Page


def rows(page: Page) -> list[str]:
    """Return the labels of the jobs in the document."""
    return page.locator("tr.job th.id").all_inner_texts()


def test_a_person_signs_in_looks_and_cancels(lively: ServedSite, open_page: Open) -> None:
    """The link signs in. Devices and jobs are there, a hostile name is text, and a cancel asks first and is seen."""
    with lively.client("unix") as owner:
        code = owner.access.sign_in_code().code
        page = open_page(lively, token=None)
        page.goto("about:blank")  # else the address changes in the page that is open, and nothing is loaded
        page.goto(f"https://127.0.0.1:{lively.port}/#sign-in={code}")
        page.get_by_role("heading", name="Running").wait_for()
        assert code not in page.url
        page.get_by_role("link", name="Devices").click()
        page.get_by_role("heading", name="nodeA").wait_for()
        assert "python notebook.py" in str(page.locator(".external-use").first.get_attribute("title"))
        other_card = page.locator(".external-use").nth(1).inner_text()
        assert "job 1 which was given another device: 1G in 1 process" == other_card
        page.get_by_label("Is there room for a job with").fill("20G")
        page.get_by_text(re.compile("Yes: nodeB GPU 0")).wait_for()
        page.get_by_text(re.compile("empty at about")).first.wait_for()

        page.get_by_role("link", name="Queue").click()
        page.locator("tr.job").first.wait_for()
        page.get_by_text(re.compile(r"epoch 3/4, 61 %, 3[78]:\d\d left")).first.wait_for()
        assert page.locator(".job-name", has_text="<script>alert(1)</script>").first.inner_text() == plain(HOSTILE)
        job = owner.jobs.submit(["true"], mem="23G", name="a-mistake", hold=True)
        page.get_by_label("Search").fill("a-mistake")
        page.get_by_label(f"Select job {job.id}").click()
        page.get_by_role("button", name="Cancel…").click()
        page.get_by_role("dialog").get_by_role("button", name="Cancel 1 job").click()
        page.get_by_text("1 job cancelled.").wait_for()
        page.get_by_text("None of the").wait_for()
        assert "cancelled" == str(owner.jobs.get(job.id).state)


def test_a_card_shows_its_end_and_what_for(lively: ServedSite, open_page: Open) -> None:
    with lively.client("unix") as owner:
        page = open_page(lively)
        page.get_by_role("heading", name="nodeB").wait_for()
        owner.devices.drain("nodeB", at="30h", reason="new fans <b>")
        page.get_by_text(re.compile(r"^ends at .*: new fans <b>$")).first.wait_for()
        owner.devices.resume("nodeB")
        page.get_by_text("new fans").first.wait_for(state="detached")


@pytest.mark.full
def test_filters_are_in_the_address(lively: ServedSite, open_page: Open) -> None:
    """A link and a reload show the same jobs, in the same order."""
    page = open_page(lively, "queue")
    page.locator("tr.job").first.wait_for()
    page.get_by_role("button", name=re.compile("^Queued")).click()
    page.get_by_label("User").select_option("eve")
    page.get_by_role("button", name="Memory").click()
    page.get_by_role("button", name="Memory").click()
    until(lambda: page.locator("td.user").all_inner_texts()[:1] == ["eve"], what="the filter")
    until(lambda: page.locator("td.mem").first.inner_text().startswith("22G"), what="the order")
    shown, url = rows(page), page.url
    assert {"state=queued", "user=eve", "sort=mem", "order=down"} <= {*url.partition("?")[2].split("&")}
    page.reload()
    page.locator("tr.job").first.wait_for()
    assert (shown, url) == (rows(page), page.url)
    page.get_by_label("Mine").check()
    until(lambda: {*page.locator("td.user").all_inner_texts()} == {"root"} or "mine=1" in page.url, what="mine")


@pytest.mark.full
def test_many_jobs_are_changed_at_once(lively: ServedSite, open_page: Open) -> None:
    """Hold, release and priority reach all selected jobs; another user's refusals are named."""
    page = open_page(lively, "queue?text=batch-")
    with lively.client("unix") as owner:
        jobs = [owner.jobs.submit(["true"], mem="23G", name=f"batch-{number}") for number in range(4)]
        page.get_by_label(f"Select job {jobs[3].id}").wait_for()
        page.get_by_label(f"Select job {jobs[0].id}").click()
        page.get_by_label(f"Select job {jobs[3].id}").click(modifiers=["Shift"])
        page.get_by_text("4 jobs selected").wait_for()
        picture(page, "queue-selected")
        page.get_by_role("button", name="Hold", exact=True).click()
        page.get_by_text("4 jobs held.").wait_for()
        assert {"held"} == {str(owner.jobs.get(each.id).state) for each in jobs}
        until(lambda: page.locator("td.state", has_text="held").count() == 4, what="the hold on the page")
        page.get_by_label("Select the jobs shown").click()
        page.get_by_role("button", name="Release", exact=True).click()
        page.get_by_text("4 jobs released.").wait_for()
        page.get_by_label("Select the jobs shown").click()
        page.get_by_label("Priority").select_option("low")
        page.get_by_text("4 jobs changed.").wait_for()
        assert {"low"} == {str(owner.jobs.get(each.id).spec.priority) for each in jobs}
        for each in jobs:
            owner.jobs.cancel(each.id)


@pytest.mark.full
def test_another_user_changes_nothing(lively: ServedSite, open_page: Open) -> None:
    """The boxes of others' jobs are closed, and the service refuses what a page would send anyway."""
    page = open_page(lively, "queue?user=eve", token="bobs")
    page.locator("tr.job").first.wait_for()
    assert page.locator("tr.job input:not([disabled])").count() == 0
    label = rows(page)[0]
    status = page.evaluate(
        """label => fetch(`api/v1/jobs/${label}/cancel`, {
            method: "POST", headers: {"Gpuqueue-Page": localStorage.getItem("gpuqueue.session")}
        }).then(answer => answer.status)""",
        label,
    )
    assert 403 == status


@pytest.mark.full
def test_an_update_keeps_scroll_selection_and_focus(lively: ServedSite, open_page: Open) -> None:
    """While jobs come and change, what the user does stays."""
    page = open_page(lively, "queue?order=down")
    with lively.client("unix") as owner:
        page.locator("tr.job").first.wait_for()
        box = page.locator(".rows")
        box.evaluate("box => { box.scrollTop = 400; }")
        label = rows(page)[12]
        chosen = page.get_by_label(f"Select job {label}", exact=True)
        chosen.click()
        before = chosen.bounding_box()
        job = owner.jobs.submit(["true"], mem="23G", name="newcomer", hold=True)
        until(lambda: owner.jobs.get(job.id), what="the job")
        page.get_by_role("button", name=re.compile("^Held 2")).wait_for()
        assert before == chosen.bounding_box()  # the rows in sight stay where they are, also if one comes above
        page.get_by_text("1 job selected").wait_for()
        owner.jobs.cancel(job.id)


@pytest.mark.full
def test_keys_work_and_can_be_switched_off(lively: ServedSite, open_page: Open) -> None:
    """Keys move, select and open the list of keys, and not in a field."""
    page = open_page(lively)
    page.get_by_role("heading", name="nodeA").wait_for()
    page.keyboard.press("g")
    page.keyboard.press("q")
    page.locator("tr.job").first.wait_for()
    for key in ("j", "j", "x"):
        page.keyboard.press(key)
    page.keyboard.press("?")
    dialog = page.get_by_role("dialog", name="Keys")
    dialog.wait_for()
    picture(page, "keys")
    dialog.get_by_label("Single keys work").uncheck()
    page.keyboard.press("Escape")
    dialog.wait_for(state="detached")
    page.keyboard.press("/")
    assert "INPUT" != page.evaluate("document.activeElement.tagName") or not page.get_by_label("Search").evaluate(
        "field => field === document.activeElement"
    )


@pytest.mark.full
def test_a_search_leads_to_the_jobs(lively: ServedSite, open_page: Open) -> None:
    """Enter goes to the first job found, and opens it. Escape leaves the field, and the text stays."""
    page = open_page(lively, "queue")
    page.locator("tr.job").first.wait_for()
    search = page.get_by_label("Search")
    page.keyboard.press("/")
    page.keyboard.type("eve")
    page.keyboard.press("Escape")
    until(lambda: {*page.locator("td.user").all_inner_texts()} == {"eve"}, what="the filter")
    page.locator("tr.job.focused").wait_for()
    assert ("eve", "job-rows") == (search.input_value(), page.evaluate("document.activeElement.id"))
    page.keyboard.press("/")
    page.keyboard.type("later.py")  # in place of what was there
    page.keyboard.press("Enter")
    page.locator("tr.job.focused").get_by_text("later.py").wait_for()
    picture(page, "queue-found")
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="later.py").wait_for()


@pytest.mark.full
def test_the_page_goes_on_after_a_restart_of_the_service(lively: ServedSite, open_page: Open) -> None:
    """It says that nobody answers, keeps what it shows, and goes on when the service is back; nobody signs in again."""
    page = open_page(lively)
    page.get_by_role("heading", name="nodeA").wait_for()
    lively.kill()
    page.get_by_text("The service does not answer.").wait_for()
    assert page.get_by_role("heading", name="nodeA").is_visible()
    picture(page, "away")
    lively.start()
    page.get_by_text("The service does not answer.").wait_for(state="detached")
    assert page.get_by_role("button", name="Sign out").is_visible()


@pytest.mark.full
def test_the_page_asks_at_once_when_the_network_is_back(lively: ServedSite, open_page: Open) -> None:
    """Its pauses grow to 15 seconds while nobody answers. Here they never end, and the event of the browser does it."""
    page = open_page(lively)
    page.get_by_role("heading", name="nodeA").wait_for()
    page.context.set_offline(True)
    page.get_by_text("The service does not answer.").wait_for()
    page.evaluate("for (let id = setTimeout(() => 0); id > 0; id--) clearTimeout(id); window.setTimeout = () => 0")
    page.context.set_offline(False)
    page.get_by_text("The service does not answer.").wait_for(state="detached")


@pytest.mark.full
def test_signing_out_shows_nothing_any_more(lively: ServedSite, open_page: Open) -> None:
    """The next person at this browser sees the form only."""
    page = open_page(lively)
    page.get_by_role("heading", name="nodeA").wait_for()
    page.get_by_role("button", name="Sign out").click()
    page.get_by_role("heading", name="Sign in").wait_for()
    page.get_by_text("You are signed out.").wait_for()
    assert 0 == page.get_by_role("heading", name="nodeA").count()
    page.reload()
    page.get_by_role("heading", name="Sign in").wait_for()
    picture(page, "sign-in")


@pytest.mark.full
def test_a_used_link_says_so(lively: ServedSite, open_page: Open) -> None:
    """With an account it is no error: the page goes on, and says who is signed in."""
    page = open_page(lively)
    page.get_by_role("heading", name="nodeA").wait_for()
    page.evaluate("location.hash = '#sign-in=used'")
    page.locator(".link-used").get_by_text("This link has been used already").wait_for()
    assert "You are signed in as root already" in page.locator(".link-used").inner_text()
    page.get_by_role("heading", name="Running").wait_for()
    picture(page, "link-used")
    page.get_by_role("link", name="Queue").click()
    page.locator(".link-used").wait_for(state="detached")
    page.get_by_role("button", name="Sign out").click()
    page.get_by_text("You are signed out.").wait_for()
    page.evaluate("location.hash = '#sign-in=used'")
    page.get_by_text("Type gpuqueue web for a new one.").wait_for()
