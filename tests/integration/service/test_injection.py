"""What a user writes into a request stays a value: in terminals, tables, pages, headers, paths and commands."""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Iterator
from urllib.parse import quote

import pytest
from api_fuzz import Person
from factories import make_offer, must_claim
from forked_command import command
from service_fixtures import ServedSite, serving

from gpuqueue.model.job import JobState
from gpuqueue.model.run import Ending, RunDevice

ESCAPE = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202e"
FORMULA = "=HYPERLINK(1)"
MARKUP = "<script>alert(1)</script>"
SPLIT = "x\r\nX-Evil: 1\r\n\r\n<html>"


@pytest.fixture(scope="module")
def site() -> Iterator[ServedSite]:
    """Return a site whose admin is this account, by the socket."""
    with serving() as made:
        yield made


@pytest.fixture(scope="module")
def bob(site: ServedSite) -> Person:
    """Return a user who writes requests by hand."""
    return Person("bob", site)


def shown(site: ServedSite, *words: str) -> str:
    """Return what a command prints for an admin, on both streams."""
    own = {
        "PATH": os.environ["PATH"],
        "HOME": str(site.directory),
        "GPUQUEUE_URL": f"unix://{site.socket_path}",
        "GPUQUEUE_CONFIG": os.devnull,
    }
    done = command(words, own)
    assert "Traceback" not in done.stderr
    return done.stdout + done.stderr


def posted(bob: Person, **changes: object) -> int | None:
    """Submit a request as it is. Return the id of the job, or None if it is refused as malformed."""
    body = {"argv": ["true"], "cwd": "/", "mem_bytes": 2**20, "env": {}, "name": "job", **changes}
    answer = bob.session.post(f"{bob.base_url}/api/v1/jobs", json=body, timeout=30)
    assert answer.status_code in {201, 400}, answer.text
    return answer.json()["id"] if answer.ok else None


@pytest.mark.parametrize(
    "changes",
    [
        {"name": f"n{ESCAPE}"},
        {"argv": ["true", ESCAPE]},
        {"cwd": f"/{ESCAPE}"},
        {"env": {f"A{ESCAPE}": ESCAPE}},
        {"tags": [f"t{ESCAPE}"]},
        {"pool": f"p{ESCAPE}"},
        {"git": {"commit": "a" * 40, "branch": f"b{ESCAPE}", "dirty": True}},
        {"waits": {"dedupe": f"k{ESCAPE}"}},
    ],
    ids=lambda each: next(iter(each)),
)
def test_no_terminal_escape_of_a_user_reaches_a_terminal(
    site: ServedSite, bob: Person, changes: dict[str, object]
) -> None:
    """A request by hand has escapes in any field: it is refused, or each command shows them as harmless text."""
    job = posted(bob, **changes)
    if job is not None:
        bob.session.put(f"{bob.base_url}/api/v1/jobs/{job}/note", json={"text": f"note{ESCAPE}"}, timeout=30)
    site.record()
    name = str(job or 1)
    for words in (("queue", "--all-users"), ("queue",), ("show", name), ("why", name), ("history",), ("audit",)):
        text = shown(site, *words)
        bad = {char for char in text if unicodedata.category(char) in {"Cc", "Cf"} and char not in "\n\t"}
        assert set() == bad, f"{words}: {text!r}"


def test_no_formula_of_a_user_reaches_a_spreadsheet(site: ServedSite, bob: Person) -> None:
    """A cell of the CSV that would be a formula is quoted."""
    job = posted(bob, name=FORMULA, tags=["a"])
    assert job is not None
    site.record()
    text = shown(site, "history", "--user", "bob", "--state", "queued", "--csv")

    assert FORMULA in text
    assert not re.search(r'(^|,)"?=', text, re.MULTILINE)


def test_no_markup_of_a_user_reaches_a_browser(bob: Person) -> None:
    """Answers are JSON, and say that a browser must not guess otherwise, errors and logs as well."""
    job = posted(bob, name=MARKUP, argv=["true", MARKUP])
    for path in (f"/jobs/{job}", "/jobs", f"/jobs/{quote(MARKUP, safe='')}", f"/{MARKUP}", f"/jobs?limit={MARKUP}"):
        answer = bob.session.get(f"{bob.base_url}/api/v1{path}", timeout=30)
        assert answer.headers["content-type"] in {"application/json", "application/problem+json"}, path
        assert "nosniff" == answer.headers["x-content-type-options"]


