"""The form of the page, as a browser sends it: a script travels, a job runs again, and mistakes are named."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator
from typing import Any

import pytest
from factories import make_offer, must_claim, serve
from service_fixtures import ServedSite, mine, serving
from web_browser import Answer, Browser

from gpuqueue.client import Client
from gpuqueue.files.blob_store import blob_store_of
from gpuqueue.model.code_snapshot import CodeSnapshot
from gpuqueue.model.job import JobState
from gpuqueue.model.run import Ending, RunDevice
from gpuqueue.text.units import GIB

SCRIPT = b"print('hello')\n"


@pytest.fixture
def owner(served: ServedSite) -> Iterator[Client]:
    """Return a client of this account. Nothing is open."""
    with served.client("direct") as direct:
        for each in direct.jobs.list():
            direct.jobs.cancel(each.id)
    serve(served.queue)
    with served.client("unix") as client:
        yield client


@pytest.fixture
def browser(served: ServedSite) -> Browser:
    """Return a browser that is signed in as this account."""
    return signed_in(served)


def signed_in(served: ServedSite, token: str = "mine") -> Browser:
    """Return a browser that is signed in with a token of the site."""
    found = Browser(served)
    assert 200 == found.api("POST", "/web/session", {"token": mine(served, token)}).status
    return found


def sent(browser: Browser, name: str = "train.py", content: bytes = SCRIPT) -> str:
    """Send a script as the page does, and return the address of its snapshot."""
    digest = hashlib.sha256(content).hexdigest()
    manifest = f"gpuqueue-snapshot 1\n{'file' if name.endswith('.py') else 'exec'}\t{digest}\t{len(content)}\t{name}\n"
    state = browser.api("POST", "/snapshots", {"manifest": manifest}).value
    if state["missing"]:
        part = {"sha256": digest, "size_bytes": len(content), "content": base64.b64encode(content).decode()}
        assert 204 == browser.api("POST", "/snapshots/contents", {"parts": [part]}).status
        state = browser.api("POST", "/snapshots", {"manifest": manifest}).value
    assert [] == state["missing"]
    return str(state["address"])


def submitted(browser: Browser, *, key: str | None = None, **fields: Any) -> Answer:
    """Send the form with a script."""
    form = {"script": "train.py", "snapshot": sent(browser), "mem": "1G", **fields}
    return browser.api("POST", "/web/jobs", form, Idempotency_Key=key)


def failed(served: ServedSite, job_id: int) -> None:
    """Let a job run and fail, and record it."""
    claim = must_claim(served.queue)
    assert job_id == claim.job_id
    device = RunDevice(uuid=make_offer().device.uuid, lease_bytes=GIB)
    served.queue.runs.started(job_id, claim.token, lease_s=300, log_path="/log", devices=(device,))
    served.queue.runs.finish(
        job_id, claim.token, state=JobState.FAILED, ending=Ending.from_status(1), duration_s=1.0, devices=(device,)
    )
    served.record()


def test_a_script_becomes_a_job(served: ServedSite, owner: Client, browser: Browser) -> None:
    """The job is the caller's, its code is the script, and a second click with the same key is the same job."""
    fields = {"args": "--lr '1 2'", "time_limit": "2h", "tags": "night", "name": "from the page", "cpus": "2"}
    first, second = (submitted(browser, key="one", **fields) for _ in range(2))
    assert (201, first.value["id"]) == (first.status, second.value["id"])
    assert first.value["id"] != submitted(browser, key="two", **fields).value["id"]
    spec = owner.jobs.get(first.value["id"]).spec
    assert ("python3", "train.py", "--lr", "1 2") == spec.argv
    assert served.settings.host == spec.account.host, "the machine of the service, not the browser's address"
    assert (GIB, 7200.0, 2.0) == (spec.mem_bytes, spec.time_limit_s, spec.cpus)
    assert (("night",), "from the page") == (spec.tags, spec.name)
    store = blob_store_of(served.settings)
    assert b"\ttrain.py\n" in store.manifest_text(CodeSnapshot.parse(str(spec.snapshot)).address)
    with store.open(hashlib.sha256(SCRIPT).hexdigest()) as kept:
        assert SCRIPT == kept.read()


