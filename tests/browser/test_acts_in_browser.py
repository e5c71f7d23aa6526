"""What people do with the page: their own jobs, edits, drains, arrays, tokens, and what they have typed."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from bounded import until
from browser_pages import PHONE, Open, answered, mine, picture, sign_in
from factories import make_spec
from job_scene import JobScene, finish, started
from page_scene import ME
from service_fixtures import ServedSite, serving

from gpuqueue.model.access_token import Scope, TokenRequest
from gpuqueue.model.code_snapshot import CodeSnapshot
from gpuqueue.model.run import Ending
from gpuqueue.text.units import GIB

if TYPE_CHECKING:
    from playwright.sync_api import FilePayload, Page

    from gpuqueue.model.job_spec import JobSpec

SCRIPT: FilePayload = {"name": "sweep.py", "mimeType": "text/x-python", "buffer": b"print('hello')\n"}
#: What each view shows once it has its content, and what the page has asked for then.
VIEWS = {
    "mine": (".mine-running tbody tr", ("/queue-table", "/history/folded")),
    "account": (".tokens tbody tr", ("/tokens", "/notification-senders")),
    "kiosk": (".kiosk-device", ("/overview", "/queue-table")),
}


def complete(page: Page, view: str) -> None:
    """Wait until a view has its content."""
    part, paths = VIEWS[view]
    page.locator(part).first.wait_for()
    answered(page, *paths)


@pytest.mark.full
def test_my_jobs_come_first_and_failures_are_news(played: tuple[ServedSite, JobScene], open_page: Open) -> None:
    """Who signs in sees the own jobs: what runs, what waits and where, and what has ended since the last visit."""
    site, scene = played
    page = open_page(site, "")
    page.locator(".mine-running").get_by_role("link", name="llama-finetune").wait_for()
    page.locator(".mine-waiting").get_by_role("link", name="big.py").wait_for()
    page.locator(".mine-waiting").get_by_text(re.compile("before it")).first.wait_for()
    ended = page.locator(".mine-ended")
    ended.get_by_role("link", name=str(scene.ended), exact=True).wait_for()
    assert "llama" not in ended.inner_text()
    assert "My jobs" in page.title()
    page.get_by_role("button", name=re.compile("I have seen")).click()
    ended.get_by_text("No job of yours has ended since").wait_for()
    ended.get_by_text("Before that").wait_for()
    page.reload()
    ended.get_by_text("No job of yours has ended since").wait_for()
    job = site.queue.requests.submit(_small("news.py")).id
    finish(site, started(site, job, b"", card=1), Ending.from_status(3), GIB // 2)
    site.record()
    ended.get_by_role("link", name="news.py").wait_for()
    assert "1 failed" in ended.get_by_role("heading").inner_text()
    page.wait_for_function("document.title.startsWith('(1) ')")
    for name, status in (("fine.py", 0), ("later.py", 3)):
        job = site.queue.requests.submit(_small(name)).id
        finish(site, started(site, job, b"", card=1), Ending.from_status(status), GIB // 2)
    site.record()
    ended.get_by_role("link", name="later.py").wait_for()
    assert ["later.py", "news.py", "fine.py"] == ended.locator("a.job-name").all_inner_texts()


@pytest.mark.full
def test_words_of_a_cancel_go_with_the_end_of_the_job(played: tuple[ServedSite, JobScene], open_page: Open) -> None:
    """The page of a run without metrics says how to report one, and the list on which card it runs."""
    site, _ = played
    job = site.queue.requests.submit(_small("stop.py")).id
    run = started(site, job, b"", card=1)
    page = open_page(site, "")
    page.get_by_role("row", name=re.compile("stop.py")).get_by_text("on nodeA:1").wait_for()
    page.get_by_role("link", name="stop.py").click()
    page.get_by_text("metric: loss=0.31 step=100").wait_for()
    page.get_by_role("button", name="Cancel…").click()
    page.get_by_role("dialog").get_by_role("button", name=f"Cancel {job}").click()
    words = page.get_by_text("Its processes are being ended.")
    words.wait_for()
    finish(site, run, Ending.from_status(-15), GIB // 2)
    site.record()
    words.wait_for(state="detached")


def _small(name: str) -> JobSpec:
    """Return a job of this account that fits beside the others."""
    return make_spec(account=ME, name=name, mem_bytes=GIB // 2)


@pytest.mark.full
def test_a_waiting_job_is_edited_and_moved(played: tuple[ServedSite, JobScene], open_page: Open) -> None:
    """Memory, time and place change; a wrong value is named in the dialog; what was typed is kept."""
    site, scene = played
    page = open_page(site, f"jobs/{scene.waiting}")
    page.get_by_role("button", name="Edit…").click()
    dialog = page.get_by_role("dialog")
    assert "23G" == dialog.get_by_label("Memory on each device").input_value()
    dialog.get_by_label("Memory on each device").fill("much")
    dialog.get_by_role("button", name="Save").click()
    dialog.get_by_text("'much' is not a size").wait_for()
    until(lambda: page.evaluate("document.activeElement.id") == "edit-mem", what="the focus")
    dialog.get_by_label("Memory on each device").fill("22G")
    page.keyboard.press("Escape")
    dialog.wait_for(state="detached")
    page.get_by_role("button", name="Edit…").click()
    assert "22G" == dialog.get_by_label("Memory on each device").input_value()
    dialog.get_by_label("Time limit").fill("90m")
    dialog.get_by_label("Notify unless it succeeds").fill("json://127.0.0.1/secret")
    picture(page, "job-edit")
    dialog.get_by_role("button", name="Save").click()
    page.get_by_text("It asks for 22G, has 1h 30m, notifies json://… now.").wait_for()
    with site.client("unix") as owner:
        spec = owner.jobs.get(scene.waiting).spec
        assert (22 * GIB, 5400.0) == (spec.mem_bytes, spec.time_limit_s)
        page.get_by_role("button", name="To the front").click()
        page.get_by_text("It goes before your other waiting jobs now.").wait_for()
        assert owner.jobs.get(scene.waiting).front is not None
        page.get_by_role("button", name="Back to its place").click()
        page.get_by_text("It has its place by arrival again.").wait_for()
        assert owner.jobs.get(scene.waiting).front is None
        owner.jobs.edit(scene.waiting, mem="23G", time_limit="none", on_fail="none")


@pytest.mark.full
def test_an_array_that_has_begun_changes_its_members_at_once(
    played: tuple[ServedSite, JobScene], open_page: Open
) -> None:
    """That is all that can change then, and the dialog offers nothing else."""
    site, scene = played
    page = open_page(site, f"jobs/{scene.sweep}")
    page.get_by_role("button", name="Edit…").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Members at once, at most").fill("3")
    assert 0 == dialog.get_by_label("Memory on each device").count()
    dialog.get_by_role("button", name="Save").click()
    page.get_by_text("It runs at most 3 members at once now.").wait_for()
    with site.client("unix") as owner:
        array = owner.jobs.get(scene.sweep).spec.array
        assert array is not None
        assert 3 == array.at_once
        owner.jobs.edit(scene.sweep, at_once=4)


@pytest.mark.full
def test_an_admin_drains_a_hot_card_and_resumes_it(lively: ServedSite, open_page: Open) -> None:
    """The reason begins with the heat, all read it, and the device is open again after a resume."""
    page = open_page(lively)
    page.get_by_role("button", name="Drain GPU 2 of nodeA…").click()
    dialog = page.get_by_role("dialog")
    assert "hot: 88 °C" == dialog.get_by_label("Reason").input_value()
    dialog.get_by_label("Reason").fill("hot: a fan is broken")
    dialog.get_by_role("button", name="Drain GPU 2 of nodeA").click()
    page.get_by_text("drained: hot: a fan is broken").wait_for()
    picture(page, "drained")
    page.wait_for_function("document.activeElement.textContent === 'Resume'")  # where it was: the button is another one
    with lively.client("unix") as owner:
        drained = {each.device.uuid: each.drained for each in owner.devices.list()}
        assert "hot: a fan is broken" in str(drained["GPU-nodeA-2"])
        page.get_by_role("button", name="Resume GPU 2 of nodeA").click()
        page.get_by_text("hot: a fan is broken").wait_for(state="detached")
        assert {each.device.uuid: each.drained for each in owner.devices.list()}["GPU-nodeA-2"] is None


@pytest.mark.full
def test_a_read_token_is_offered_nothing_that_it_may_not_do(lively: ServedSite, open_page: Open) -> None:
    """The page says why, also at the address of the form."""
    page = open_page(lively, token=None)
    page.goto(f"https://127.0.0.1:{lively.port}/")
    sign_in(page, lively.token(ME.name, ME.uid, frozenset({Scope.READ})))
    page.get_by_role("link", name="Queue").click()
    page.get_by_text("You signed in with a token that may only read").wait_for()
    page.locator("tr.job").first.wait_for()
    assert [0, 0] == [
        page.get_by_role("link", name="Submit", exact=True).count(),
        page.locator("tr.job input:not([disabled])").count(),
    ]
    page.locator("tr.job .job-name").first.click()
    page.locator(".job-actions").get_by_text("You signed in with a token that may only read").wait_for()
    assert 0 == page.locator(".job-actions button").count()
    page.goto(f"https://127.0.0.1:{lively.port}/#/submit")
    page.get_by_text("sign in with a token that has the scope submit").wait_for()


@pytest.mark.full
def test_an_array_is_cancelled_with_its_numbers_in_sight(played: tuple[ServedSite, JobScene], open_page: Open) -> None:
    """The dialog says how many members run and how many wait."""
    site, scene = played
    page = open_page(site, f"jobs/{scene.sweep}")
    page.get_by_role("button", name="Cancel…", exact=True).click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_text(
        "2 members run now, and their processes are ended. 23 members wait, and do not start."
    ).wait_for()
    dialog.get_by_role("button", name="Keep it").click()


@pytest.mark.full
def test_an_archive_without_a_file_is_not_downloaded(played: tuple[ServedSite, JobScene], open_page: Open) -> None:
    """The page reads where it begins, and says that it is empty. The archive is made here: no host has the code."""
    site, _ = played
    job = site.queue.requests.submit(replace(_small("empty.py"), snapshot=str(CodeSnapshot("ab" * 32)))).id
    finish(site, started(site, job, b"", card=1), Ending.from_status(0), GIB // 2)
    site.record()
    page = open_page(site, f"jobs/{job}")
    page.route("**/files?run=*", lambda route: route.fulfill(body=b"\0" * 1024, content_type="application/x-tar"))
    page.get_by_role("button", name="Download its files").click()
    page.get_by_text("This run has made or changed no file in its copy of the code.").wait_for()


@pytest.mark.full
def test_an_admin_reserves_a_device_for_a_user_and_cancels_it(lively: ServedSite, open_page: Open) -> None:
    """The dialog says why a second reservation at the same time is refused, and lists what is reserved."""
    page = open_page(lively)
    button = page.get_by_role("button", name="Reserve GPU 1 of nodeA…")
    dialog = page.get_by_role("dialog")
    for ends, awaited in (
        ("2031-03-01T08:00", page.get_by_text(re.compile("reserved for bob from"))),
        ("2031-02-28T19:00", dialog.get_by_text(re.compile("nodeA:1 is reserved then, by reservation"))),
    ):
        button.click()
        dialog.get_by_label("From").fill("2031-02-28T18:00")
        dialog.get_by_label("Until").fill(ends)
        dialog.get_by_label("For").fill("bob")
        dialog.get_by_label("Reason").fill("course <b>")
        dialog.get_by_role("button", name="Reserve GPU 1 of nodeA").click()
        awaited.wait_for()
    picture(page, "reserved")
    with lively.client("unix") as owner:
        (made,) = owner.devices.reservations()
        assert (("bob",), "course <b>", ("GPU-nodeA-1",)) == (made.users, made.why, made.devices)
        dialog.get_by_text("for bob from").wait_for()
        dialog.get_by_role("button", name=f"Cancel reservation {made.id}").click()
        page.get_by_text("reserved for bob").wait_for(state="detached")
        assert () == tuple(owner.devices.reservations())


@pytest.mark.full
def test_others_see_no_button_to_drain(open_page: Open) -> None:
    """Where only administrators may drain, the page offers it to nobody else."""
    with serving(GPUQUEUE_ACCESS="drain=admins") as site:
        page = open_page(site, token="bobs")
        page.get_by_role("heading", name="nodeA").wait_for()
        assert 0 == page.get_by_role("button", name=re.compile("^(Drain|Resume|Reserve)")).count()


@pytest.mark.full
def test_the_form_submits_a_sweep_after_another_job(played: tuple[ServedSite, JobScene], open_page: Open) -> None:
    """An array, its members at once and its dependencies; a wrong one is named at its field."""
    site, scene = played
    page = open_page(site, "submit")
    page.get_by_label("Script", exact=True).set_input_files(SCRIPT)
    page.get_by_label("Memory on each device").fill("1G")
    page.get_by_label("Arguments").fill("--lr {lr} --seed {seed}")
    page.get_by_text("Arrays, other jobs first, notifications").click()
    page.get_by_label("Sweep").fill("lr=1e-3,1e-4\nseed=0..1")
    page.get_by_label("Members at once, at most").fill("many")
    page.get_by_label("After these jobs").fill(str(scene.running))
    page.get_by_role("button", name="Submit").click()
    page.get_by_text("is no number of members at once").wait_for()
    page.get_by_label("Members at once, at most").fill("2")
    picture(page, "submit-array")
    page.get_by_role("button", name="Submit").click()
    page.wait_for_url(re.compile(r"#/jobs/\d+"))
    job = int(page.url.rpartition("/")[2])
    with site.client("unix") as owner:
        spec = owner.jobs.get(job).spec
        assert spec.array is not None
        assert (4, 2, [scene.running]) == (
            len(spec.array),
            spec.array.at_once,
            [each.job_id for each in spec.waits.after],
        )
        owner.jobs.cancel(job)


@pytest.mark.full
def test_a_form_is_kept_while_one_looks_elsewhere_and_over_a_sign_in(lively: ServedSite, open_page: Open) -> None:
    """The file too. The page says why one signs in again, and a sign-out forgets all."""
    page = open_page(lively, "submit")
    page.get_by_label("Script", exact=True).set_input_files(SCRIPT)
    page.get_by_label("Memory on each device").fill("7G")
    page.get_by_role("link", name="Queue").click()
    page.locator("tr.job").first.wait_for()
    page.get_by_role("link", name="Submit", exact=True).click()
    page.get_by_text("Chosen: sweep.py").wait_for()
    page.context.clear_cookies()
    page.get_by_role("button", name="Submit", exact=True).click()
    page.get_by_text("Your session is over").wait_for()
    picture(page, "session-over")
    sign_in(page, mine(lively, "mine"))
    page.get_by_text("Chosen: sweep.py").wait_for()
    assert "7G" == page.get_by_label("Memory on each device").input_value()
    page.get_by_role("button", name="Sign out").click()
    page.get_by_text("You are signed out.").wait_for()
    sign_in(page, mine(lively, "mine"))
    page.get_by_label("Memory on each device").wait_for()
    assert "" == page.get_by_label("Memory on each device").input_value()


@pytest.mark.full
def test_the_form_comes_when_the_service_is_back(lively: ServedSite, open_page: Open) -> None:
    """Regression: the form asked once, and a reload was needed. One banner says what does not answer."""
    page = open_page(lively)
    page.get_by_role("heading", name="nodeA").wait_for()
    lively.kill()
    page.get_by_text("The service does not answer.").wait_for()
    page.get_by_text(re.compile("No news for")).wait_for()
    assert 1 == page.get_by_role("alert").count()
    page.get_by_role("link", name="Submit", exact=True).click()
    lively.start()
    page.get_by_label("Memory on each device").wait_for()
    page.get_by_text("The service does not answer.").wait_for(state="detached")


@pytest.mark.full
def test_a_token_is_revoked_from_the_page(lively: ServedSite, open_page: Open) -> None:
    """The list has the person's tokens, and the one of this page signs it out."""
    with lively.client("unix") as owner:
        label = owner.access.make_token(TokenRequest(name="an old laptop")).token.id
        page = open_page(lively, "account")
        page.get_by_role("row", name=re.compile("an old laptop")).wait_for()
        page.get_by_role("button", name=f"Revoke token {label}…").click()
        page.get_by_role("dialog").get_by_role("button", name=f"Revoke {label}").click()
        page.get_by_text(f"Token {label} is revoked.").wait_for()
        revoked = {each.id: each.revoked_at for each in owner.access.tokens()}
        assert revoked[label] is not None


