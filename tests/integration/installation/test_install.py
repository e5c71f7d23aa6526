"""``gpuqueue install`` and ``gpuqueue uninstall`` on a machine of its own, with real accounts and directories."""

from __future__ import annotations

from pathlib import Path

import pytest
from private_machine import HOME, PrivateMachine

PLACES = ("/etc", "/run", "/var/lib")
UNIT = "/etc/systemd/system/gpuqueue.service"
REFUSED, USAGE = 5, 2


@pytest.fixture
def machine(machine_of_its_own: PrivateMachine) -> PrivateMachine:
    """Return a machine whose gpuqueue only root can change."""
    done = machine_of_its_own.gpuqueue("install", "--dry-run")
    if "can be changed by others than root" in done.stderr:
        pytest.skip(done.stderr)
    return machine_of_its_own


@pytest.mark.full
def test_install_makes_what_it_says_and_only_once(machine: PrivateMachine) -> None:
    """A dry run and a refusal change nothing; install makes all; a second one changes nothing."""
    machine.root("sh", "-c", f"rm -r {HOME}/lib/python3*/site-packages/gpuqueue/cli/commands/__pycache__")
    before = machine.listing(*PLACES)
    dry, unasked = machine.gpuqueue("install", "--dry-run"), machine.gpuqueue("install")
    assert (0, USAGE) == (dry.returncode, unasked.returncode)
    assert "there is no terminal to ask on: give --yes" in unasked.stderr
    assert before == machine.listing(*PLACES)

    done = machine.gpuqueue("install", "--yes")
    assert 0 == done.returncode, done.stderr
    assert dry.stdout == "".join(line + "\n" for line in done.stdout.splitlines()[: len(dry.stdout.splitlines())])
    made = sorted(set(machine.listing(*PLACES)) - set(before))
    for expected in (
        "gpuqueue:gpuqueue 700 d /var/lib/gpuqueue",
        "gpuqueue:gpuqueue-workers 750 d /var/lib/gpuqueue-store",
        "gpuqueue-workers:gpuqueue-workers 700 d /var/lib/gpuqueue-workers",
        "gpuqueue-workers:gpuqueue-workers 711 d /var/lib/gpuqueue-runs",
        "root:gpuqueue-workers 640 f /etc/gpuqueue/workers.toml",
        "root:gpuqueue 640 f /etc/gpuqueue/config.toml",
        "gpuqueue:root 400 f /etc/gpuqueue/ticket-key",
        "root:root 644 f /etc/systemd/system/gpuqueue-launcher.service",
        "root:root 644 f /etc/systemd/system/gpuqueue-runs.service",
        f"root:root 644 f {UNIT}",
        "root:root 644 f /etc/systemd/system/gpuqueue-notify.service",
        "root:root 644 f /etc/systemd/system/gpuqueue-store.service",
        "root:root 644 f /etc/systemd/system/gpuqueue-serve.service",
    ):
        assert expected in made
    account = machine.root("getent", "passwd", "gpuqueue").stdout.strip().split(":")
    assert ("/var/lib/gpuqueue", "/usr/sbin/nologin") == (account[5], account[6])
    notifier = machine.root("getent", "passwd", "gpuqueue-notify").stdout.strip().split(":")
    assert ("/nonexistent", "/usr/sbin/nologin") == (notifier[5], notifier[6])
    assert "gpuqueue-notify\n" == machine.root("id", "-Gn", "gpuqueue-notify").stdout
    assert "gpuqueue-users" == machine.root("getent", "group", "gpuqueue-users").stdout.split(":")[0]
    assert "systemd does not run here" in done.stdout
    commands = [Path(line.split()[-1]) for line in machine.listing(f"{HOME}/lib") if "/gpuqueue/cli/commands/" in line]
    assert {each.stem for each in commands if each.suffix == ".py"} == {
        each.name.partition(".")[0] for each in commands if each.suffix == ".pyc"
    }

    state = machine.listing(*PLACES), machine.text("/etc/passwd")
    again = machine.gpuqueue("install", "--yes")
    assert (0, "nothing to do") == (again.returncode, again.stdout.splitlines()[-1])
    assert {"there"} == {line.split()[0] for line in again.stdout.splitlines()[:-1]}
    assert state == (machine.listing(*PLACES), machine.text("/etc/passwd"))


@pytest.mark.full
def test_what_the_site_has_changed_is_kept(machine: PrivateMachine) -> None:
    """A changed unit is refused, and replaced with --force. Changed settings stay, until a purge."""
    before = machine.listing(*PLACES)
    machine.gpuqueue("install", "--yes")
    text = machine.text(UNIT)
    machine.root("sh", "-c", f"echo '# mine' >> {UNIT}; echo 'slots = 2' >> /etc/gpuqueue/config.toml")
    refused = machine.gpuqueue("install", "--yes")
    assert (REFUSED, 1) == (refused.returncode, len(refused.stderr.splitlines()))
    assert f"{UNIT} is there with different content" in refused.stderr
    assert "# mine" in machine.text(UNIT)
    other = machine.gpuqueue("install", "--yes", "--force", "--group", "lab")
    assert (REFUSED, True) == (other.returncode, "has an installation with the account gpuqueue" in other.stderr)
    forced = machine.gpuqueue("install", "--yes", "--force")
    assert (0, text) == (forced.returncode, machine.text(UNIT)), forced.stderr

    assert 0 == machine.gpuqueue("uninstall", "--yes").returncode
    assert "slots = 2" in machine.text("/etc/gpuqueue/config.toml")
    assert "" == machine.text(UNIT)
    assert [0, 2] == [machine.root("getent", "passwd", f"gpuqueue{each}").returncode for each in ("", "-notify")]
    again = machine.gpuqueue("uninstall", "--yes")
    assert 0 == again.returncode
    assert "nothing to do: to remove state, logs and accounts, give --purge" == again.stdout.splitlines()[-1]
    machine.root("userdel", "gpuqueue")  # by hand, as it happens
    assert 0 == machine.gpuqueue("uninstall", "--yes", "--purge").returncode
    assert before == machine.listing(*PLACES)
    assert "nothing to do" in machine.gpuqueue("uninstall", "--yes", "--purge").stdout


