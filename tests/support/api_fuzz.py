"""Requests that are made from the API's own OpenAPI document, and the people who send them."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import requests
import schemathesis
from factories import make_offer, must_claim
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from long_search import search
from schemathesis import openapi
from schemathesis.checks import not_a_server_error
from schemathesis.generation import GenerationMode
from schemathesis.schemas import APIOperation
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from service_fixtures import ServedSite

from gpuqueue.files.manifest import Entry, Manifest
from gpuqueue.model.code_snapshot import CodeSnapshot
from gpuqueue.model.job import JobState
from gpuqueue.model.run import Ending, RunDevice

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "openapi.json"
#: What each answer must be: no failure of the service, and what the document says.
MUST = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
STREAM = "text/event-stream"
#: Exit codes of the command line that a refused request can have.
EXIT_CODES = frozenset(range(1, 10))


def operations() -> list[APIOperation]:
    """Return all operations of the document. Objects may have no other fields than it names, in either direction."""
    document = json.loads(PAGE.read_text())
    for schema in document["components"]["schemas"].values():
        if "properties" in schema:
            schema["additionalProperties"] = False
    return [each.ok() for each in openapi.from_dict(document).get_all_operations()]


@dataclass
class Person:
    """A user with jobs in each state, whose secrets hold *mark*."""

    name: str
    site: ServedSite
    jobs: list[int] = field(default_factory=list)
    address: str = ""

    def __post_init__(self) -> None:
        """Make an access token, and a session that uses it."""
        self.mark = f"{self.name}sSecret"
        self.token = self.site.token(self.name, 54_000 + ord(self.name[1]))  # see known_accounts
        self.session = requests.Session()
        self.session.headers["Authorization"] = f"Bearer {self.token}"
        self.session.trust_env = False
        self.session.verify = str(self.site.directory / "cert.pem")

    @property
    def base_url(self) -> str:
        """Return the address of the service."""
        return f"https://127.0.0.1:{self.site.port}"

    def submit(self, **changes: Any) -> int:
        """Submit a job with a secret in its command, its directory and its environment."""
        body = {"argv": ["true", self.mark], "cwd": f"/{self.mark}", "env": {"KEY": self.mark}, "mem_bytes": 2**20}
        answer = self.session.post(f"{self.base_url}/api/v1/jobs", json={**body, "name": "job", **changes}, timeout=30)
        assert 201 == answer.status_code, answer.text
        self.jobs.append(answer.json()["id"])
        return self.jobs[-1]

    def send_code(self) -> str:
        """Send a snapshot with a secret in its file and in its difference from a commit; return its name in a spec."""
        file, diff = f"{self.mark} of a file\n".encode(), f"{self.mark} of a difference\n".encode()
        entry = Entry(path="train.py", sha256=sha256(file).hexdigest(), size_bytes=len(file))
        manifest, diff_sha256 = Manifest((entry,)), sha256(diff).hexdigest()
        parts = [
            {"sha256": sha256(each).hexdigest(), "size_bytes": len(each), "content": b64encode(each).decode()}
            for each in (file, diff)
        ]
        offer = {"manifest": manifest.text().decode(), "diff": diff_sha256}
        for path, body in (("/snapshots/contents", {"parts": parts}), ("/snapshots", offer)):
            answer = self.session.post(f"{self.base_url}/api/v1{path}", json=body, timeout=30)
            assert answer.ok, answer.text
        self.address = manifest.address()
        return str(CodeSnapshot(self.address, ".", diff_sha256))

    def run_some(self) -> None:
        """Submit a job that ends, and one that runs. Nothing else may wait."""
        for ends in (True, False):
            job_id = self.submit()
            claim = must_claim(self.site.queue)
            assert job_id == claim.job_id
            log = self.site.directory / str(job_id) / claim.token / "log"
            log.parent.mkdir(parents=True)
            log.write_text(f"{self.mark}\n")
            device = RunDevice(uuid=make_offer().device.uuid, lease_bytes=2**20)
            runs = self.site.queue.runs
            runs.started(job_id, claim.token, lease_s=3000, log_path=str(log), devices=(device,))
            if ends:
                runs.finish(
                    job_id, claim.token, state=JobState.FAILED, ending=Ending.from_status(256), duration_s=1.0,
                    devices=(device,),
                )  # fmt: skip
        self.site.record()

    def queue_some(self) -> None:
        """Submit a job that waits, one that is held, and an array."""
        self.submit()
        self.submit(waits={"hold": True}, snapshot=self.send_code())
        self.submit(array={"indexes": "0-3"})
        self.site.record()

    def code(self) -> list[str]:
        """Return the addresses of the snapshots that this person has."""
        return [each["address"] for each in self.session.get(f"{self.base_url}/api/v1/snapshots", timeout=30).json()]

    def now(self) -> list[Any]:
        """Return the jobs with all their events. Why they wait is left out, which changes by itself."""
        self.site.record()
        with closing(self.site.client("direct")) as client:
            shown = [(client.jobs.show(each), client.jobs.events(each)) for each in self.jobs]
            return [(replace(each, job=replace(each.job, reason=None)), events) for each, events in shown]


@dataclass
class Caller:
    """Sends requests as a person, and checks each answer."""

    who: Person
    names: Sequence[str]
    others: Sequence[Person]
    token_ids: Sequence[str]
    host: str

    def fuzz(self, operation: APIOperation, examples: int) -> None:
        """Send *examples* requests of *operation*. They are the same in each run, unless long_search.py is asked."""
        generated = st.one_of(*[operation.as_strategy(generation_mode=each) for each in GenerationMode])

        @settings(search(examples), phases=[Phase.generate], suppress_health_check=list(HealthCheck))
        @given(
            generated,
            st.sampled_from([None, *self.names]),
            st.sampled_from([None, *self.token_ids]),
            st.sampled_from([None, *(each.address for each in self.others)]),
        )
        def sent(case: schemathesis.Case, name: str | None, token_id: str | None, address: str | None) -> None:
            path = case.path_parameters
            job_id = name and name.partition("_")[0]
            known = {"name": name, "job_id": job_id, "token_id": token_id, "address": address, "host": self.host}
            path.update({each: known[each] for each in path if known.get(each) is not None})
            if operation.path.endswith("/jobs/wait") and isinstance(case.body, dict):
                waits_long = isinstance(case.body.get("timeout_s"), (int, float)) and 0 < case.body["timeout_s"] < 100
                case.body.update({"timeout_s": 0.05} if waits_long else {})
                case.body.update({"jobs": [name]} if name else {})
            self.checked(case)

        sent()

    def checked(self, case: schemathesis.Case) -> None:
        """Send *case*, and check that its answer is what the document says and has no secret of others."""
        is_stream = STREAM in str(case.operation.definition.raw)
        words = case.as_transport_kwargs(base_url=self.who.base_url)
        answer = self.who.session.request(**words, timeout=30, stream=is_stream)
        if is_stream and answer.ok:
            content = next(answer.iter_content(None))
            answer.close()
            assert answer.headers["Content-Type"].startswith(STREAM)
        else:
            content = answer.content
            case.validate_response(answer, checks=MUST, transport_kwargs={"verify": False})
        if not answer.ok:
            problem = answer.json()
            assert problem["exit_code"] in EXIT_CODES, problem
            assert (answer.status_code, problem["status"]) == (problem["status"], answer.status_code)
        shown = content + str(answer.headers).encode()
        for each in self.others:
            assert each.mark.encode() not in shown, f"{self.who.name} sees a secret of {each.name}: {words}"


def secrets_taken(site: ServedSite, owner: Person) -> Iterator[int]:
    """Yield the jobs of others that have a secret of *owner*."""
    with closing(site.client("direct")) as client:
        for job in client.jobs.list():
            has_mark = owner.mark in repr((job.spec.argv, job.spec.env, job.spec.cwd))
            if has_mark and job.spec.account.name != owner.name:
                yield job.id
