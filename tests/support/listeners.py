"""Notification targets: a real web server and a real mail server, on this machine."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email import message_from_bytes, policy
from email.message import EmailMessage
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from aiosmtpd.controller import Controller
from aiosmtpd.smtp import AuthResult


@dataclass
class Hook:
    """A web hook. Posts are stored by path; ``/refuse`` gets 500, ``/hang`` no answer before the end."""

    port: int = 0
    posts: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    refuses: bool = True
    released: threading.Event = field(default_factory=threading.Event)

    def url(self, path: str = "secret") -> str:
        """Return the URL to which Apprise posts JSON."""
        return f"json://localhost:{self.port}/{path}"

    def reported(self, path: str = "secret") -> list[dict[str, Any]]:
        """Return the posts at *path*, in order."""
        return [body for where, body in list(self.posts) if where == f"/{path}"]


@contextmanager
def web_hook() -> Iterator[Hook]:
    """Run a web server that stores what is posted."""
    hook = Hook()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            hook.posts.append((self.path, body))
            if self.path == "/hang":
                hook.released.wait(60)
            self.send_response(500 if self.path == "/refuse" and hook.refuses else 200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_: object) -> None:
            """Ignore errors of a sender that was killed."""

    server = Server(("127.0.0.1", 0), Handler)
    hook.port = server.server_port
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield hook
    finally:
        hook.released.set()
        server.shutdown()
        server.server_close()
        thread.join()


@dataclass
class MailBox:
    """The only mailbox of a mail server: the sender, the recipients and the mail."""

    port: int = 0
    mails: list[tuple[str, tuple[str, ...], EmailMessage]] = field(default_factory=list)

    async def handle_DATA(self, _server: object, _session: object, envelope: Any) -> str:  # noqa: N802 - aiosmtpd's
        """Store a mail."""
        mail = message_from_bytes(envelope.content, policy=policy.default)
        assert isinstance(mail, EmailMessage)
        self.mails.append((envelope.mail_from, tuple(envelope.rcpt_tos), mail))
        return "250 OK"


@contextmanager
def mail_server() -> Iterator[MailBox]:
    """Run a mail server that stores its mails."""
    box = MailBox()
    with socket.create_server(("127.0.0.1", 0)) as free:  # the controller must know its port beforehand
        box.port = free.getsockname()[1]
    controller = Controller(
        box,
        hostname="127.0.0.1",
        port=box.port,
        authenticator=lambda *_: AuthResult(success=True),
        auth_require_tls=False,
    )
    controller.start()
    try:
        yield box
    finally:
        controller.stop()
