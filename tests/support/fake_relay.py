"""A worker host for tests of the service: its access token, its runs in the store, and a relay that speaks HTTP."""

from __future__ import annotations

import http.client
import json
import ssl
from collections.abc import Iterable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from factories import make_offer, must_claim, serve
from service_fixtures import ServedSite

from gpuqueue.model.access_token import TokenRequest
from gpuqueue.model.job import Job, JobState
from gpuqueue.model.run import Ending, RunDevice
from gpuqueue.queue.lease import Claim


@dataclass(frozen=True)
class Answer:
    """The answer to a request."""

    status: int
    headers: Mapping[str, str]
    content: bytes

    @property
    def detail(self) -> str:
        """Return the message of a problem document."""
        return str(json.loads(self.content)["detail"])


def ask(
    site: ServedSite,
    method: str,
    path: str,
    token: str | None,
    body: bytes | Iterable[bytes] | None = None,
    headers: Mapping[str, str] | None = None,
) -> Answer:
    """Send a request over TLS. An answer that comes before the whole body was sent is read, too."""
    context = ssl.create_default_context(cafile=site.directory / "cert.pem")
    sent = {**({} if token is None else {"Authorization": f"Bearer {token}"}), **(headers or {})}
    with closing(http.client.HTTPSConnection("127.0.0.1", site.port, context=context, timeout=60)) as link:
        with suppress(BrokenPipeError, ConnectionResetError, ssl.SSLEOFError):
            link.request(method, f"/api/v1{path}", body, sent)
        answer = link.getresponse()
        return Answer(answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read())


@dataclass
class FakeRelay:
    """The relay of the host *name*, whose one device is *device*."""

    site: ServedSite
    name: str = "nodeB"
    device: str = "GPU-B"
    token: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        """Make the token of the host, and announce its device."""
        with self.site.client("unix") as admin:
            self.token = admin.access.make_token(TokenRequest(host=self.name)).text
        serve(self.site.queue, make_offer(self.device, host=self.name))

    def runs(self, job: Job, runs: Path = Path("/nowhere/runs")) -> Claim:
        """Let *job* begin to run here. *runs* is the directory of this host's runs."""
        claim = must_claim(self.site.queue, self.device, host=self.name)
        assert job.id == claim.job_id
        self.started(claim, runs)
        return claim

    def started(self, claim: Claim, runs: Path = Path("/nowhere/runs")) -> None:
        """Report that the run of *claim* has started."""
        log = str(runs / str(claim.job_id) / claim.token / "log")
        device = RunDevice(uuid=self.device, lease_bytes=2**20)
        self.site.queue.runs.started(claim.job_id, claim.token, lease_s=3000, log_path=log, devices=(device,))

    def finish(self, claim: Claim) -> None:
        """Let a run end well, and bring the history up to date."""
        device = RunDevice(uuid=self.device, lease_bytes=2**20)
        self.site.queue.runs.finish(
            claim.job_id, claim.token, state=JobState.SUCCEEDED, ending=Ending.from_status(0), duration_s=1.0,
            devices=(device,),
        )  # fmt: skip
        self.site.record()

    def ask(
        self,
        method: str,
        path: str,
        body: bytes | Iterable[bytes] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """Send a request to a route of hosts."""
        return ask(self.site, method, f"/host{path}", self.token, body, headers)

    def put(self, claim: Claim, what: str, body: bytes | Iterable[bytes] = b"", **query: Any) -> Answer:
        """Deliver something of a run."""
        words = "&".join(f"{name}={value}" for name, value in query.items())
        return self.ask("PUT", f"/runs/{claim.job_id}/{claim.token}/{what}{'?' * bool(words)}{words}", body)

    def poll(self, timeout_s: float = 20) -> list[dict[str, Any]]:
        """Return what the service asks for."""
        answer = self.ask("GET", f"/requests?timeout_s={timeout_s}")
        assert 200 == answer.status, answer.content
        found: list[dict[str, Any]] = json.loads(answer.content)
        return found

    def done(self, request: Mapping[str, Any], reason: bytes = b"") -> Answer:
        """End a request."""
        return self.ask("PUT", f"/requests/{request['id']}/done", reason)
