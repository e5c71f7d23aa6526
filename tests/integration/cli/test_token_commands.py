"""The commands ``token``, ``login``, ``logout``, ``whoami`` and ``audit``, without a service."""

from __future__ import annotations

import json
import os
import pwd
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from subprocess import CompletedProcess
from threading import Thread
from typing import Any

import pytest
from forked_command import command
from template_history import make_tables

from gpuqueue.history.database import HistoryDatabase
from gpuqueue.model.access_token import USUAL_SCOPES, AccessToken, digest_of, new_token
from gpuqueue.model.caller import CallerKind
from gpuqueue.service.identity.authenticate import Authenticator

ME = pwd.getpwuid(os.getuid()).pw_name


class Person:
    """A user with a history, whose store is on a network: root is an account like any other there."""

    def __init__(self, directory: Path) -> None:
        self.url = f"sqlite:///{directory / 'history.db'}"
        make_tables(self.url)
        self.environ = {
            **os.environ,
            "GPUQUEUE_DATABASE_URL": self.url,
            "GPUQUEUE_REDIS_URL": "redis://127.0.0.1:1/0",
            "XDG_CONFIG_HOME": str(directory / "config"),
            "GPUQUEUE_ADMINS": "nobody-at-all",
        }

    def __call__(self, *words: str, code: int = 0, text: str | None = None, **environ: str) -> CompletedProcess[str]:
        """Run ``gpuqueue``, and check its exit code."""
        done = command(words, {**self.environ, **environ}, stdin=text or "")
        assert code == done.returncode, f"{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stderr
        return done

    def verified(self, token: str) -> object:
        """Return the token, or why it is not valid."""
        database = HistoryDatabase(self.url)
        try:
            return Authenticator(database).verify(token)
        finally:
            database.close()


@pytest.fixture
def person(tmp_path: Path) -> Person:
    """Return a user with an empty history."""
    return Person(tmp_path)


def test_a_token_is_made_listed_and_revoked(person: Person) -> None:
    """``create`` prints the token alone, ``list`` shows it without the secret, ``revoke`` ends it."""
    made = person("token", "create", "--name", "laptop")
    text = made.stdout.strip()
    token = person.verified(text)
    assert isinstance(token, AccessToken)
    assert (ME, os.getuid(), {"read", "submit"}) == (token.account, token.uid, set(map(str, token.scopes)))
    assert re.search(rf"token {token.id} of {ME} expires 20\d\d-.*; it is not shown again", made.stderr)

    listed = person("token", "list").stdout
    (shown,) = json.loads(person("token", "list", "--json").stdout)
    assert token.id in listed
    assert "valid" in listed
    assert text[-43:] not in listed + json.dumps(shown)
    assert ("laptop", ["read", "submit"]) == (shown["name"], shown["scopes"])

    revoked = person("token", "revoke", token.id).stdout
    assert re.fullmatch(rf"token {token.id} of {ME}: revoked at 20\d\d-\d\d-\d\d \d\d:\d\d:\d\d\n", revoked)
    assert "revoked" in person("token", "list").stdout
    assert not isinstance(person.verified(text), AccessToken)
    assert revoked == person("token", "revoke", token.id).stdout, "the first time counts"


def add_token(person: Person, account: str, uid: int) -> str:
    """Return the id of a new token of *account*, as root would make it."""
    database = HistoryDatabase(person.url)
    new = new_token()
    token = AccessToken(
        id=new.id,
        kind=CallerKind.PERSON,
        account=account,
        uid=uid,
        scopes=USUAL_SCOPES,
        name="",
        made_by="root",
        made_at=datetime.now(timezone.utc),
    )
    try:
        database.add_token(token, digest_of(new.secret))
    finally:
        database.close()
    return new.id


def test_an_admin_makes_tokens_of_hosts_and_of_nobody_else(person: Person) -> None:
    """Another account's token takes root, a host's an admin, who also revokes those of others."""
    other = next(each for each in pwd.getpwall() if each.pw_name != ME)
    for admins in ("nobody-at-all", ME):
        refusal = person("token", "create", "--user", other.pw_name, code=5, GPUQUEUE_ADMINS=admins)
        assert f"gpuqueue: only {other.pw_name} may make tokens of this account, or root on" in refusal.stderr
    person("token", "create", "--host", "nodeB", code=5)
    person("token", "list", "--all", code=5)

    admin = {"GPUQUEUE_ADMINS": ME}
    host = person("token", "create", "--host", "nodeB", **admin).stdout.strip()
    person("token", "create", "--user", "no-such-account", code=2, **admin)
    assert (None, frozenset()) == (
        getattr(person.verified(host), "uid", 0),
        getattr(person.verified(host), "scopes", 0),
    )

    theirs = add_token(person, other.pw_name, other.pw_uid)
    assert theirs in person("token", "list", "--all", **admin).stdout
    refused = person("token", "revoke", theirs, code=5).stderr
    unknown = person("token", "revoke", "aaaaaaaa", code=5).stderr
    assert refused.replace(theirs, "aaaaaaaa") == unknown, "nobody learns which tokens there are"
    person("token", "revoke", theirs, **admin)


def test_a_token_in_an_admin_group(person: Person) -> None:
    """The setting admins takes Unix groups as well: %NAME."""
    import grp  # noqa: PLC0415 - beside its only use

    group = grp.getgrgid(os.getgid()).gr_name
    assert "admin    yes" in person("whoami", GPUQUEUE_ADMINS=f"nobody-at-all,%{group}").stdout
    assert "admin    no" in person("whoami", GPUQUEUE_ADMINS=group if group != ME else "x").stdout