@pytest.mark.parametrize(
    ("fields", "status", "detail"),
    [
        ({"mem": "6"}, 400, "'6' is not a size: add the unit: 6M or 6G"),
        ({"mem": ""}, 400, "give the device memory that the job needs"),
        ({"mem": "900G"}, 422, "the largest device can give 24G"),
        ({"gpus": 65}, 400, "give a number from 1 to 64"),
        ({"gpus": "2"}, 400, "gpus must be a whole number"),
        ({"time_limit": "soon"}, 400, "is not a duration: write it like 90s"),
        ({"cpus": "0"}, 400, "cpus must be from 0.01 to 10000, not 0.0"),
        ({"cpu_mem": "1K"}, 400, "cpu_mem must be from 1M to 1024T, not 1024 bytes"),
        ({"device": "nodeX:0"}, 400, "there is no device 'nodeX:0'"),
        ({"environment": "a b"}, 400, "'a b' is no environment"),
        ({"args": '"'}, 400, "a quote or a backslash without its end"),
        ({"snapshot": "ab" * 32}, 409, "snapshot"),
        ({"colour": "red"}, 400, "there is no field 'colour'"),
    ],
)
def test_a_mistake_is_named_in_one_line(
    owner: Client, browser: Browser, fields: dict[str, Any], status: int, detail: str
) -> None:
    """The answer is a problem document with the message of the command line, and no job is there."""
    answer = submitted(browser, **fields)
    assert (status, "application/problem+json") == (answer.status, answer.headers["content-type"])
    assert detail in answer.value["detail"]
    assert "\n" not in answer.value["detail"]
    assert [] == owner.jobs.list()


def test_a_program_learns_of_all_faults_at_once_by_the_names_of_the_api(browser: Browser) -> None:
    """Of wrong types and of wrong values, in the words of JSON and not of the command line."""
    typed = browser.api("POST", "/jobs", {"argv": "true", "gpus": "2", "colour": 1})
    assert (400, ["argv", "gpus", "colour", "cwd"]) == (typed.status, [each["field"] for each in typed.value["faults"]])
    assert "argv must be a list, not 'true'; gpus must be a whole number from 0 up, not '2'; " in typed.value["detail"]
    assert typed.value["detail"].endswith("; the field cwd is missing")
    twice = {"requeue": False, "retries": {"times": 2}}
    valued = browser.api("POST", "/jobs", {"argv": ["true"], "cwd": "here", "mem_bytes": 1 << 30, **twice})
    assert (400, ["cwd", "retries"]) == (valued.status, [each["field"] for each in valued.value["faults"]])
    assert "leave out retries or requeue" in valued.value["faults"][1]["words"]
    assert "--" not in valued.value["detail"]
    nested = browser.api("POST", "/jobs", {"argv": ["true"], "cwd": "/", "gpus": 99, "retries": {"times": -1}})
    assert (400, ["retries.times"]) == (nested.status, [each["field"] for each in nested.value["faults"]])
    form = submitted(browser, mem="abc", time_limit="soon", cpus="0")
    assert ["mem", "time_limit"] == [each["field"] for each in form.value["faults"]]


