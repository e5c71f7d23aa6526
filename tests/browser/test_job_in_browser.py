"""The view of one job in a real browser: its story, its output, its memory, and what can be done with it."""

from __future__ import annotations

import re
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from bounded import until
from browser_pages import Open, picture, violations
from factories import make_spec
from job_scene import JobScene, finish, started
from page_scene import HOSTILE, ME
from service_fixtures import ServedSite

from gpuqueue.client import Client
from gpuqueue.codec import figures_file
from gpuqueue.model.array import Array
from gpuqueue.model.device import Timeline
from gpuqueue.model.job_values import JobValues, Metric, Reported
from gpuqueue.model.run import Ending
from gpuqueue.model.run_figures import RunFigures
from gpuqueue.model.run_mark import MarkKind
from gpuqueue.text.sanitize import plain
from gpuqueue.text.units import GIB

if TYPE_CHECKING:
    from playwright.sync_api import Page

SCRIPT = "<script>alert('log')</script>"
#: The words for 4800 seconds, and for some minutes more on a slow machine.
LONG_IDLE = re.compile(r"[Ii]dle for 1h 2\dm")


def steps(page: Page) -> list[str]:
    """Return the steps of the story."""
    return [each.split("\n")[-1] for each in page.locator(".timeline li").all_inner_texts()]


def at_end(page: Page) -> bool:
    """Return whether the end of the output is in sight."""
    return bool(page.locator(".log-lines").evaluate("box => box.scrollHeight - box.scrollTop - box.clientHeight < 13"))


@pytest.mark.full
def test_a_job_shows_its_whole_story(played: tuple[ServedSite, JobScene], open_page: Open) -> None:
    """From the queue to the job: its runs, its waits, its verdict, and its output, in which markup is text."""
    site, scene = played
    page = open_page(site, "queue")
    page.locator("tr.job").get_by_role("link", name=str(scene.running), exact=True).click()
    page.get_by_role("heading", name=f"Job {scene.running}").wait_for()
    page.goto(f"https://127.0.0.1:{site.port}/#/jobs/{scene.ended}")
    page.get_by_text("Asked 12G, used 7G at most: 9.2G would do (the last run peaked at 7G).").wait_for()
    page.get_by_text("run 2 ended: exit 0").wait_for()
    story = " | ".join(steps(page))
    for words in ("submitted by", "run 1 claimed by nodeA", "it holds 12.1G", "run 1 ended: exit 1", "queued again"):
        assert words in story
    log = page.locator(".log-lines")
    log.get_by_text(SCRIPT).wait_for()
    assert 0 == log.locator("script, img").count()
    assert "train:  45%|####5     | 45/100 [00:12<00:15,  3.60it/s]" == log.locator(".line").last.inner_text()
    assert "Error" == log.locator(".t-fg1").first.inner_text()
    assert page.locator(".memory path.series").first.get_attribute("d")


@pytest.mark.full
def test_nothing_of_a_hostile_job_is_markup(played: tuple[ServedSite, JobScene], open_page: Open) -> None:
    """Name, command and output are text, for an admin who sees all of them."""
    site, scene = played
    page = open_page(site, f"jobs/{scene.hostile}")
    page.locator(".command").wait_for()
    assert plain(HOSTILE) in page.get_by_role("heading", level=1).inner_text()
    assert f"ended 1 process that was still running: {plain(HOSTILE)};" in page.locator(".banner").inner_text()
    assert "\u202e" not in page.content()
    assert 0 == page.locator("main img, main script").count()
    page.locator(".failure").get_by_role("button", name="Run again…").click()
    page.get_by_role("dialog").wait_for()
    picture(page, "job-again")


@pytest.mark.full
def test_a_refusal_stays_in_its_dialog(played: tuple[ServedSite, JobScene], open_page: Open) -> None:
    """What was typed stays, with the reason beside it, and goes along to the form."""
    site, scene = played
    page = open_page(site, f"jobs/{scene.hostile}")
    page.locator(".job-actions").get_by_role("button", name="Run again…").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_text("It runs the files in ").wait_for()
    memory = dialog.get_by_label("Memory")
    memory.fill("abc")
    page.keyboard.press("Enter")
    dialog.get_by_role("alert").get_by_text("'abc' is not a size").wait_for()
    assert ("abc", "true") == (memory.input_value(), memory.get_attribute("aria-invalid"))
    picture(page, "job-again-refused")
    memory.fill("3G")
    dialog.get_by_role("link", name="Change its arguments or more…").click()
    field = page.get_by_label("Memory on each device")
    field.wait_for()
    assert "3G" == field.input_value()


