"""The service of docker-compose.yml, as far as possible without Docker: its namespaces, mounts and user id."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest
from bounded import until
from private_machine import BIN, PrivateMachine

pytestmark = [pytest.mark.full, pytest.mark.timeout(300)]

#: The user id of the image's account. The host has none with it.
UID = "10001"
#: What a container has of its own, and what it shares: the directory of the socket, and the host's accounts.
CONTAINER = f"""
set -e
mkdir /tmp/socket-of-$$
mount --bind /run/gpuqueue /tmp/socket-of-$$
mount -t tmpfs -o mode=755 none /run
mount -t tmpfs -o mode=755 none /home
mkdir /run/gpuqueue
mount --move /tmp/socket-of-$$ /run/gpuqueue
rmdir /tmp/socket-of-$$
exec setpriv --reuid={UID} --regid={UID} --clear-groups -- "$@"
"""
STATE = "/var/lib/state"


@pytest.fixture
def host(machine_of_its_own: PrivateMachine) -> Iterator[PrivateMachine]:
    """Return a machine with two people, and two containers: of a worker (pid: host) and of the service."""
    machine = machine_of_its_own
    for name in ("alice", "bob"):
        machine.root("groupadd", "people")
        machine.add_person(name, "people")
    for path in ("/run/gpuqueue", STATE):
        machine.root("install", "-d", "-o", UID, "-m", "755" if path.startswith("/run") else "700", path)
    environ = [f"GPUQUEUE_STATE_DIR={STATE}", "GPUQUEUE_CONFIG=/dev/null", "GPUQUEUE_HEADROOM=0"]
    mount = ["unshare", "--mount", "--propagation", "private"]
    worker = [*mount, "/bin/sh", "-c", CONTAINER, "sh", "env", *environ, "GPUQUEUE_HOST=box-gpu0"]
    own_pids = [*mount, "--pid", "--fork", "--kill-child", "--mount-proc"]
    service = [*own_pids, "/bin/sh", "-c", CONTAINER, "sh", "env", *environ, "GPUQUEUE_HOST=box"]
    started = [
        subprocess.Popen(machine.enter(*words), stdin=subprocess.DEVNULL)
        for words in (
            [*worker, str(BIN / "gpuqueue"), "up", "--foreground", "--devices", "cpu"],
            [*service, str(BIN / "gpuqueue"), "serve"],
        )
    ]
    try:
        until(lambda: "cpu" in machine.person("alice", "gpuqueue", "gpus").stdout, what="the device", timeout_s=60)
        yield machine
    finally:
        for process in started:  # what they have started ends with the machine
            process.kill()
            process.wait(timeout=30)


def test_people_of_the_host_use_the_container_as_themselves(host: PrivateMachine) -> None:
    """The kernel tells the service who connects, by the user ids of the host; their jobs run as the container's."""
    assert ["alice", "bob"] == [host.person(who, "gpuqueue", "whoami").stdout.split()[1] for who in ("alice", "bob")]
    words = ("submit", "--mem", "64M", "--cwd", "/", "--", "/bin/sh", "-c", "id -u; exec sleep 1000")
    made = host.person("alice", "gpuqueue", *words)
    assert 0 == made.returncode, made.stderr
    job = made.stdout.strip()
    log = until(lambda: host.person("alice", "gpuqueue", "logs", job).stdout, what="its output", timeout_s=60)

    assert f"{UID}\n" == log  # in the worker's container, host box-gpu0, read by the service, host box
    refused = host.person("bob", "gpuqueue", "cancel", job)
    assert (5, True) == (refused.returncode, "alice" in refused.stderr), refused.stderr
    assert 5 == host.person("bob", "gpuqueue", "logs", job).returncode
    assert 5 == host.person("bob", "gpuqueue", "token", "create", "--user", "alice").returncode
    made = host.gpuqueue("token", "create", "--user", "alice")  # root, also that of the container
    assert (0, True) == (made.returncode, "of alice expires" in made.stderr), made.stderr
    assert 0 == host.gpuqueue("cancel", job).returncode
    assert 0 != host.person("alice", "gpuqueue", "wait", job).returncode
