"""``gpuqueue join`` and ``gpuqueue uninstall`` on a machine of its own, with real accounts, and a real service."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from private_machine import PrivateMachine
from service_fixtures import ServedSite, serving

from gpuqueue.model.access_token import TokenRequest, new_token

pytestmark = pytest.mark.full

PLACES = ("/etc", "/run", "/var/lib")
ETC = "/etc/gpuqueue"
STORE = "rediss://gpuqueue:hunter2@127.0.0.1:1/0"
OK, USAGE, UNREACHABLE, REFUSED = 0, 2, 4, 5


@pytest.fixture
def site() -> Iterator[ServedSite]:
    """Return a site whose store other hosts would reach."""
    with serving(GPUQUEUE_HOSTS_REDIS_URL=STORE) as made:
        yield made


@pytest.fixture
def machine(machine_of_its_own: PrivateMachine) -> PrivateMachine:
    """Return a machine whose gpuqueue only root can change."""
    done = machine_of_its_own.gpuqueue("install", "--dry-run")
    if "can be changed by others than root" in done.stderr:
        pytest.skip(done.stderr)
    return machine_of_its_own


class Joiner:
    """Runs ``gpuqueue join`` on the machine. /tmp is that of the tests, so the files of the site are there."""

    def __init__(self, machine: PrivateMachine, site: ServedSite, place: Path) -> None:
        self.machine, self.site, self._place = machine, site, place
        self.url = f"https://127.0.0.1:{site.port}"

    def token(self, host: str | None = "nodeB") -> str:
        """Return a file with a new token of a host, or of this account."""
        with self.site.client("unix") as client:
            return self.file(client.access.make_token(TokenRequest(host=host)).text)

    def file(self, text: str) -> str:
        """Return a new private file with *text*."""
        path = self._place / f"file{len(list(self._place.iterdir()))}"
        path.touch(0o600)
        path.write_text(text)
        return str(path)

    def __call__(self, *words: str, url: str = "", ca: str | None = "") -> subprocess.CompletedProcess[str]:
        """Run the command without a terminal."""
        named = str(self.site.directory / "cert.pem") if ca == "" else ca
        more = [] if named is None else ["--ca", named]
        return self.machine.gpuqueue("join", url or self.url, *more, *words)


@pytest.fixture
def joiner(machine: PrivateMachine, site: ServedSite, tmp_path: Path) -> Joiner:
    """Return the machine and the site that it joins."""
    return Joiner(machine, site, tmp_path)


def test_join_makes_what_it_says_and_only_once(joiner: Joiner) -> None:
    """A dry run changes nothing; join makes all but a service; a second one changes nothing; uninstall removes it."""
    machine = joiner.machine
    before = machine.listing(*PLACES)
    token = joiner.token()
    dry, unasked = joiner("--token-file", token, "--dry-run"), joiner("--token-file", token)
    assert (OK, USAGE) == (dry.returncode, unasked.returncode), dry.stderr
    assert "there is no terminal to ask on: give --yes" in unasked.stderr
    assert before == machine.listing(*PLACES)

    done = joiner("--token-file", token, "--yes")
    assert OK == done.returncode, done.stderr
    assert dry.stdout == "".join(line + "\n" for line in done.stdout.splitlines()[: len(dry.stdout.splitlines())])
    made = sorted(set(machine.listing(*PLACES)) - set(before))
    for expected in (
        "gpuqueue:gpuqueue 700 d /var/lib/gpuqueue",
        "gpuqueue:gpuqueue 711 d /var/lib/gpuqueue-runs",
        f"root:gpuqueue 640 f {ETC}/config.toml",
        f"gpuqueue:gpuqueue 600 f {ETC}/host-token",
        f"root:root 644 f {ETC}/service-ca.pem",
        "root:root 644 f /etc/systemd/system/gpuqueue-launcher.service",
        "root:root 644 f /etc/systemd/system/gpuqueue-runs.service",
        "root:root 644 f /etc/systemd/system/gpuqueue.service",
    ):
        assert expected in made
    assert not [each for each in made if "gpuqueue-serve" in each or "store-ca" in each]
    assert "start the two processes as root with:" in done.stdout
    assert 'host = "nodeB"' in machine.text(f"{ETC}/config.toml")
    assert "hunter2" not in done.stdout + done.stderr + machine.text(f"{ETC}/installed.json")

    state = machine.listing(*PLACES), machine.text("/etc/passwd"), machine.text(f"{ETC}/config.toml")
    again = joiner("--token-file", token, "--yes")
    assert (OK, "nothing to do") == (again.returncode, again.stdout.splitlines()[-1])
    assert {"there"} == {line.split()[0] for line in again.stdout.splitlines()[:-1]}
    renewed = joiner("--token-file", joiner.token(), "--yes")
    assert ["change"] == [line.split()[0] for line in renewed.stdout.splitlines() if "host-token" in line]
    assert state == (machine.listing(*PLACES), machine.text("/etc/passwd"), machine.text(f"{ETC}/config.toml"))
    key = joiner("--token-file", token, "--ticket-key", joiner.file("0f" * 32), "--force", "--yes")
    assert OK == key.returncode, key.stderr
    assert f"root:root 400 f {ETC}/ticket-key" in machine.listing(*PLACES)
    kept = joiner("--token-file", token, "--yes")
    assert (OK, "nothing to do") == (kept.returncode, kept.stdout.splitlines()[-1])

    service = machine.gpuqueue("install", "--yes")
    assert (REFUSED, f"this machine has joined the service at {joiner.url}") == (
        service.returncode, service.stderr.strip().removeprefix("gpuqueue: ").partition(": gpuqueue uninstall")[0],
    )  # fmt: skip
    machine.root("sh", "-c", f"echo 'slots = 2' >> {ETC}/config.toml")
    gone = machine.gpuqueue("uninstall", "--yes")
    assert OK == gone.returncode, gone.stderr
    assert f"{ETC}/installed.json\n" == machine.root("find", ETC, "-type", "f").stdout
    assert OK == machine.gpuqueue("uninstall", "--yes", "--purge").returncode
    assert before == machine.listing(*PLACES)


def test_nothing_is_written_before_the_service_agrees(joiner: Joiner) -> None:
    """A wrong token, address or certificate is one line, and the machine is as before."""
    machine = joiner.machine
    before = machine.listing(*PLACES)
    good = ("--token-file", joiner.token(), "--yes")
    wrong, hers = joiner.file(str(new_token())), joiner.token(host=None)
    ca = joiner.file("no certificate")
    key = joiner.file("no key")
    tries = [
        (joiner("--token-file", wrong, "--yes"), REFUSED, "does not accept this token: make one with gpuqueue token"),
        (joiner("--token-file", hers, "--yes"), REFUSED, "this is no token of a worker host: make one with"),
        (joiner("--token-file", "/nowhere", "--yes"), USAGE, "the token file /nowhere cannot be read: No such file"),
        (joiner(*good, url="https://127.0.0.1:1"), UNREACHABLE, "the service at https://127.0.0.1:1 does not answer"),
        (joiner(*good, url="127.0.0.1"), USAGE, "is no address of a service"),
        (joiner(*good, ca=None), REFUSED, "is not trusted: give --ca, a file with the certificate of the authority"),
        (joiner(*good, ca=ca), USAGE, f"{ca} is no certificate (PEM) that can be used"),
        (joiner(*good, "--ticket-key", key), USAGE, f"{key} is no copy of the {ETC}/ticket-key of the service"),
        (joiner(*good, "--group", "a b"), USAGE, "--group a b: use at most 31 lower-case letters"),
    ]
    for done, code, says in tries:
        assert (code, True, 1) == (done.returncode, says in done.stderr, len(done.stderr.splitlines())), done
    assert before == machine.listing(*PLACES)


def test_a_host_joins_a_site_whose_store_has_no_port(joiner: Joiner, site: ServedSite) -> None:
    """It gets neither an address nor a password of a store, and reaches the store through the service."""
    machine = joiner.machine
    before = machine.listing(*PLACES)
    with serving() as embedded:
        other = Joiner(machine, embedded, Path(site.directory))
        done = other("--token-file", other.token(), "--yes")
        assert OK == done.returncode, done.stderr
        settings = machine.text(f"{ETC}/config.toml")
        assert ("redis_url" in settings, f'service_url = "{other.url}"' in settings) == (False, True)
    assert OK == machine.gpuqueue("uninstall", "--yes", "--purge").returncode
    assert before == machine.listing(*PLACES)


def test_a_machine_with_a_site_of_its_own_joins_none(joiner: Joiner) -> None:
    """Neither one that install has set up, nor one with settings that nobody has recorded."""
    machine = joiner.machine
    token = ("--token-file", joiner.token(), "--yes")
    assert OK == machine.gpuqueue("install", "--yes").returncode
    before = machine.listing(*PLACES)
    refused = joiner(*token)
    assert (REFUSED, True) == (refused.returncode, "this machine runs a service of its own" in refused.stderr), refused
    assert before == machine.listing(*PLACES)

    assert OK == machine.gpuqueue("uninstall", "--yes", "--purge").returncode
    machine.root("sh", "-c", f"mkdir {ETC} && echo 'slots = 2' > {ETC}/config.toml")
    refused = joiner(*token)
    says = f"{ETC}/config.toml is there, and is not of a host that has joined: move it away"
    assert (REFUSED, f"gpuqueue: {says}") == (refused.returncode, refused.stderr.strip())