@pytest.mark.full
def test_the_output_is_searched_and_kept(played: tuple[ServedSite, JobScene], open_page: Open, tmp_path: Path) -> None:
    """A search goes from match to match, lines wrap or not, standard error is apart, and all of it is a file."""
    site, scene = played
    page = open_page(site, f"jobs/{scene.ended}")
    log = page.locator(".log-lines")
    log.get_by_text("step 120: loss").wait_for()
    page.keyboard.press("/")
    page.keyboard.type("STEP 4")
    page.get_by_text("1 of 11 lines").wait_for()
    assert "step 4: loss 0.2500" == page.locator(".line.found").inner_text()
    page.keyboard.press("Enter")
    page.keyboard.press("Enter")
    until(lambda: page.locator(".line.found").inner_text() == "step 41: loss 0.0244", what="the third match")
    box, line = log.bounding_box(), page.locator(".line.found").bounding_box()
    assert box
    assert line
    assert box["y"] < line["y"] < box["y"] + box["height"]
    picture(page, "job-search")
    wide = "box => box.scrollWidth > box.clientWidth"
    assert not log.evaluate(wide)
    page.get_by_label("Wrap").uncheck()
    assert log.evaluate(wide)
    page.get_by_label("Wrap").check()
    with page.expect_download() as begun:
        page.get_by_role("button", name="Download").click()
    begun.value.save_as(tmp_path / "log.txt")
    assert (f"job-{scene.ended}-run-2.log.txt", True) == (
        begun.value.suggested_filename,
        (tmp_path / "log.txt").read_bytes().startswith(b"\x1b]0;a title"),
    )
    page.get_by_label("Search the output").fill("")
    page.get_by_role("button", name="Errors").click()
    until(lambda: "a warning" in log.inner_text(), what="standard error")
    page.get_by_role("button", name="Run 1").click()
    page.get_by_role("heading", name="Output of run 1").wait_for()
    until(lambda: "loading" in log.inner_text(), what="the output of the first run")


@pytest.mark.full
def test_new_output_is_followed_and_leaves_a_reader_alone(played: tuple[ServedSite, JobScene], open_page: Open) -> None:
    """At the end new lines come into sight. Who has scrolled up keeps the place, and comes back with one button."""
    site, scene = played
    page = open_page(site, f"jobs/{scene.running}")
    log = page.locator(".log-lines")
    log.get_by_text("step 120: loss").wait_for()
    path = next((site.settings.runs_dir / str(scene.running)).glob("*/log"))

    def write(text: str) -> None:
        with path.open("a", encoding="utf-8") as output:
            output.write(text)

    until(lambda: at_end(page), what="the end")
    write("\rtrain:  46%\x1b[K\nfirst new line\n")
    log.get_by_text("first new line").wait_for()
    until(lambda: at_end(page), what="the new end")
    assert 1 == log.get_by_text("train:  46%", exact=True).count()
    log.evaluate("box => { box.scrollTop = 300; }")
    page.get_by_role("button", name="Follow", pressed=False).wait_for()
    write("second new line\n")
    until(lambda: "second new line" in (log.text_content() or ""), what="the second line")
    assert 300 == log.evaluate("box => box.scrollTop")
    page.get_by_role("button", name="Follow").click()
    until(lambda: at_end(page), what="the end again")


@pytest.mark.full
def test_memory_is_drawn_while_it_is_used(played: tuple[ServedSite, JobScene], open_page: Open) -> None:
    """The samples since the page was opened, beside what was asked for, and the load."""
    site, scene = played
    page = open_page(site, f"jobs/{scene.running}")
    until(lambda: len(page.locator(".memory path.series").first.get_attribute("d") or "") > 60, what="some samples")
    assert page.get_by_text("asked for 12G, the most it may use").is_visible()
    assert page.get_by_role("img", name="Utilisation over time").is_visible()
    assert page.get_by_text("Since this page was opened").is_visible()
    picture(page, "job-running")