def test_a_log_is_no_page(site: ServedSite, bob: Person) -> None:
    """The output of a job with markup is bytes to a browser."""
    for each in bob.session.get(f"{bob.base_url}/api/v1/jobs", timeout=30).json()["jobs"]:
        bob.session.post(f"{bob.base_url}/api/v1/jobs/{each['id']}/cancel", timeout=30)
    job = posted(bob)
    claim = must_claim(site.queue)
    assert job == claim.job_id
    log = site.directory / str(job) / claim.token / "log"
    log.parent.mkdir(parents=True)
    log.write_text(MARKUP)
    device = RunDevice(uuid=make_offer().device.uuid, lease_bytes=2**20)
    site.queue.runs.started(claim.job_id, claim.token, lease_s=300, log_path=str(log), devices=(device,))
    answer = bob.session.get(f"{bob.base_url}/api/v1/jobs/{job}/log", timeout=30)
    site.queue.runs.finish(
        claim.job_id, claim.token, state=JobState.SUCCEEDED, ending=Ending.from_status(0), duration_s=1.0,
        devices=(device,),
    )  # fmt: skip

    assert (MARKUP, "application/octet-stream", "nosniff") == (
        answer.text,
        answer.headers["content-type"],
        answer.headers["x-content-type-options"],
    )


@pytest.mark.parametrize(
    "name",
    [
        "../../etc/passwd",
        "..",
        "1/../../..",
        "/etc/passwd",
        "1\0",
        "1_../0",
        "%2e%2e%2f1",
        "..\\..",
        "1;ls",
        "$(id)",
        "-1",
    ],
)
@pytest.mark.parametrize("what", ["", "/log", "/log/stream", "/record", "/events", "/cancel"])
def test_no_name_of_a_job_is_a_path(bob: Person, name: str, what: str) -> None:
    """Only an id is a job, in each route. Nothing else is looked up, whatever way it is escaped."""
    url = f"{bob.base_url}/api/v1/jobs/{quote(name, safe='')}{what}"
    answer = bob.session.request("POST" if what == "/cancel" else "GET", url, timeout=30)

    assert answer.status_code in {400, 404, 405}, answer.text
    assert "application/problem+json" == answer.headers["content-type"]
    assert "root:" not in answer.text


@pytest.mark.parametrize("stream", ["../spec", "spec", "/etc/passwd", "log/../spec", ""])
def test_only_the_output_is_read_of_a_run_directory(bob: Person, stream: str) -> None:
    """The parameter that chooses the stream of a log is one of two words and no file."""
    for path in ("log", "log/stream"):
        answer = bob.session.get(
            f"{bob.base_url}/api/v1/jobs/{posted(bob)}/{path}", params={"stream": stream}, timeout=30
        )
        assert 400 == answer.status_code


def test_no_value_becomes_a_header(bob: Person) -> None:
    """Line ends in names and in the environment of a retry split no answer."""
    job = posted(bob, env={"A_TOKEN": "1"}, name="to retry")
    base = f"{bob.base_url}/api/v1/jobs"
    bob.session.post(f"{base}/{job}/cancel", timeout=30)
    bob.site.record()
    answers = [
        bob.session.get(f"{base}/{quote(SPLIT, safe='')}", timeout=30),
        bob.session.get(base, params={"user": SPLIT, "name": SPLIT}, timeout=30),
        bob.session.post(f"{base}/{job}/retry-spec", json={"env": {f"B_TOKEN{SPLIT}": SPLIT}}, timeout=30),
        bob.session.post(f"{base}/{job}/retry", json={"env": {f"B_TOKEN{SPLIT}": SPLIT}}, timeout=30),
    ]
    for each in answers:
        assert "X-Evil" not in each.headers, each.text
        assert each.status_code < 500


def test_no_header_names_the_caller(bob: Person) -> None:
    """What proxies add for other programs proves nothing here."""
    names = ("X-Remote-User", "Remote-User", "X-Forwarded-User", "X-Forwarded-For", "Forwarded", "X-Real-IP", "From")
    for name in names:
        answer = bob.session.get(f"{bob.base_url}/api/v1/me", headers={name: "root"}, timeout=30)
        assert "bob" == answer.json()["account"]


def test_no_argument_of_a_client_is_another_request(site: ServedSite) -> None:
    """A value with line ends goes to the service as a value."""
    with site.client("unix") as client:
        assert [] == client.jobs.list(user=SPLIT)
        assert [] == client.jobs.list(name=f"a&user=bob HTTP/1.1{SPLIT}")


@pytest.mark.parametrize("key", ["", "a b", "x" * 129, "\xe9", "a;b"])
def test_a_malformed_key_is_refused(bob: Person, key: str) -> None:
    """The key of a submit is a word, and nothing that could be part of a name in the store."""
    body = {"argv": ["true"], "cwd": "/", "mem_bytes": 2**20, "name": "job"}
    sent = {"Idempotency-Key": key.encode("latin-1")}
    answer = bob.session.post(f"{bob.base_url}/api/v1/jobs", json=body, headers=sent, timeout=30)

    assert 400 == answer.status_code
