"""What the page asks about one job, at a real service: each caller sees its part, and nothing is sent twice."""

from __future__ import annotations

import http.client
import json
import ssl
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest
from bounded import until
from factories import make_offer, must_claim, serve
from service_fixtures import ServedSite, ask, mine, serving

from gpuqueue.client import Client
from gpuqueue.codec import figures_file
from gpuqueue.model.device import Health, Peak, PeakSource, Timeline
from gpuqueue.model.job import Job, JobState
from gpuqueue.model.job_values import JobValues, Metric, Reported
from gpuqueue.model.run import Ending, EndingKind, RunDevice
from gpuqueue.model.run_figures import RunFigures
from gpuqueue.model.run_mark import MarkKind
from gpuqueue.queue.lease import Alive, Claim
from gpuqueue.service.routes.logs import MOST_BYTES
from gpuqueue.text.units import GIB

USED = RunDevice(
    uuid="GPU-0",
    lease_bytes=GIB,
    peak=Peak(bytes=GIB // 4, source=PeakSource.NVML_SAMPLED, samples=99, interval_s=0.5),
    timeline=Timeline(step_s=0.5, bytes=(1, None, GIB // 4)),
)


@pytest.fixture
def owner(served: ServedSite) -> Iterator[Client]:
    """Return a client of this account. Nothing is open."""
    with served.client("direct") as direct:
        for each in direct.jobs.list():
            direct.jobs.cancel(each.id)
    serve(served.queue)
    with served.client("unix") as client:
        yield client


def seen(served: ServedSite, path: str, token: str = "mine") -> Any:
    """Return the answer for the owner of a token."""
    status, found = ask(served, path, mine(served, token))
    assert 200 == status, found
    return found


def started(served: ServedSite, job_id: int, text: bytes = b"") -> Claim:
    """Let the next job, which must be this one, run with *text* in its log."""
    claim = must_claim(served.queue)
    assert job_id == claim.job_id
    log = served.settings.runs_dir / str(job_id) / claim.token / "log"
    log.parent.mkdir(parents=True)
    log.write_bytes(text)
    served.queue.runs.started(job_id, claim.token, lease_s=300, log_path=str(log), devices=(USED,))
    return claim


def report(served: ServedSite, claim: Claim, figures: RunFigures) -> None:
    """Write what a run has used and reported so far, as its worker does."""
    directory = served.settings.runs_dir / str(claim.job_id) / claim.token
    (directory / figures_file.NAME).write_text(figures_file.written(figures))


def finish(served: ServedSite, claim: Claim, status: int = 0, **more: Any) -> None:
    """End a run, and let the history have all of it."""
    state = JobState.FAILED if status else JobState.SUCCEEDED
    ended = {"ending": Ending.from_status(status), "duration_s": 1.5, "devices": (USED,), **more}
    served.queue.runs.finish(claim.job_id, claim.token, state=state, **ended)
    served.record()


def submitted(client: Client, **changes: Any) -> Job:
    """Submit a job whose command is private."""
    return client.jobs.submit(["true", "private"], mem="1G", env={"KEY": "private"}, **changes)


def test_a_job_has_its_story_and_a_verdict(owner: Client, served: ServedSite) -> None:
    """An ended job has its runs with their memory over time, and what it used of what it asked for."""
    job = submitted(owner, name="train", tags=["night"])
    finish(served, started(served, job.id))
    view = seen(served, f"/jobs/{job.id}/view")
    run = view["record"]["runs"][0]
    assert [1, None, GIB // 4] == run["devices"][0]["timeline"]["bytes"]
    assert "asked 1G, used 256M at most: 576M would do (the last run peaked at 256M)" == view["verdict"]
    assert {"change": True, "retry": True, "logs": True, "arguments": True} == view["rights"]
    assert view["asked"].startswith("1G on 1 ")
    assert ("true private", {}) == (view["command"], view["failures"])
    first, *_, last = (each["words"] for each in seen(served, f"/jobs/{job.id}/story"))
    assert first.startswith("submitted by ")
    assert "run 1 ended: exit 0" == last
    assert ("", None) == (run["token"], view["away"])
    live = seen(served, f"/jobs/{job.id}/live")
    assert (None, None, []) == (live["row"], live["place"], live["devices"])


def test_what_a_job_does_now(owner: Client, served: ServedSite) -> None:
    """A waiting job has a place, a running one the use of its devices."""
    one, two = submitted(owner), submitted(owner)
    assert 1 == seen(served, f"/jobs/{two.id}/live")["place"]["ahead"]
    claim = started(served, one.id)
    offer = make_offer(health=Health(utilisation=0.5), observed={one.id: 300})
    served.queue.devices.heartbeat(
        offer, [Alive(job_id=one.id, token=claim.token, observed={"GPU-0": 300})], lease_s=300
    )

    def uses() -> list[tuple[str, int, int, float]]:
        devices = seen(served, f"/jobs/{one.id}/live")["devices"]
        return [(each["uuid"], each["allocated_bytes"], each["used_bytes"], each["utilisation"]) for each in devices]

    until(lambda: uses() == [("GPU-0", GIB, 300, 0.5)], what="the use of the device")
    assert "running" == seen(served, f"/jobs/{one.id}/live")["row"]["state"]


def test_an_idle_run_is_marked(owner: Client, served: ServedSite) -> None:
    """In the queue and on its device. Its owner sees what happens next, others do not see the note."""
    busy, idle = submitted(owner), submitted(owner)
    started(served, busy.id)
    claim = started(served, idle.id)
    words = "no use of its device for 1:00:00, and 1G are allocated to it: it is ended in 1:00:00 unless it uses it"
    served.queue.runs.mark(idle.id, claim.token, MarkKind.IDLE, stage=1, for_s=3600.0, detail=words)
    served.record()

    def marked() -> list[int]:
        return [each["id"] for each in seen(served, "/queue-table?idle=true")["rows"]]

    until(lambda: marked() == [idle.id], what="the mark")
    since = seen(served, f"/jobs/{idle.id}/live")["row"]["idle_since"]
    assert since
    table = seen(served, "/queue-table")
    assert 1 == table["idle"]
    assert {busy.id, idle.id} <= {each["id"] for each in table["rows"]}
    runs = {each["job_id"]: each["idle_since"] for each in seen(served, "/overview")["devices"][0]["runs"]}
    assert (None, since) == (runs[busy.id], runs[idle.id])
    assert words == seen(served, f"/jobs/{idle.id}/view")["idle"]["text"]
    assert [None, None] == [
        seen(served, f"/jobs/{job}/view", token)["idle"] for job, token in ((idle.id, "bobs"), (busy.id, "mine"))
    ]


def test_a_marked_run_is_named_and_others_do_not_see_its_metric(owner: Client, served: ServedSite) -> None:
    """All who see the job see the mark, in words of the API."""
    job = submitted(owner)
    claim = started(served, job.id)
    what = "loss is NaN at step 3"
    served.queue.runs.mark(job.id, claim.token, MarkKind.NAN, stage=1, for_s=0.0, what=what, detail=what)
    served.record()

    def marks() -> list[str]:
        return [each["words"] for each in seen(served, f"/jobs/{job.id}/live")["row"]["marks"]]

    until(lambda: marks() == ["a metric is no number"], what="the mark")
    for token, words in (("mine", what), ("bobs", "a metric is no number")):
        record = seen(served, f"/jobs/{job.id}/view", token)["record"]
        assert [words] == [each["words"] for each in record["job"]["marks"]]
        assert [words] == [each["words"] for each in record["runs"][-1]["marks"]]


def test_a_failed_job_names_its_retries(owner: Client, served: ServedSite) -> None:
    """With their states; a job that was not run again names none."""
    job = submitted(owner, name="train")
    finish(served, started(served, job.id), status=256)
    again, other = owner.jobs.retry(job.id), submitted(owner, name="train")
    served.record()
    retries = seen(served, f"/jobs/{job.id}/view")["retries"]
    assert [(again.id, "train", "queued")] == [(each["id"], each["name"], each["state"]) for each in retries]
    for each in (again, other):
        owner.jobs.cancel(each.id)
    served.record()
    assert [] == seen(served, f"/jobs/{other.id}/view")["retries"]


def test_jobs_that_wait_for_each_other_are_named(owner: Client, served: ServedSite) -> None:
    """Both sides have a name and a state; an ended job too, which only the history knows."""
    first = submitted(owner, name="prepare", priority="high")
    finish(served, started(served, first.id))
    second = submitted(owner, name="train", hold=True)
    third = submitted(owner, name="evaluate", after=f"{first.id}:any,{second.id}")
    view = seen(served, f"/jobs/{third.id}/view")
    assert [
        {"id": first.id, "condition": "any", "name": "prepare", "state": "succeeded", "must": "must have ended"},
        {"id": second.id, "condition": "ok", "name": "train", "state": "held", "must": "must have succeeded"},
    ] == view["after"]
    before = seen(served, f"/jobs/{second.id}/view")["before"]
    assert [{"id": third.id, "condition": None, "name": "evaluate", "state": "queued", "must": ""}] == before


def test_others_see_no_argument_and_no_right(owner: Client, served: ServedSite) -> None:
    """A colleague sees state, memory and times, and the page learns what it need not offer."""
    job = submitted(owner, hold=True)
    view = seen(served, f"/jobs/{job.id}/view", "bobs")
    assert {"change": False, "retry": False, "logs": False, "arguments": False} == view["rights"]
    assert "private" not in json.dumps(view)
    story = seen(served, f"/jobs/{job.id}/story", "bobs")
    assert ["step", "wait"] == [each["kind"] for each in story]  # by the runs, of which there is none
    assert "private" not in json.dumps(story)
    assert 403 == ask(served, f"/jobs/{job.id}/log/file", mine(served, "bobs"))[0]
    assert job.id == seen(served, f"/jobs/{job.id}/live", "bobs")["row"]["id"]


def test_an_array_shows_its_members_with_their_values(owner: Client, served: ServedSite) -> None:
    """Members that wait, run and have ended, and the values of their sweep, which others do not see."""
    job = owner.jobs.submit(["true", "{lr}", "{seed}"], mem="1G", sweep=["lr=1e-3,1e-4", "seed=0..1"], env={})
    loss = Metric(name="loss", count=1, last=Reported(value=0.5, after_s=1.0))
    finish(served, started(served, job.id + 1), status=3, values=JobValues(metrics=(loss,)))
    so_far = RunFigures(values=JobValues(metrics=(replace(loss, last=Reported(value=0.25, after_s=1.0)),)))
    report(served, started(served, job.id + 2), so_far)
    path = f"/jobs/{job.id}/members"
    until(lambda: [each["state"] for each in seen(served, path)["rows"]][:2] == ["failed", "running"], what="the run")
    found = seen(served, path)
    assert (["lr", "seed"], 4, True) == (found["axes"], found["total"], found["sortable"])
    assert (["1e-3", "0"], 3, GIB // 4) == tuple(
        found["rows"][0][each] for each in ("values", "exit_code", "peak_bytes")
    )
    assert ["queued", "queued"] == [each["state"] for each in found["rows"]][2:]
    shown = seen(served, f"{path}?sort=value&axis=lr&limit=2&offset=1")
    assert [["1e-4", "1"], ["1e-3", "0"]] == [each["values"] for each in shown["rows"]]
    assert (["loss"], {"loss": 0.5}, job.id + 1) == (
        found["metrics"],
        *(found["rows"][0][each] for each in ("metrics", "id")),
    )
    assert {"loss": 0.25} == found["rows"][1]["metrics"], "a running member has what it has reported so far"
    by_loss = seen(served, f"{path}?sort=metric&axis=loss")
    assert [1, 0] == [each["index"] for each in by_loss["rows"]][:2]
    waiting = seen(served, f"{path}?state=queued")
    assert (2, {"queued": 2, "running": 1, "failed": 1}) == (waiting["total"], waiting["counts"])
    others = seen(served, path, "bobs")
    assert ([], [[]] * 4) == (others["axes"], [each["values"] for each in others["rows"]])
    assert ([], [{}] * 4) == (others["metrics"], [each["metrics"] for each in others["rows"]])
    member = seen(served, f"/jobs/{job.id}_1/view")
    assert {"lr": "1e-3", "seed": "1"} == member["values"]
    assert {} == seen(served, f"/jobs/{job.id}_1/view", "bobs")["values"]
    assert "queued" == seen(served, f"/jobs/{job.id}_3/view")["record"]["job"]["state"]
    assert None is seen(served, f"/jobs/{job.id}_3/live")["row"]


@pytest.mark.parametrize(("shared_s", "second"), [(3600.0, 1.0), (0.0, 2.0)])
def test_viewers_share_what_running_members_have_reported(shared_s: float, second: float) -> None:
    """For a moment: hosts and the store are not asked for each viewer. Who may not see the values gets none of them."""
    with serving({"gpuqueue.service.routes.page:REPORTED_S": shared_s}) as site, site.client("unix") as client:
        job = client.jobs.submit(["true", "{index}"], mem="1G", array="0-1")
        claims = [started(site, job.id + 1 + index) for index in range(2)]

        def shown(token: str = "mine") -> list[dict[str, float]]:
            return [each["metrics"] for each in seen(site, f"/jobs/{job.id}/members", token)["rows"]]

        for value in (1.0, 2.0):
            loss = Metric(name="loss", count=1, last=Reported(value=value, after_s=1.0))
            for each in claims:
                report(site, each, RunFigures(values=JobValues(metrics=(loss,))))
            expected = 1.0 if value == 1.0 else second
            until(lambda expected=expected: [{"loss": expected}] * 2 == shown(), what="both")  # type: ignore[misc]
        assert [{"loss": second}] * 2 == shown()
        assert [{}, {}] == shown("bobs")


def test_failed_members_run_again_with_more_memory(owner: Client, served: ServedSite) -> None:
    """All of them, or those of a part. The form has the memory that they lacked, and says so; a stranger gets none."""
    job = owner.jobs.submit(["true", "private"], mem="1G", array="0-2")
    full = Ending.stopped(EndingKind.OUT_OF_MEMORY, 1, "CUDA out of memory")
    for index, more in enumerate(({"ending": full}, {"ending": full}, {})):
        finish(served, started(served, job.id + 1 + index), status=256 if more else 0, **more)
    for name, words in (
        (f"{job.id}", "The 2 failed members of array"),
        (f"{job.id}_1-2", "The failed member of array"),
        (f"{job.id}_1", "The same command"),
    ):
        start = seen(served, f"/web/form?again={name}")
        assert (name, True, True) == (start["label"], start["what"].startswith(words), "1G, so" in start["advice"])
        assert start["advice"].endswith(f"{start['form']['mem']} is in the field now.")
    assert seen(served, f"/web/form?again={job.id}_2")["advice"] is None
    assert 403 == ask(served, f"/web/form?again={job.id}_0-1", mine(served, "bobs"))[0]


def test_an_unchanged_answer_is_not_sent_again(owner: Client, served: ServedSite) -> None:
    """The same tag yields no content; a change yields another tag."""
    job = submitted(owner, hold=True)

    def answer(what: str, tag: str | None = None) -> tuple[int, str]:
        headers = {"Authorization": f"Bearer {mine(served)}", **({"If-None-Match": tag} if tag else {})}
        with closing(link(served)) as opened:
            opened.request("GET", f"/api/v1/jobs/{job.id}/{what}", None, headers)
            got = opened.getresponse()
            got.read()
            return got.status, got.headers["ETag"]

    for what in ("view", "live"):
        tag = answer(what)[1]
        assert (304, tag) == answer(what, tag)
        owner.jobs.note(job.id, f"another for {what}")
        until(lambda what=what, tag=tag: answer(what, tag)[0] == 200, what="another tag")  # type: ignore[misc]


def link(served: ServedSite) -> http.client.HTTPSConnection:
    """Return a connection to the service."""
    context = ssl.create_default_context(cafile=served.directory / "cert.pem")
    return http.client.HTTPSConnection("127.0.0.1", served.port, context=context, timeout=60)


def test_a_whole_log_comes_as_a_file(owner: Client, served: ServedSite) -> None:
    """Also one that is larger than a part. A browser keeps it, and shows none of it as a page."""
    job, text = submitted(owner), b"<script>alert(1)</script>\n" + b"x" * MOST_BYTES * 2 + b"\nend\n"
    started(served, job.id, text)
    with closing(link(served)) as opened:
        opened.request("GET", f"/api/v1/jobs/{job.id}/log/file", None, {"Authorization": f"Bearer {mine(served)}"})
        answer = opened.getresponse()
        assert (200, text) == (answer.status, answer.read())
    wanted = ("content-disposition", "content-type", "x-content-type-options")
    assert (f'attachment; filename="job-{job.id}-run-1.log.txt"', "application/octet-stream", "nosniff") == tuple(
        answer.headers[each] for each in wanted
    )


def test_what_is_not_there_is_said(owner: Client, served: ServedSite) -> None:
    """A job that does not exist, one that is no array, and one without a log."""
    job = submitted(owner, hold=True)
    for path, status in (
        ("/jobs/999999/view", 404),
        ("/jobs/999999/live", 404),
        ("/jobs/999999/members", 404),
        ("/jobs/x/view", 400),
        (f"/jobs/{job.id}/members", 409),
        (f"/jobs/{job.id}/log/file", 409),
        (f"/jobs/{job.id}/members?sort=colour", 400),
    ):
        assert status == ask(served, path, mine(served))[0], path
    assert 401 == ask(served, f"/jobs/{job.id}/view")[0]


def test_the_output_is_searched_for_who_may_read_it(owner: Client, served: ServedSite) -> None:
    """Others are refused, and an empty text too."""
    job = submitted(owner)
    finish(served, started(served, job.id, b"one\ntwo Needle\n"))
    found = seen(served, f"/jobs/{job.id}/log/search?text=needle")
    assert ([{"line": 2, "offset": 4, "text": "two Needle"}], True) == (found["matches"], found["ended"])
    assert 403 == ask(served, f"/jobs/{job.id}/log/search?text=needle", mine(served, "bobs"))[0]
    assert 400 == ask(served, f"/jobs/{job.id}/log/search?text=%20", mine(served))[0]