@pytest.mark.full
def test_a_run_that_goes_on_has_a_past_and_its_metrics(played: tuple[ServedSite, JobScene], open_page: Open) -> None:
    """They are there when the page is opened: its worker has written them. A loss that is negative is drawn, too."""
    site, scene = played
    directory = next((site.settings.runs_dir / str(scene.running)).glob("*/log")).parent
    (device,) = use_of(site, scene.running)
    curve = tuple((60.0 * at, at, 0.9 - 0.1 * at) for at in range(20))
    loss = Metric(name="loss", count=20, last=Reported(value=-1.0, after_s=1140.0), curve=curve)
    past = Timeline(step_s=60.0, bytes=tuple(GIB * min(each, 6) for each in range(20)))
    figures = RunFigures(timelines={device: past}, values=JobValues(metrics=(loss,)))
    (directory / figures_file.NAME).write_text(figures_file.written(figures))

    page = open_page(site, f"jobs/{scene.running}", bypass_csp=True)
    page.locator(".metrics").get_by_role("row", name="loss").wait_for()
    page.locator(".metrics svg path.series").wait_for()
    line = page.locator(".memory path.series").first
    until(lambda: (line.get_attribute("d") or "").count("V") >= 6, what="the past")  # a step for each GiB
    assert {} == violations(page)
    picture(page, "job-figures")
    (directory / figures_file.NAME).unlink()


def use_of(site: ServedSite, job: int) -> list[str]:
    """Return the devices of the last run of a job."""
    record = site.queue.jobs.record(job)
    assert record is not None
    assert record.last_run is not None
    return [each.uuid for each in record.last_run.devices]


@pytest.mark.full
def test_a_waiting_job_says_why_and_is_changed(played: tuple[ServedSite, JobScene], open_page: Open) -> None:
    """It names what is in the way; hold, release, priority and cancel work from here, and are seen at once."""
    site, scene = played
    page = open_page(site, f"jobs/{scene.after}")
    page.locator(".why li").get_by_text(f"job {scene.running}").wait_for()
    page.locator(".why li").get_by_text("has succeeded: it is running").wait_for()
    page.get_by_text("must have succeeded").wait_for()
    picture(page, "job-waiting-for-jobs")
    page.goto(f"https://127.0.0.1:{site.port}/#/jobs/{scene.waiting}")
    page.locator(".why").get_by_text(re.compile(r"^\S+ too little: ")).first.wait_for()
    page.locator(".why li").get_by_text(re.compile("^(by|unknown:) ")).first.wait_for()
    page.locator(".why .need").get_by_text(f"job {scene.waiting} ").wait_for()
    picture(page, "job-waiting")
    page.get_by_role("button", name="Hold").click()
    page.locator(".job-state", has_text="held").wait_for()
    page.get_by_role("button", name="Release").click()
    page.locator(".job-state", has_text="queued").wait_for()
    page.get_by_label("Priority").select_option("low")
    page.get_by_text("Its priority is low now.").wait_for()
    page.get_by_role("button", name="Note…").click()
    page.get_by_role("dialog").wait_for()
    page.keyboard.press("Escape")
    until(lambda: page.evaluate("document.activeElement.textContent") == "Note…", what="the focus")
    page.get_by_role("heading", level=1).click()
    page.keyboard.press("c")
    page.get_by_role("dialog").get_by_role("button", name=f"Cancel {scene.waiting}").click()
    page.locator(".job-state", has_text="cancelled").wait_for()
    page.get_by_role("button", name="Run again…").click()
    page.get_by_role("dialog").get_by_label("Memory").fill("10G")
    page.get_by_role("dialog").get_by_role("button", name="Run it again").click()
    page.get_by_role("link", name=re.compile("^job ")).click()
    page.locator(".job-head").get_by_text(f"It runs job {scene.waiting} again.").wait_for()
    page.get_by_text(re.compile("^10G on 1 ")).wait_for()
    label = page.url.rpartition("/")[2]
    site.record()
    page.locator(".job-head").get_by_role("link", name=f"job {scene.waiting}").click()
    page.get_by_text("It was run again as").wait_for()
    page.locator(".job-head").get_by_role("link", name=f"job {label}").click()
    page.get_by_text(f"It runs job {scene.waiting} again.").wait_for()


