"""The key of the tickets, below a temporary directory and for this account."""

from __future__ import annotations

import grp
import os
import pwd
from dataclasses import replace
from pathlib import Path

import pytest
from joining_hosts import HOST, make_joining

from gpuqueue.cli.commands.join import _key
from gpuqueue.errors import BadRequest, Refused
from gpuqueue.installation import steps
from gpuqueue.installation.files import Owned, State
from gpuqueue.installation.plan import Record, removals
from gpuqueue.installation.site import TICKET_KEY, SystemSite
from gpuqueue.installation.steps import TicketKey, steps_of, steps_of_host, ticket_key_of_host, ticket_key_of_site
from gpuqueue.installation.units import by_hand, unit_texts
from gpuqueue.model.ticket import read_key
from gpuqueue.settings.settings import Settings

OWNED = Owned(owner=pwd.getpwuid(os.geteuid()).pw_name, group=grp.getgrgid(os.getegid()).gr_name, mode=0o400)
SITE = SystemSite(account="gpuqueue", group="lab", programs=Path("/opt/gpuqueue/bin"), has_ticket_key=True)


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the path of the key for this test."""
    found = tmp_path / "etc" / "ticket-key"
    monkeypatch.setattr(steps, "TICKET_KEY", found)
    return found


def test_a_key_is_made_once(path: Path) -> None:
    """It is random, for its owner only, and stays at a second install. With another mode, only that changes."""
    step = TicketKey(owned=OWNED)
    states = [step.state()]
    step.make()
    key = read_key(path)
    states.append(step.state())
    path.chmod(0o444)
    states.append(step.state())
    step.make()

    assert [State.MISSING, State.THERE, State.DIFFERS] == states
    assert (State.THERE, 0o400, key) == (step.state(), path.stat().st_mode & 0o777, read_key(path))
    step.remove()
    step.make()
    assert key != read_key(path)


def test_a_copy_of_the_key_replaces_another(path: Path) -> None:
    """Joining again without it leaves the one that is there."""
    first, second = (TicketKey(owned=OWNED, text=f"{each * 32}\n") for each in ("0a", "0b"))
    first.make()

    assert (State.THERE, State.DIFFERS) == (first.state(), second.state())
    second.make()
    assert bytes([11] * 32) == read_key(path)
    assert State.THERE is TicketKey(owned=OWNED).state()
    assert "0b0b" not in repr(second)


def test_a_link_in_place_of_the_key_is_refused(path: Path, tmp_path: Path) -> None:
    """It is not followed."""
    path.parent.mkdir()
    path.symlink_to(tmp_path / "other")

    with pytest.raises(Refused, match="is there and is no file"):
        TicketKey(owned=OWNED).state()


def test_the_copy_of_the_key_is_roots() -> None:
    """On a host that joins only root reads it: the workers cannot. The service reads that of its own host."""
    assert ("root:root 0400", False) == (str(ticket_key_of_host("x").owned), ticket_key_of_host("x").lasting)
    assert ("gpuqueue:root 0400", True) == (
        str(ticket_key_of_site("gpuqueue").owned),
        ticket_key_of_site("gpuqueue").lasting,
    )
    host, joining = replace(HOST, has_ticket_key=True), replace(make_joining(), ticket_key="x")
    assert [ticket_key_of_host("x")] == [each for each in steps_of_host(host, joining) if each.name == str(TICKET_KEY)]
    assert str(TICKET_KEY) not in {each.name for each in steps_of_host(HOST, make_joining())}


def test_the_key_leaves_with_the_host_and_stays_with_the_site() -> None:
    """A site that is installed again can start the jobs that wait. A host that leaves keeps no secret."""
    made = [str(TICKET_KEY)]
    gone, _ = removals(Record("gpuqueue", "lab", made, "https://service"), HOST, purge=False)
    _, kept = removals(Record("gpuqueue", "lab", made), SITE, purge=False)

    assert (made, made) == ([each.name for each in gone], [each.name for each in kept])
    assert str(TICKET_KEY) in {each.name for each in steps_of(SITE)}


def test_launcher_and_service_are_given_the_key() -> None:
    """Others are not, and without a key nobody is. A drop-in with another command keeps the variable."""
    texts = unit_texts(SITE)

    assert f"Environment=GPUQUEUE_TICKET_KEY={TICKET_KEY}\n" in texts["gpuqueue-launcher"]
    assert f"Environment=GPUQUEUE_TICKET_KEY_FILE={TICKET_KEY}\n" in texts["gpuqueue-serve"]
    assert "TICKET" not in texts["gpuqueue"] + texts["gpuqueue-store"] + texts["gpuqueue-runs"]
    assert "TICKET" not in "".join(unit_texts(replace(SITE, has_ticket_key=False)).values())
    typed = by_hand(SITE)
    assert typed[1].startswith(f"GPUQUEUE_TICKET_KEY={TICKET_KEY} /opt/gpuqueue/bin/gpuqueue-worker launcher ")
    assert f" GPUQUEUE_TICKET_KEY_FILE={TICKET_KEY} /opt/gpuqueue/bin/gpuqueue serve <" in typed[6]
    assert [1, 6] == [number for number, line in enumerate(typed) if str(TICKET_KEY) in line]
    named = {"GPUQUEUE_TICKET_KEY_FILE": str(TICKET_KEY), "GPUQUEUE_CONFIG": os.devnull}
    assert TICKET_KEY == Settings.load(named).ticket_key_file


def test_what_is_no_copy_of_a_key_is_refused(tmp_path: Path) -> None:
    """One line says which file, and why."""
    (tmp_path / "key").write_text("x")
    for name, why in (("key", "holds no key"), ("missing", "No such file")):
        with pytest.raises(BadRequest, match=f"{name} is no copy of the {TICKET_KEY} of the service: .*{why}"):
            _key(tmp_path / name)
