"""Notifications to URLs of users in system mode, from ``gpuqueue install`` on, with real accounts."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from bounded import until
from listeners import Hook, web_hook
from private_machine import BIN, PrivateMachine
from unit_files import Unit

pytestmark = [pytest.mark.full, pytest.mark.timeout(400)]

SETTINGS = 'heartbeat = "0.5s"\npoll = "0.5s"\n'
KEY = "/etc/gpuqueue/ticket-key"
#: URLs that have had Apprise open a file, or might; each is sent to the service by the command and by HTTP.
ATTACKS = (
    f"tgram://1:abc/5?verify=no;template={KEY}",
    f"tgram://1:abc/5?topic=1&%20template={KEY}",
    f"tgram://1:abc/5?Template={KEY}",
    f"tgram://1:abc/5?topic=1%26template={KEY}",
    f"tgram://1:abc/%23?%74emplate={KEY}",
    f"tgram://1:abc/5#?+template={KEY}",
    f"slack://a:b@T1/B2/C3?template={KEY}",
    f"mailto://a:b@host?to=b@c.org&pgpprv={KEY}",
    f"ntfy://ntfy.sh/x?attach=file://{KEY}",
    f"form://host/x?attach-as=file&attach={KEY}",
    f"file://{KEY}",
)
#: Sends a submit over the socket, past what the command checks.
SUBMIT = """
import http.client, json, socket, sys
for to in sys.argv[1:]:
    link = http.client.HTTPConnection("localhost")
    link.sock = socket.socket(socket.AF_UNIX)
    link.sock.connect("/run/gpuqueue/api.sock")
    notifications = [{"to": to, "when": "end"}]
    body = {"argv": ["true"], "cwd": "/", "env": {}, "mem_bytes": 2**26, "notifications": notifications}
    link.request("POST", "/api/v1/jobs", json.dumps(body))
    answer = link.getresponse()
    print(answer.status, answer.read().decode())
"""


@pytest.fixture
def hook() -> Iterator[Hook]:
    """Return a web server at 127.0.0.1 that stores what is posted."""
    with web_hook() as made:
        yield made


@dataclass
class Installed:
    """A machine in system mode with the person alice."""

    machine: PrivateMachine
    units: dict[str, Unit]

    def submit(self, to: str) -> int:
        """Submit a job of alice's that notifies *to*, wait for its end, and return its id."""
        done = self.alice("submit", "--mem", "64M", "--on-end", to, "--", "true")
        assert (0, "") == (done[0], done[2]), done
        assert 0 == self.alice("wait", done[1].strip())[0]
        return int(done[1])

    def alice(self, *words: str) -> tuple[int, str, str]:
        """Run ``gpuqueue`` as alice."""
        done = self.machine.person("alice", "gpuqueue", *words)
        return done.returncode, done.stdout, done.stderr

    def of_service(self, *words: str) -> str:
        """Run ``gpuqueue`` as the account of the service, and return what it prints."""
        become = ("setpriv", "--reuid=gpuqueue", "--regid=gpuqueue", "--init-groups", "--")
        done = self.machine.root(*become, "env", "GPUQUEUE_CONFIG=/etc/gpuqueue/config.toml", "gpuqueue", *words)
        return done.stdout + done.stderr

    def until_shown(self, job: int, words: str) -> None:
        """Wait until ``show`` has *words* about a job of alice's."""
        until(lambda: words in self.alice("show", str(job))[1], what=f"{words} of job {job}", timeout_s=60)

    def configure(self, text: str) -> None:
        """Add *text* to the settings of the service, and start it again."""
        self.machine.root("sh", "-c", f"printf '%s' '{text}' >> /etc/gpuqueue/config.toml")
        for name in ("gpuqueue-serve", "gpuqueue-store"):
            self.units[name].end(signal.SIGTERM)
        self.start("gpuqueue-store", "gpuqueue-serve")

    def start(self, *names: str) -> None:
        """Start units, and wait until the service and its device answer."""
        for name in names:
            self.units[name].start()
        until(lambda: "cpu" in self.alice("gpus")[1], what="a device", timeout_s=100)