def test_the_audit_log_shows_changes_to_admins_only(person: Person) -> None:
    """Tokens made and refused are in the log, without their secrets; users do not read it."""
    text = person("token", "create", "--name", "laptop").stdout.strip()
    person("token", "create", "--name", "lap\x1b[31mtop", code=2)
    person("token", "create", "--host", "nodeB", code=5)
    assert "only an administrator of this site may read the audit log" in person("audit", code=5).stderr

    admin = {"GPUQUEUE_ADMINS": ME}
    lines = person("audit", **admin).stdout
    found = json.loads(person("audit", "--json", "--since", "1h", "--action", "token-create", **admin).stdout)
    assert ["refused", "done"] == [each["outcome"] for each in found]
    assert {(ME, "direct")} == {(each["account"], each["via"]) for each in found}
    assert text[-43:] not in lines + json.dumps(found)
    assert "\x1b" not in lines
    assert [] == json.loads(person("audit", "--json", "--user", "bob", **admin).stdout)
    person("audit", "--since", "yesterday evening", code=2, **admin)


class _Service(BaseHTTPRequestHandler):
    """Answers to one token, and remembers what it was asked."""

    asked: list[tuple[str, str | None]]
    right: str

    def do_GET(self) -> None:
        """Answer who the caller is."""
        self.asked.append((self.path, self.headers["Authorization"]))
        right = self.headers["Authorization"] == f"Bearer {self.right}"
        self.send_response(200 if right else 401)
        self.end_headers()
        self.wfile.write(json.dumps({"account": "ada"}).encode() if right else b"{}")

    def log_message(self, *_: Any) -> None:
        """Print nothing."""


@contextmanager
def service(right: str) -> Iterator[tuple[str, list[tuple[str, str | None]]]]:
    """Run an HTTP server that accepts the token *right*; yield its address and what it is asked."""
    asked: list[tuple[str, str | None]] = []
    server = HTTPServer(("127.0.0.1", 0), type("Service", (_Service,), {"asked": asked, "right": right}))
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


TOKEN = "gq_abcdefgh_" + "x" * 43


def test_a_login_is_checked_and_stored(person: Person) -> None:
    """``login`` reads the token from standard input, checks it with the service and stores it; ``logout`` ends that."""
    with service(TOKEN) as (url, asked):
        done = person("login", url, text=f"{TOKEN}\n")
        assert f"logged in at {url} as ada\n" == done.stdout
        assert [("/api/v1/me", f"Bearer {TOKEN}")] == asked
    stored = Path(person.environ["XDG_CONFIG_HOME"]) / "gpuqueue" / "credentials.json"
    assert {url: TOKEN} == json.loads(stored.read_text())

    left = person("logout", url).stdout
    assert "gpuqueue token revoke abcdefgh" in left
    assert TOKEN not in left
    assert "you are not logged in" in person("logout", url, code=5).stderr


def test_a_token_that_the_service_refuses_is_not_stored(person: Person) -> None:
    """A wrong token leaves the earlier one as it was."""
    with service(TOKEN) as (url, _):
        person("login", url, text=TOKEN)
        refused = person("login", url, code=5, text=TOKEN[:-1] + "y").stderr
    assert "does not accept this token" in refused
    assert "xxxx" not in refused
    stored = Path(person.environ["XDG_CONFIG_HOME"]) / "gpuqueue" / "credentials.json"
    assert {url: TOKEN} == json.loads(stored.read_text())


def test_a_login_without_the_service_says_so(person: Person) -> None:
    """If the service does not answer, the token is stored, and the user knows that nobody has checked it."""
    with service(TOKEN) as (url, _):
        pass
    done = person("login", url, text=TOKEN)
    assert "does not answer" in done.stderr
    assert "the token is stored and was not checked" in done.stderr


@pytest.mark.parametrize("text", ["", "secret-word", TOKEN[:-1], f"{TOKEN} {TOKEN}"])
def test_what_is_no_token_is_not_shown(person: Person, text: str) -> None:
    """A text that is no token is refused, and is in no message: it may be a password."""
    done = person("login", "https://gpu.example.org", code=2, text=text)
    assert ("that is no access token" if text else "no access token on standard input") in done.stderr
    assert not text or text not in done.stderr


def test_login_takes_no_token_as_an_argument(person: Person) -> None:
    """A token on the command line, which other users could read, is an error."""
    refused = person("login", "https://gpu.example.org", TOKEN, code=2)
    assert "unexpected extra argument" in refused.stderr


def test_whoami_without_a_service(person: Person) -> None:
    """``whoami`` names the account of the process, and that nothing but the process says so."""
    me = json.loads(person("whoami", "--json").stdout)
    assert (ME, os.getuid(), "direct", False) == (me["account"], me["uid"], me["via"], me["admin"])
    assert "this process, without a service" in person("whoami").stdout


@pytest.mark.parametrize("name", ["", "  ", "a\nb"])
def test_an_empty_name_of_a_token_is_refused(person: Person, name: str) -> None:
    """It was taken for none, and the list had a token without a name."""
    refused = person("token", "create", "--name", name, code=2)

    assert ("", 1) == (refused.stdout, refused.stderr.count("\n"))
    assert "name" in refused.stderr