@pytest.mark.full
def test_the_service_searches_the_whole_output(played: tuple[ServedSite, JobScene], open_page: Open) -> None:
    """The page holds the last lines only. A match of the beginning is found and shown, and addresses are links."""
    site, _ = played
    job = site.queue.requests.submit(_small("long.py")).id
    first = b"the needle is here, see https://example.org/runs/7.\n"
    text = first + b"".join(b"line %d of many\n" % at for at in range(9000))
    finish(site, started(site, job, text, card=1), Ending.from_status(0), GIB // 2)
    site.record()
    page = open_page(site, f"jobs/{job}")
    page.locator(".log-lines").get_by_text("line 8999 of many").wait_for()
    page.get_by_label("Search the output").fill("Needle")
    page.get_by_text("not found").wait_for()
    page.get_by_role("button", name="Search the whole output").click()
    page.get_by_text("1 line has it, of the whole output.").wait_for()
    picture(page, "log-search")
    page.get_by_role("button", name=re.compile("the needle is here")).click()
    page.locator(".line.found", has_text="the needle is here").wait_for()
    link = page.locator(".log-lines").get_by_role("link")
    until(lambda: link.first.get_attribute("href") == "https://example.org/runs/7", what="the address")
    page.get_by_label("Search the output").fill("")
    page.reload()
    page.locator(".log-lines").get_by_text("line 8999 of many").wait_for()
    page.get_by_role("button", name="Beginning").click()
    page.locator(".log-lines").get_by_text("the needle is here").wait_for()


@pytest.mark.full
def test_the_queue_is_sorted_by_the_place_in_line(lively: ServedSite, open_page: Open) -> None:
    """Jobs of higher priority and of users with less usage come first, and what runs is above them."""
    page = open_page(lively, "queue?sort=place&state=queued")
    page.locator("tr.job").first.wait_for()
    assert "high" == page.locator("td.priority").first.inner_text()
    assert page.get_by_role("columnheader", name=re.compile("why it waits")).get_attribute("aria-sort") == "ascending"


@pytest.mark.full
def test_selecting_a_row_moves_nothing(lively: ServedSite, open_page: Open) -> None:
    """The bar with the acts has its place before anything is selected."""
    page = open_page(lively, "queue")
    page.locator("tr.job").first.wait_for()
    row = page.locator("tr.job").nth(2)
    before = row.bounding_box()
    row.get_by_role("checkbox").click()
    page.get_by_text("1 job selected").wait_for()
    assert before == row.bounding_box()


@pytest.mark.full
@pytest.mark.parametrize("view", VIEWS)
def test_a_phone_needs_no_sideways_scrolling(played: tuple[ServedSite, JobScene], open_page: Open, view: str) -> None:
    """All is within the width of a phone, also of a small one."""
    page = open_page(played[0], view, viewport=PHONE, has_touch=True, is_mobile=True, device_scale_factor=2)
    complete(page, view)
    for width in (PHONE["width"], 320):
        page.set_viewport_size({"width": width, "height": 844})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    picture(page, f"{view}-phone")