def test_an_ended_job_runs_again_with_changes(served: ServedSite, owner: Client, browser: Browser) -> None:
    """The form begins with what the job asked for, and what is typed into it changes that alone."""
    job = submitted(browser, args="--lr 1", tags="night", time_limit="1h", name="first").value["id"]
    running = browser.api("GET", f"/web/form?again={job}")
    assert (409, True) == (running.status, "only a job that has ended can be retried" in running.value["detail"])
    failed(served, job)

    start = browser.api("GET", f"/web/form?again={job}").value
    assert (str(job), True, "python3 train.py --lr 1") == (start["label"], start["has_script"], start["command"])
    assert ("1G", "--lr 1", "1h", "night", ["nodeA:0"]) == (
        *(start["form"][each] for each in ("mem", "args", "time_limit", "tags")),
        start["devices"],
    )
    assert ("python3", True) == (start["form"]["python"], "the copy of the code" in start["again"]), start["again"]
    form = {
        **start["form"],
        "mem": "2G",
        "args": "--lr 2",
        "tags": "night again",
        "python": "/opt/python",
        "cpu_mem": "8G",
    }
    first, second = (browser.api("POST", f"/web/jobs/{job}/retry", form, Idempotency_Key="k") for _ in range(2))
    assert (201, first.value["id"]) == (first.status, second.value["id"])
    spec = owner.jobs.get(first.value["id"]).spec
    assert 8 * GIB == spec.cpu_mem_bytes
    assert (job, 2 * GIB, ("/opt/python", "train.py", "--lr", "2"), 3600.0, ("night", "again"), "first") == (
        spec.retry_of,
        spec.mem_bytes,
        spec.argv,
        spec.time_limit_s,
        spec.tags,
        spec.name,
    )
    wrong = browser.api("POST", f"/web/jobs/{job}/retry", {**form, "mem": ""})
    assert (400, True) == (wrong.status, "the memory is empty" in wrong.value["detail"])


def test_a_command_has_no_arguments_to_change(served: ServedSite, owner: Client, browser: Browser) -> None:
    """A job without a script can run again as it is, with other memory."""
    job = owner.jobs.submit(["true", "--quiet"], mem="1G").id
    failed(served, job)
    start = browser.api("GET", f"/web/form?again={job}").value
    assert (False, "", "true --quiet") == (start["has_script"], start["form"]["args"], start["command"])
    again = browser.api("POST", f"/web/jobs/{job}/retry", {**start["form"], "mem": "2G"})
    assert (201, ["true", "--quiet"]) == (again.status, again.value["spec"]["argv"])
    refused = browser.api("POST", f"/web/jobs/{job}/retry", {**start["form"], "args": "--loud"})
    assert (400, True) == (refused.status, "runs a command, not a script" in refused.value["detail"])
    refused = browser.api("POST", f"/web/jobs/{job}/retry", {**start["form"], "python": "python3"})
    assert (400, True) == (refused.status, "runs no Python script" in refused.value["detail"])


def test_another_site_and_another_account_submit_nothing(served: ServedSite, owner: Client, browser: Browser) -> None:
    """What changes something needs the header and the origin of the page, and the rights of the account."""
    job = submitted(browser).value["id"]
    failed(served, job)
    form = {"script": "train.py", "snapshot": sent(browser), "mem": "1G"}
    bodies = {"/snapshots": {"manifest": ""}, "/snapshots/contents": {"parts": []}}
    for path in ("/web/jobs", f"/web/jobs/{job}/retry", "/snapshots", "/snapshots/contents"):
        for headers in ({"Gpuqueue_Page": None}, {"Origin": "https://evil.example"}):
            assert 403 == browser.api("POST", path, bodies.get(path, form), **headers).status, path

    bob = signed_in(served, "bobs")
    refused = bob.api("GET", f"/web/form?again={job}"), bob.api("POST", f"/web/jobs/{job}/retry", {"mem": "2G"})
    assert [403, 403] == [each.status for each in refused]
    assert 409 == bob.api("POST", "/web/jobs", form).status, "bob has not sent the script"
    assert 401 == Browser(served).api("GET", "/web/form").status
    assert 404 == browser.api("GET", "/web/form?again=999999").status
    assert [] == owner.jobs.list()


@pytest.mark.full
def test_a_site_may_let_admins_alone_submit() -> None:
    """Where only admins submit, the form is an error for others."""
    with serving(GPUQUEUE_ACCESS="submit=admins") as site:
        answer = signed_in(site, "bobs").api("GET", "/web/form")
        assert (403, True) == (answer.status, "may submit jobs" in answer.value["detail"])
        assert 200 == signed_in(site).api("GET", "/web/form").status
