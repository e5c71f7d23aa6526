"""The notifier with a real account of its own, a real web server and a real mail server."""

from __future__ import annotations

import http.server
import json
import os
import pwd
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkdtemp

import pytest
from bounded import until
from listeners import Hook, MailBox, mail_server, web_hook
from service_site import as_account, skip_without_mounts
from submitters import People

from gpuqueue.notify import child, sending
from gpuqueue.notify.message import Message

#: 127.0.0.1 as an address of IPv6.
MAPPED = "[::ffff:7f00:1]"
MESSAGE = Message(title="job 1 succeeded", body="gpuqueue show 1", good=True)
#: Connects to the socket, and prints the answer to a message to a URL.
ASK = """
import json, socket, sys
with socket.socket(socket.AF_UNIX) as link:
    link.connect(sys.argv[1])
    try:
        fields = {"url": sys.argv[2], "title": "", "body": "x", "good": True, "networks": ["127.0.0.0/8"]}
        link.sendall(json.dumps({**fields, "limit_s": 30}).encode())
        link.shutdown(socket.SHUT_WR)
        print(repr(link.recv(1000)))
    except OSError:
        print("b''")
"""


@pytest.fixture(scope="module")
def account(people: People) -> pwd.struct_passwd:
    """Return the account of the notifier."""
    return people.add("notify", "-r")


def environ(people: People) -> dict[str, str]:
    """Return the environment of a process of another account."""
    return {"HOME": "/", "PATH": f"{people.installation}/bin:/usr/bin:/bin"}


def listens(path: Path) -> bool:
    """Return whether somebody accepts connections at a socket; its file is there a moment before."""
    with socket.socket(socket.AF_UNIX) as link:
        return link.connect_ex(str(path)) == 0


