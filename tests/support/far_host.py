"""A worker host with a real worker and a real relay, beside a service that counts as another host."""

from __future__ import annotations

import subprocess
from contextlib import ExitStack
from pathlib import Path

from forked_command import BIN
from service_fixtures import ServedSite
from site_of_one import Site

from gpuqueue.model.access_token import TokenRequest

GPUQUEUE = str(BIN / "gpuqueue")


class FarHost:
    """The host *name*, and commands of users that know only the service."""

    def __init__(self, served: ServedSite, directory: Path, name: str = "far") -> None:
        self.served = served
        token = directory / "host-token"
        with served.client("unix") as admin:
            token.write_text(admin.access.make_token(TokenRequest(host=name)).text)
        token.chmod(0o600)
        self.site = Site(
            directory / "far",
            served.settings.redis_url,
            GPUQUEUE_HOST=name,
            GPUQUEUE_RECORD="false",
            GPUQUEUE_SERVICE_URL=f"https://127.0.0.1:{served.port}",
            GPUQUEUE_SERVICE_TOKEN_FILE=str(token),
            GPUQUEUE_SERVICE_CA=str(served.directory / "cert.pem"),
        )
        self.environ = {**served.environ, "GPUQUEUE_URL": f"unix://{served.socket_path}", "GPUQUEUE_SNAPSHOT": "false"}
        self._stack = ExitStack()
        self._stack.callback(self.site.stop)
        recorder = subprocess.Popen([str(BIN / "gpuqueue-worker"), "record"], env=served.environ)
        self._stack.callback(recorder.wait, timeout=30)
        self._stack.callback(recorder.kill)
        self.site.start_worker()
        self.relay = self.start_relay()

    def start_relay(self) -> subprocess.Popen[bytes]:
        """Start the relay."""
        return self.site.spawn("relay")

    def kill_relay(self) -> None:
        """End the relay with SIGKILL."""
        self.relay.kill()
        self.relay.wait(timeout=30)

    def run(self, script: str) -> list[str]:
        """Return the command that runs *script* with a terminal."""
        return [GPUQUEUE, "run", "--pty", "--mem", "1M", "--", "sh", "-c", script]

    def close(self) -> None:
        """End all processes, jobs included."""
        self._stack.close()