@pytest.mark.full
def test_an_array_shows_its_members(played: tuple[ServedSite, JobScene], open_page: Open) -> None:
    """A cell for each by its state, and a table that is sorted by a value of the sweep."""
    site, scene = played
    page = open_page(site, f"jobs/{scene.sweep}")
    page.locator(".member-rows tbody tr").first.wait_for()
    assert (30, 4, 1, 2) == tuple(
        page.locator(f".heat .cell{kind}").count() for kind in ("", ".succeeded", ".failed", ".running")
    )
    page.locator(".job-state").get_by_text("5 of 30 members ended, 1 failed, 2 running, 23 held").wait_for()
    page.locator(".member-rows .progress").wait_for()
    picture(page, "job-array")
    table = page.locator(".member-rows")
    table.get_by_role("button", name="lr").click()
    until(lambda: table.locator("tbody td:nth-child(4)").first.inner_text() == "1e-4", what="the order")
    table.get_by_role("button", name="lr").click()
    until(lambda: table.locator("tbody td:nth-child(4)").first.inner_text() == "1e-2", what="the other order")
    page.get_by_role("button", name="running 2").click()
    until(lambda: table.locator("tbody tr").count() == 2, what="the filter")
    page.get_by_role("button", name="all 30").click()
    page.locator(".heat .cell.failed").click()
    page.get_by_role("heading", name=f"Job {scene.sweep}_2").wait_for()
    page.locator(".job-facts").get_by_text("lr=1e-2").wait_for()


@pytest.mark.full
def test_a_metric_colours_the_map(played: tuple[ServedSite, JobScene], open_page: Open) -> None:
    """Each member has its value, the least and the largest are named, and the table is sorted by it."""
    site, scene = played
    page = open_page(site, f"jobs/{scene.sweep}", bypass_csp=True)
    page.get_by_label("Colour").select_option("loss")
    until(lambda: page.locator(".heat .cell.measured").all_inner_texts() == ["0.5", "0.25", "0.75", "1"], what="values")
    assert [f"{scene.sweep}_1", f"{scene.sweep}_4"] == page.locator(".scale a").all_inner_texts()
    assert {} == violations(page)
    page.locator(".member-rows").get_by_role("button", name="loss").click()
    until(lambda: page.locator(".member-rows tbody th").first.inner_text() == "1", what="the order")
    picture(page, "job-array-metric")


@pytest.mark.full
def test_chosen_members_are_cancelled_and_run_again(played: tuple[ServedSite, JobScene], open_page: Open) -> None:
    """Each as far as it can be: those that have not ended, and those that failed."""
    site, scene = played
    page = open_page(site, f"jobs/{scene.sweep}")
    bar = page.get_by_role("region", name="Chosen members")
    for index in (0, 2, 9, 10):
        page.get_by_label(f"Choose member {index}", exact=True).check()
    bar.get_by_text("4 members chosen").wait_for()
    bar.get_by_role("button", name="Cancel 2…").click()
    page.get_by_role("dialog").get_by_text(f"{scene.sweep}_9-10: those that run are ended").wait_for()
    page.get_by_role("dialog").get_by_role("button", name="Cancel 2 members").click()
    page.get_by_text("Cancelled: 2 members.").wait_for()
    until(lambda: page.locator(".heat .cell.cancelled").count() == 2, what="the states")
    page.get_by_label("Choose member 2", exact=True).check()
    bar.get_by_role("button", name="Run again…").click()
    page.get_by_role("dialog").get_by_text("becomes a new job of yours").wait_for()
    page.get_by_role("dialog").get_by_role("button", name="Run it again").click()
    again = page.get_by_text("It runs again as job ").get_by_role("link").inner_text()
    with site.client("direct") as client:
        client.jobs.cancel(int(again.removeprefix("job ")))