@contextmanager
def notifier(people: People, account: pwd.struct_passwd, serves: str) -> Iterator[Path]:
    """Run a notifier for the account *serves*, and return its socket."""
    folder = Path(mkdtemp(prefix="gpuqueue-notify-"))
    folder.chmod(0o755)
    mounts, run = folder / "mounts", folder / "run"
    mounts.mkdir()
    run.mkdir()
    os.chown(run, account.pw_uid, account.pw_gid)
    path = run / "notify.sock"
    words = ["python", "-m", "gpuqueue.notify.notifier", "--account", serves, "--socket", str(path)]
    process = subprocess.Popen(
        as_account(people, account, mounts, *words),
        cwd="/", env=environ(people), stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        until(lambda: listens(path) or process.poll() is not None, what="the notifier")
        if process.poll() is not None:
            assert process.stderr is not None
            output = process.stderr.read()
            skip_without_mounts(subprocess.CompletedProcess(words, 1, "", output))
            pytest.fail(output)
        yield path
    finally:
        process.terminate()
        process.wait(timeout=30)
        if process.stderr is not None:
            process.stderr.close()
        shutil.rmtree(folder)


@pytest.fixture
def at_root(people: People, account: pwd.struct_passwd, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Run a notifier that serves this process."""
    with notifier(people, account, "root") as path:
        monkeypatch.setattr(sending, "SOCKET", path)
        yield


@pytest.fixture
def hook() -> Iterator[Hook]:
    """Return a web server at 127.0.0.1 that stores what is posted."""
    with web_hook() as made:
        yield made


@pytest.fixture
def box() -> Iterator[MailBox]:
    """Return a mail server at 127.0.0.1 that stores what is sent."""
    with mail_server() as made:
        yield made


@pytest.mark.full
@pytest.mark.usefixtures("at_root")
def test_users_urls_reach_what_the_site_permits_and_nothing_else(hook: Hook, box: MailBox) -> None:
    """Loopback is not reached, by address or name, unless the site permits it. Then web hook and mail arrive."""
    refused = [sending.send(f"json://{host}:{hook.port}/no", MESSAGE, networks=()) for host in ("localhost", MAPPED)]
    other = sending.send(f"json://127.0.0.1:{hook.port}/no", MESSAGE, networks=("10.0.0.0/8", "127.0.0.2"))
    mail = sending.send(f"mailto://a:b@127.0.0.1:{box.port}/bob@e.org?mode=insecure&from=q@e.org", MESSAGE, networks=())

    assert [child.NOT_PUBLIC] * 4 == [*refused, other, mail]
    assert ([], []) == (hook.posts, box.mails)

    permitted = ("127.0.0.0/8",)
    posted = sending.send(f"json://127.0.0.1:{hook.port}/yes", MESSAGE, networks=permitted)
    mailed = sending.send(
        f"mailto://a:b@127.0.0.1:{box.port}/bob@e.org?mode=insecure&from=q@e.org", MESSAGE, networks=permitted
    )

    assert (None, None) == (posted, mailed)
    assert [MESSAGE.body] == [post["message"] for post in hook.reported("yes")]
    assert [("bob@e.org",)] == [recipients for _, recipients, _ in box.mails]


@pytest.mark.full
@pytest.mark.usefixtures("at_root")
def test_a_redirect_leads_to_no_other_network(hook: Hook) -> None:
    """A server that the site permits sends the notifier on to one that it does not: nothing arrives there."""

    class Redirect(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.send_response(307)
            self.send_header("Location", f"http://127.0.0.1:{hook.port}/there")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.2", 0), Redirect) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        url = f"json://127.0.0.2:{server.server_port}/x"
        trouble = sending.send(url, MESSAGE, networks=("127.0.0.2",))
        both = sending.send(url, MESSAGE, networks=("127.0.0.1", "127.0.0.2"))
        server.shutdown()
        thread.join()

    assert (child.NOT_PUBLIC, None) == (trouble, both)
    assert 1 == len(hook.reported("there"))


def test_only_the_account_of_the_service_gets_an_answer(people: People, account: pwd.struct_passwd, hook: Hook) -> None:
    """Neither another person nor root has it send something; the service has."""
    with notifier(people, account, people.service.pw_name) as path:
        answers = {}
        mounts = path.parents[1] / "mounts"
        for who in (people.bob, pwd.getpwuid(0), people.service):
            words = ("python", "-c", ASK, str(path), f"json://127.0.0.1:{hook.port}/{who.pw_uid}")
            done = subprocess.run(
                as_account(people, who, mounts, *words),
                capture_output=True, text=True, check=True, timeout=60, cwd="/", env=environ(people),
            )  # fmt: skip
            answers[who.pw_uid] = done.stdout.strip()

    assert {people.bob.pw_uid: "b''", 0: "b''", people.service.pw_uid: "b'{\"trouble\": null}'"} == answers
    assert [f"/{people.service.pw_uid}"] == [where for where, _ in hook.posts]


@pytest.mark.full
def test_the_notifier_survives_requests_that_are_none(people: People, account: pwd.struct_passwd) -> None:
    """A request that is no JSON, lacks a field or is too long is not answered, and the next one is."""
    with notifier(people, account, "root") as path:
        for data in (b"", b"[]", b"{}", b"\xff", b'{"limit_s": "x"}', b"x" * 2 * sending.MAX_BYTES):
            with socket.socket(socket.AF_UNIX) as link:
                link.settimeout(30)
                link.connect(str(path))
                try:
                    link.sendall(data)
                    link.shutdown(socket.SHUT_WR)
                    assert b"" == link.recv(100)
                except (BrokenPipeError, ConnectionResetError):
                    continue
        with socket.socket(socket.AF_UNIX) as link:
            link.settimeout(60)
            link.connect(str(path))
            fields = {"url": "nonsense://x", "title": "", "body": "x", "good": True, "networks": [], "limit_s": 20}
            link.sendall(json.dumps(fields).encode())
            link.shutdown(socket.SHUT_WR)
            assert {"trouble": child.NO_SCHEME} == json.loads(link.recv(1000))


def test_without_a_notifier_nothing_is_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hook: Hook) -> None:
    """The message is not sent by this account in its place. The reason says what to do."""
    for name in ("missing", "closed"):
        path = tmp_path / name
        if name == "closed":
            with socket.socket(socket.AF_UNIX) as closed:
                closed.bind(str(path))
        monkeypatch.setattr(sending, "SOCKET", path)

        assert not sending.has_notifier()
        assert sending.NO_NOTIFIER == sending.send(hook.url(), MESSAGE, networks=("127.0.0.0/8",))
    assert "gpuqueue install" in sending.NO_NOTIFIER
    assert [] == hook.posts