@pytest.fixture
def installed(machine_of_its_own: PrivateMachine, tmp_path: Path, hook: Hook) -> Iterator[Installed]:
    """Return a machine on which everything was installed and started. Its target ``team`` is the web server."""
    machine = machine_of_its_own
    done = machine.gpuqueue("install", "--yes")
    if "can be changed by others than root" in done.stderr:
        pytest.skip(done.stderr)
    assert 0 == done.returncode, done.stderr
    site = f'{SETTINGS}notify = {{ team = "json://127.0.0.1:{hook.port}/team" }}\n'
    workers = f'{SETTINGS}devices = "cpu"\nheadroom = "0"\n'
    for text, name in ((site, "config"), (workers, "workers")):
        machine.root("sh", "-c", f"printf '%s' '{text}' >> /etc/gpuqueue/{name}.toml")
    machine.add_person("alice", "gpuqueue-users")
    names = ("gpuqueue-launcher", "gpuqueue-notify", "gpuqueue-store", "gpuqueue-serve", "gpuqueue")
    found = Installed(machine, {each: Unit(machine, each, tmp_path / each) for each in names})
    found.start(*names)
    yield found
    machine.close()
    for unit in found.units.values():
        unit.ended()


def test_a_user_has_no_file_opened_and_no_service_inside_reached(installed: Installed, hook: Hook) -> None:
    """No attack is accepted. Loopback is reached by a target of the site only, until the site permits it to users."""
    _no_attack_is_accepted(installed)

    closed = installed.submit(f"json://localhost:{hook.port}/closed")
    installed.submit("team")
    installed.until_shown(closed, "it leads to an address that is not public")
    until(lambda: hook.reported("team"), what="the target of the site", timeout_s=60)
    assert [] == hook.reported("closed")
    tried = installed.of_service("notify", "--test", f"json://127.0.0.1:{hook.port}/closed")
    assert "nothing was sent to json://…: it leads to an address that is not public" in tried

    installed.configure('notify_networks = "127.0.0.1"\n')
    sent = installed.submit(f"json://localhost:{hook.port}/hang")
    until(lambda: hook.reported("hang"), what="the permitted web server", timeout_s=60)
    senders = {
        account: installed.machine.root("pgrep", "-u", account, "-f", "gpuqueue.notify.child").stdout.split()
        for account in ("gpuqueue", "gpuqueue-notify")
    }
    hook.released.set()
    assert ([], True) == (senders["gpuqueue"], bool(senders["gpuqueue-notify"]))
    installed.until_shown(sent, "sent 20")
    _the_notifier_reads_nothing(installed)


def _no_attack_is_accepted(installed: Installed) -> None:
    """Check that each URL is refused in one line, by the command and by HTTP, and that no job was made."""
    for to in ATTACKS:
        code, out, line = installed.alice("submit", "--mem", "64M", "--on-end", to, "--", "true")
        assert (2, "", 1) == (code, out, line.count("\n")), (to, code, out, line)
        assert "is not permitted in a job: write " in line or "are not permitted here" in line
        assert KEY not in line
    answers = installed.machine.person("alice", str(BIN / "python"), "-c", SUBMIT, *ATTACKS).stdout.splitlines()
    assert ["400"] * len(ATTACKS) == [each.split()[0] for each in answers], answers
    assert [] == json.loads(installed.alice("queue", "--all", "--json")[1] or "[]")


def _the_notifier_reads_nothing(installed: Installed) -> None:
    """Check that the account reads no file of the queue, and has nothing sent itself."""
    become = ("setpriv", "--reuid=gpuqueue-notify", "--regid=gpuqueue-notify", "--init-groups", "--")
    for path in (KEY, "/etc/gpuqueue/config.toml", "/etc/gpuqueue/workers.toml", "/var/lib/gpuqueue/history.db"):
        assert 0 == installed.machine.root("test", "-f", path).returncode
        done = installed.machine.root(*become, "cat", path)
        assert (1, "") == (done.returncode, done.stdout), path
    assert "gpuqueue-notify\n" == installed.machine.root(*become, "id", "-Gn").stdout


def test_where_no_notifier_is_urls_of_users_are_refused(installed: Installed, hook: Hook) -> None:
    """As in system mode that was installed before: the service sends nothing in its place, and targets work."""
    installed.configure('notify_networks = "127.0.0.1"\n')
    hook.refuses = True
    late = installed.submit(f"json://127.0.0.1:{hook.port}/refuse")
    installed.until_shown(late, "not sent yet after 1 try")
    installed.units["gpuqueue-notify"].end(signal.SIGTERM)

    refused = installed.alice("submit", "--mem", "64M", "--on-end", f"json://127.0.0.1:{hook.port}/no", "--", "true")
    installed.submit("team")

    assert "the unit gpuqueue-notify does not run" in installed.of_service("doctor")
    assert (5, "", 1) == (refused[0], refused[1], refused[2].count("\n"))
    assert "messages to URLs of users need the unit gpuqueue-notify, which does not run here" in refused[2]
    installed.until_shown(late, "need the unit gpuqueue-notify")
    until(lambda: hook.reported("team"), what="the target of the site", timeout_s=60)
    assert ([], 1) == (hook.reported("no"), len(hook.reported("refuse")))
