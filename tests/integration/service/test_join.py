"""How a worker host joins a site over the service: what it gets, who gets it, and what it refuses."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from bounded import until
from forked_command import command
from service_fixtures import ServedSite, ask, certificate, mine, serving

from gpuqueue.client.first_call import ServiceAddress
from gpuqueue.client.joining import join, leave, settings_of
from gpuqueue.errors import GpuQueueError, NotAuthenticated, Refused, Unreachable, Unreadable
from gpuqueue.history.database import HistoryDatabase
from gpuqueue.model.access_token import TokenRequest, new_token
from gpuqueue.model.audit import AuditEntry, AuditOutcome, AuditQuery
from gpuqueue.model.joining import SHARED
from gpuqueue.version import VERSION

STORE = "rediss://gpuqueue:hunter2@store.lab:6379/0"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedSite]:
    """Return a site whose store other hosts reach."""
    ca = tmp_path_factory.mktemp("ca") / "store-ca.pem"
    ca.write_text("PEM of the store")
    with serving(GPUQUEUE_HOSTS_REDIS_URL=STORE, GPUQUEUE_HOSTS_REDIS_CA=str(ca)) as made:
        yield made


def host_token(site: ServedSite, host: str = "nodeB", lifetime_s: float | None = None) -> str:
    """Return a new token of a host, which an admin has made."""
    with site.client("unix") as client:
        return client.access.make_token(TokenRequest(host=host, lifetime_s=lifetime_s)).text


def address(site: ServedSite, token: str) -> ServiceAddress:
    """Return how a host reaches the service."""
    return ServiceAddress(url=f"https://127.0.0.1:{site.port}", token=token, ca=site.directory / "cert.pem")


def joins(site: ServedSite, number: int) -> list[AuditEntry]:
    """Wait for *number* entries of joins in the audit log, and return them, the newest first."""
    with closing(HistoryDatabase(site.settings.database_url)) as database:

        def found() -> list[AuditEntry]:
            return list(database.audit_entries(AuditQuery(action="join")))

        until(lambda: len(found()) >= number, what="the audit log")
        return found()


def test_a_host_that_joins_is_recorded_without_the_password(site: ServedSite) -> None:
    """It gets its name, the settings that all hosts have in common, and the store. A dry run leaves no record."""
    service, before = address(site, host_token(site)), len(joins(site, 0))

    looked, found = join(service, dry_run=True), join(service, dry_run=False)

    assert ("", STORE) == (looked.redis_url, found.redis_url)
    assert ("nodeB", VERSION, None) == (found.settings.host, found.settings.version, found.settings.token_expires_at)
    assert "PEM of the store" == found.redis_ca == looked.redis_ca
    assert 3720.0 == found.settings.host_lost_after_s
    (entry, *_) = entries = joins(site, before + 1)
    assert before + 1 == len(entries)
    assert (AuditOutcome.DONE, "nodeB", "nodeB") == (entry.outcome, entry.account, entry.detail["host"])
    assert "hunter2" not in repr(entry)
    assert "hunter2" not in repr(found)


def test_only_a_host_gets_the_password_of_the_store(site: ServedSite) -> None:
    """Neither a person, an admin of the site, nor a caller without an account. Their tries are in the audit log."""
    before = len(joins(site, 0))
    body = {"version": VERSION}
    for token, status in ((mine(site), 403), (mine(site, "bobs"), 403), (mine(site, "wrong"), 401), (None, 401)):
        for method, path, sent in (("POST", "/host/join", body), ("GET", "/host/settings", None)):
            answer = ask(site, path, token, method=method, body=sent)
            assert status == answer[0], answer
            assert "hunter2" not in json.dumps(answer[1])
    with site.client("unix") as root, pytest.raises(Refused):
        assert root._link is not None
        root._link.send("POST", "/host/join", body)

    assert {AuditOutcome.REFUSED} == {each.outcome for each in joins(site, before + 3)[: -before or None]}


def test_a_host_that_leaves_has_no_valid_token(site: ServedSite) -> None:
    """It revokes its own token and no other, and the audit log says so. Neither a person nor a stranger leaves."""
    token, other = host_token(site, "nodeL"), host_token(site, "nodeL")
    for wrong, status in ((mine(site), 403), (None, 401)):
        assert status == ask(site, "/host/leave", wrong, method="POST", body={})[0]
    leave(address(site, token))

    with pytest.raises(NotAuthenticated):
        settings_of(address(site, token))
    with pytest.raises(NotAuthenticated):
        leave(address(site, token))
    assert "nodeL" == settings_of(address(site, other)).host
    with closing(HistoryDatabase(site.settings.database_url)) as database:
        query = AuditQuery(action="leave")
        until(lambda: list(database.audit_entries(query)), what="the audit log")
        done = [each for each in database.audit_entries(query) if each.outcome is AuditOutcome.DONE]
    assert ["nodeL"] == [each.account for each in done]
    assert token.split("_")[1] == done[0].detail["token"]


def test_the_settings_in_common_have_no_password(site: ServedSite) -> None:
    """A host compares its settings with those of the service, and sees until when its token is valid."""
    found = settings_of(address(site, host_token(site, lifetime_s=3600.0)))

    assert found.token_expires_at is not None
    assert 3500 < (found.token_expires_at - found.now).total_seconds() <= 3600
    assert {*SHARED} < set(dir(found))
    assert not {"redis_url", "database_url"} & set(dir(found))


def test_a_host_of_another_minor_version_does_not_join(site: ServedSite) -> None:
    """The line names both versions. A patch version may differ."""
    token = host_token(site)
    status, problem = ask(site, "/host/join", token, method="POST", body={"version": "99.7.1"})

    assert (409, f"this host has gpuqueue '99.7.1' and the service {VERSION}: install the same minor version") == (
        status,
        problem["detail"],
    )
    major, minor, _ = VERSION.split(".")
    body = {"version": f"{major}.{minor}.99", "dry_run": True}
    assert 200 == ask(site, "/host/join", token, method="POST", body=body)[0]


@pytest.mark.full
def test_a_site_without_an_address_for_hosts_gives_none(served: ServedSite) -> None:
    """They reach its store through the service."""
    found = join(address(served, host_token(served)), dry_run=False)

    assert ("", None) == (found.redis_url, found.redis_ca)


def test_a_revoked_token_joins_nothing(site: ServedSite) -> None:
    """The line says how to make another."""
    token = host_token(site)
    with site.client("unix") as client:
        client.access.revoke_token(token[3:11])
    with pytest.raises(
        NotAuthenticated, match="does not accept this token: make one with gpuqueue token create --host"
    ):
        join(address(site, token), dry_run=True)


def test_a_host_sends_its_token_to_no_other_service(site: ServedSite, tmp_path: Path) -> None:
    """A service whose certificate is of another authority gets nothing, and neither does plain HTTP elsewhere."""
    other, _ = certificate(tmp_path)
    token = str(new_token())
    wrong = ServiceAddress(url=f"https://127.0.0.1:{site.port}", token=token, ca=other, naming="give --ca, a file with")
    with pytest.raises(Refused, match="is not trusted: give --ca, a file with the certificate of the authority"):
        join(wrong, dry_run=True)
    with pytest.raises(Refused, match="is no certificate"):
        join(ServiceAddress(url=wrong.url, token=token, ca=tmp_path / "key.pem"), dry_run=True)
    with pytest.raises(GpuQueueError, match="plain HTTP shows the access token"):
        join(ServiceAddress(url="http://gpu.example.org", token=token), dry_run=True)


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", Unreadable),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]", Unreadable),
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 5\r\n\r\n<htm>", Unreadable),
        (b"HTTP/1.1 302 Found\r\nLocation: https://elsewhere/\r\nContent-Length: 0\r\n\r\n", Unreadable),
        (b"SSH-2.0-OpenSSH_9.2\r\n", Unreachable),
        (b"", Unreachable),
    ],
)
def test_what_is_no_service_is_one_line(answer: bytes, error: type[Exception]) -> None:
    """Whatever listens there, the error says that it is no service, and no redirection is followed."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            with suppress(OSError):
                connected, _ = listening.accept()
                with connected:
                    connected.recv(65536)
                    connected.sendall(answer)

        threading.Thread(target=serve, daemon=True).start()
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        with pytest.raises(error) as refused:
            join(ServiceAddress(url=url, token=str(new_token())), dry_run=True)
    assert 1 == len(str(refused.value).splitlines())