@pytest.mark.full
def test_purge_leaves_what_install_has_not_made(machine: PrivateMachine) -> None:
    """A group, a directory and an account that were there before are there after a purge."""
    machine.root("groupadd", "lab")
    machine.root("useradd", "--system", "queue")
    machine.root("sh", "-c", "mkdir /var/lib/gpuqueue; echo old > /var/lib/gpuqueue/file")

    done = machine.gpuqueue("install", "--yes", "--group", "lab", "--account", "queue")
    assert 0 == done.returncode, done.stderr
    assert "change  /var/lib/gpuqueue (queue:queue 0700)" in done.stdout
    assert 0 == machine.gpuqueue("uninstall", "--yes", "--purge").returncode
    assert 0 == machine.root("getent", "group", "lab").returncode
    assert 0 == machine.root("getent", "passwd", "queue").returncode
    assert "old\n" == machine.text("/var/lib/gpuqueue/file")
    assert "" == machine.root("find", "/var/lib/gpuqueue-runs", "/etc/gpuqueue").stdout


@pytest.mark.full
def test_what_would_not_be_safe_is_refused(machine: PrivateMachine) -> None:
    """Not as a person; not with a program that others can change; not without the libraries. Nothing is made."""
    machine.root("groupadd", "people")
    machine.add_person("ada", "people")
    before = machine.listing(*PLACES)
    refusals = [machine.person("ada", "gpuqueue", *words) for words in (("install", "--yes"), ("install",))]
    assert 0 == machine.person("ada", "gpuqueue", "install", "--dry-run").returncode
    for path in (f"{HOME}/bin", f"{HOME}/bin/gpuqueue", f"{HOME}/lib/python3*/site-packages/workers/worker.py"):
        machine.root("sh", "-c", f"chmod o+w {path}")
        refusals.append(machine.gpuqueue("install", "--yes"))
        machine.root("sh", "-c", f"chmod o-w {path}")
    machine.root("chmod", "700", "/opt")
    closed = machine.gpuqueue("install", "--yes")
    machine.root("chmod", "755", "/opt")
    assert (REFUSED, True) == (closed.returncode, "/opt is closed to the accounts of the queue" in closed.stderr)
    machine.root("sh", "-c", "mkdir /etc/gpuqueue; echo 'slots = 2' > /etc/gpuqueue/config.toml")
    other = machine.gpuqueue("install", "--yes")
    assert (REFUSED, True) == (other.returncode, "is there without run_as and workers_account" in other.stderr), (
        other.stderr
    )
    machine.root("rm", "-r", "/etc/gpuqueue")
    root = machine.gpuqueue("install", "--yes", "--account", "root")
    assert (REFUSED, "account root is root" in root.stderr) == (root.returncode, True)

    assert [REFUSED] * 5 == [each.returncode for each in refusals]
    assert [1] * 5 == [len(each.stderr.splitlines()) for each in refusals]
    assert "only root can install gpuqueue" in refusals[0].stderr
    for each in refusals[2:]:
        assert "can be changed by others than root: install gpuqueue and its Python where only root can" in each.stderr
    assert before == machine.listing(*PLACES)


@pytest.mark.full
def test_the_pam_service_is_kept_until_it_is_removed(machine: PrivateMachine) -> None:
    """The service must have a file. Later installs, as in an upgrade, keep it, and ``none`` removes it."""
    unit = "/etc/systemd/system/gpuqueue-launcher.service"
    missing = machine.gpuqueue("install", "--yes", "--pam-service", "queue")
    assert (REFUSED, 1) == (missing.returncode, len(missing.stderr.splitlines()))
    assert "there is no /etc/pam.d/queue: write this file first" in missing.stderr
    assert "" == machine.text(unit)
    machine.write("/etc/pam.d/queue", "session required pam_permit.so\n")
    assert 0 == machine.gpuqueue("install", "--yes").returncode
    differs = machine.gpuqueue("install", "--yes", "--pam-service", "queue")
    assert (REFUSED, True) == (differs.returncode, f"{unit} is there with different content" in differs.stderr)

    for words, wanted in (
        (["--pam-service", "queue"], True),
        ([], True),
        (["--pam-service", "none"], False),
        ([], False),
    ):
        done = machine.gpuqueue("install", "--yes", "--force", *words)
        assert 0 == done.returncode, done.stderr
        assert wanted == (" --pam-service queue\n" in machine.text(unit)), words