@pytest.mark.full
def test_an_array_that_has_ended_says_how(played: tuple[ServedSite, JobScene], open_page: Open) -> None:
    """Regression: it "failed before it started", and had "not started of 1G" in the history."""
    site, _ = played
    array = site.queue.requests.submit(
        make_spec(account=ME, name="pair.py", mem_bytes=GIB, array=Array.parse("0-1"))
    ).id
    for index, status in enumerate((0, 1)):
        finish(site, started(site, array + 1 + index, b"", card=1), Ending.from_status(status), GIB // 2)
    site.record()

    page = open_page(site, f"jobs/{array}")
    page.locator(".job-state").get_by_text("1 succeeded, 1 failed").wait_for()
    page.goto(f"https://127.0.0.1:{site.port}/#/history")
    row = page.get_by_role("row").filter(has=page.get_by_role("link", name=str(array), exact=True))
    row.get_by_text("1G for each member").wait_for()


@pytest.mark.full
def test_others_see_what_they_may(played: tuple[ServedSite, JobScene], open_page: Open) -> None:
    """A colleague sees state, memory and times; no command, no output and no button."""
    site, scene = played
    page = open_page(site, f"jobs/{scene.ended}", token="bobs")
    page.get_by_text("and administrators read it").wait_for()
    page.get_by_text("run 2 ended: exit 0").wait_for()
    assert 0 == page.get_by_role("button", name=re.compile("Cancel|Hold|Run again")).count()
    assert "train.py --lr" not in page.locator("main").inner_text()
    picture(page, "job-of-another")


@pytest.mark.full
def test_a_job_that_does_not_exist_is_named(played: tuple[ServedSite, JobScene], open_page: Open) -> None:
    """With a way back."""
    site, _ = played
    page = open_page(site, "jobs/99999")
    page.get_by_text("there is no job 99999").wait_for()
    page.get_by_role("link", name="Show the queue").click()
    page.locator("tr.job").first.wait_for()


@pytest.mark.full
def test_a_note_is_written(played: tuple[ServedSite, JobScene], open_page: Open) -> None:
    """Also on a job that has ended. It is text, and an empty one is removed."""
    site, scene = played
    page = open_page(site, f"jobs/{scene.ended}")
    for text in ("best so far: <b>0.412</b>", ""):
        page.get_by_role("button", name="Note…").click()
        page.get_by_role("dialog").get_by_label("Note", exact=True).fill(text)
        page.get_by_role("dialog").get_by_role("button", name="Save").click()
        page.get_by_text(f"The note is {'saved' if text else 'removed'}.").wait_for()
        site.record()
        until(
            lambda text=text: [text][: len(text)] == page.locator(".job-note-text").all_inner_texts(), what="the note"
        )  # type: ignore[misc]


@pytest.mark.full
def test_a_job_gets_more_time(played: tuple[ServedSite, JobScene], open_page: Open) -> None:
    """A time that is none is refused in the dialog. A job without a time limit has no such button."""
    site, _ = played
    with site.client("unix") as admin:
        job, endless = (admin.jobs.submit(["true"], mem="1M", time_limit=each, hold=True).id for each in ("1h", None))
    page = open_page(site, f"jobs/{job}")
    page.get_by_role("button", name="More time…").click()
    for text, said in (("soon", "is not a duration"), ("2h", "Its time limit is 3h now.")):
        page.get_by_role("dialog").get_by_label("Time to add").fill(text)
        page.get_by_role("dialog").get_by_role("button", name="Save").click()
        page.get_by_text(said).wait_for()
    page = open_page(site, f"jobs/{endless}")
    page.get_by_role("button", name="Note…").wait_for()
    assert 0 == page.get_by_role("button", name="More time…").count()


@pytest.mark.full
def test_tags_are_edited(played: tuple[ServedSite, JobScene], open_page: Open) -> None:
    """One is added and one removed. A word that is no tag is refused, and nothing changes."""
    site, scene = played
    page = open_page(site, f"jobs/{scene.running}")
    tags = page.locator(".job-facts .tag")

    def write(text: str) -> None:
        if not page.get_by_role("dialog").count():  # after a refusal it is still open
            page.get_by_role("button", name="Tags…").click()
        page.get_by_role("dialog").get_by_label("Tags", exact=True).fill(text)
        page.get_by_role("dialog").get_by_role("button", name="Save").click()

    for text, said in (
        ("paper, <b>baseline</b>", "is no tag"),
        ("paper baseline", "Tagged baseline. No longer tagged night."),
        ("night paper", "Tagged night. No longer tagged baseline."),
    ):
        write(text)
        page.get_by_text(said).wait_for()
        kept = {"paper", "night"} if "<" in text else {*text.split()}
        until(lambda kept=kept: {*tags.all_inner_texts()} == kept, what="the tags")  # type: ignore[misc]


@pytest.mark.full
def test_an_idle_job_is_marked_everywhere(played: tuple[ServedSite, JobScene], open_page: Open) -> None:
    """On its page with what happens next, on the overview, in the queue, and no longer once it uses its device."""
    site, scene = played
    token = next((site.settings.runs_dir / str(scene.running)).glob("*/log")).parent.name
    words = "no use of its device for 1:20:00, and 12G are allocated to it: it is ended in 0:40:00 unless it uses it"

    def mark(stage: int) -> None:
        site.queue.runs.mark(scene.running, token, MarkKind.IDLE, stage=stage, for_s=4800.0, detail=words)
        site.record()

    page = open_page(site, f"jobs/{scene.running}")
    mark(1)
    page.get_by_text(LONG_IDLE).first.wait_for()
    page.locator(".idle-mark").get_by_text("it is ended in 0:40:00").wait_for()
    picture(page, "job-idle")
    page.get_by_role("link", name="Devices").click()
    page.get_by_role("heading", name="1 job holds 12G and uses no device").wait_for()
    page.locator(".runs").get_by_text(LONG_IDLE).wait_for()
    picture(page, "overview-idle")
    page.get_by_role("link", name="Queue").click()
    page.get_by_role("checkbox", name=re.compile("^Idle")).check()
    until(lambda: page.locator("tr.job th.id").all_inner_texts() == [str(scene.running)], what="the filter")
    assert LONG_IDLE.search(page.locator("tr.job .story").inner_text())
    picture(page, "queue-idle")
    mark(0)
    page.get_by_text("matches these filters").wait_for()


@pytest.mark.full
def test_a_marked_job_says_so_on_its_page_and_in_the_queue(
    played: tuple[ServedSite, JobScene], open_page: Open
) -> None:
    """The words are those of the API. The mark stays on the page when it is over, as a part of the run."""
    site, scene = played
    token = next((site.settings.runs_dir / str(scene.running)).glob("*/log")).parent.name

    def mark(stage: int) -> None:
        what = "loss is NaN at step 1200"
        site.queue.runs.mark(scene.running, token, MarkKind.NAN, stage=stage, for_s=4800.0, what=what, detail=what)
        site.record()

    page = open_page(site, f"jobs/{scene.running}")
    mark(1)
    page.locator(".marks").get_by_text("loss is NaN at step 1200").wait_for()
    picture(page, "job-marked")
    page.get_by_role("link", name="Queue").click()
    page.locator("tr.job .story").get_by_text("NaN for").wait_for()
    picture(page, "queue-marked")
    page.go_back()
    mark(0)
    page.locator(".marks").get_by_text("which is over").wait_for()


@pytest.mark.full
def test_a_failed_run_says_why(played: tuple[ServedSite, JobScene], open_page: Open) -> None:
    """The code, what it means, and the last errors, in which markup is text. The good run of the job says nothing."""
    site, scene = played
    page = open_page(site, f"jobs/{scene.ended}")
    page.get_by_role("button", name="Run 1").click()
    failure = page.locator(".failure")
    failure.get_by_text("The program stopped with an error.").wait_for()
    until(lambda: "Traceback" == failure.locator("pre").inner_text(), what="the last errors")
    page.get_by_role("button", name="Run 2").click()
    failure.wait_for(state="detached")
    page.goto(f"https://127.0.0.1:{site.port}/#/jobs/{scene.hostile}")
    page.get_by_text("Something outside of the queue killed it.").wait_for()
    assert 0 == failure.locator("script, img").count()
    picture(page, "job-failed")


@pytest.mark.full
def test_the_difference_from_the_commit_is_shown(
    played: tuple[ServedSite, JobScene], open_page: Open, tmp_path: Path
) -> None:
    """The code of a job that was changed after its commit, line by line, and markup in it is text."""
    site, _ = played
    (tmp_path / "train.py").write_text("lr = 1\n")
    for words in (("init", "-q"), ("add", "-A"), ("commit", "-qm", "one")):
        git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b", *words]
        subprocess.run(git, check=True, capture_output=True)
    (tmp_path / "train.py").write_text("lr = '<b>2</b>'\n")
    with Client(replace(site.client("https").settings, snapshot=True)) as client:
        job = client.jobs.submit("train.py", mem="1M", cwd=tmp_path, hold=True)
    page = open_page(site, f"jobs/{job.id}")
    page.get_by_role("button", name="Show the changes").click()
    page.locator(".d-add", has_text="+lr").wait_for()
    assert (["-lr = 1"], ["+lr = '<b>2</b>'"]) == (
        page.locator(".d-del").all_inner_texts(),
        page.locator(".d-add").all_inner_texts(),
    )
    picture(page, "job-diff")