def dry_run(site: ServedSite, *words: str, url: str = "", stdin: str = "") -> Any:
    """Run ``gpuqueue join --dry-run`` on this machine."""
    url = url or f"https://127.0.0.1:{site.port}"
    environ = {"PATH": os.environ["PATH"], "HOME": str(site.directory), "GPUQUEUE_CONFIG": os.devnull}
    return command(("join", url, *words, "--dry-run"), environ, stdin=stdin)


def test_a_token_among_the_words_is_pointed_out(site: ServedSite, tmp_path: Path) -> None:
    """It is taken, with a warning. A file that others may read, two tokens and what is no token are refused."""
    token, path = host_token(site), tmp_path / "token"
    path.write_text(token)
    path.chmod(0o644)
    warned = dry_run(site, "--token", token)
    assert "other users can see the token among the words of this command: use --token-file" in warned.stderr
    assert token not in warned.stdout + warned.stderr
    for words, stdin, says in (
        (("--token-file", str(path)), "", f"others may read the token in {path}: chmod 600 {path}"),
        (("--token-file", str(path), "--token", token), "", "exclude each other"),
        (("--token", "-"), "hello", "that is no access token: it begins with gq_"),
        ((), "", "that is no access token: it begins with gq_"),
    ):
        refused = dry_run(site, *words, stdin=stdin)
        assert (2, True) == (refused.returncode, says in refused.stderr), refused
        assert 1 == len(refused.stderr.splitlines())


def test_a_client_of_a_host_without_a_history_says_so(site: ServedSite) -> None:
    """A command that needs the history names the setting, and makes no file in its place."""
    environ = {
        **os.environ,
        "GPUQUEUE_STATE_DIR": str(site.directory / "joined"),
        "GPUQUEUE_REDIS_URL": site.settings.redis_url,
        "GPUQUEUE_RECORD": "false",
        "GPUQUEUE_CONFIG": os.devnull,
    }
    for words, code in ((("history",), 4), (("db", "upgrade"), 5)):
        done = command(words, environ)
        assert (code, True) == (done.returncode, "this host records no history (setting record)" in done.stderr), done
    assert not (site.directory / "joined" / "history.db").exists()
