"""Directories and files that the installation makes, below a temporary directory and for this account."""

from __future__ import annotations

import grp
import os
import pwd
from dataclasses import replace
from importlib.util import cache_from_source
from pathlib import Path

import pytest
from joining_hosts import HOST, make_joining

from gpuqueue.cli.commands.join import _key
from gpuqueue.errors import BadRequest, Refused
from gpuqueue.installation import steps
from gpuqueue.installation.files import Directory, File, Owned, State
from gpuqueue.installation.plan import Record, removals
from gpuqueue.installation.site import TICKET_KEY, SystemSite
from gpuqueue.installation.steps import (
    Bytecode,
    TicketKey,
    steps_of,
    steps_of_host,
    ticket_key_of_host,
    ticket_key_of_site,
)
from gpuqueue.installation.units import by_hand, unit_texts
from gpuqueue.model.ticket import read_key
from gpuqueue.settings.settings import Settings

ME = {"owner": pwd.getpwuid(os.geteuid()).pw_name, "group": grp.getgrgid(os.getegid()).gr_name}


def directory(path: Path, mode: int = 0o711) -> Directory:
    """Return a step for a directory of this account."""
    return Directory(path=path, owned=Owned(**ME, mode=mode), purpose="test")


def file(path: Path, text: str = "text\n", *, editable: bool = False, forced: bool = False) -> File:
    """Return a step for a file of this account."""
    return File(path=path, text=text, owned=Owned(**ME, mode=0o640), purpose="test", editable=editable, forced=forced)


def test_a_directory_gets_its_mode(tmp_path: Path) -> None:
    """It is missing, then there. With another mode it differs, and is changed; its content stays."""
    step = directory(tmp_path / "made")
    states = [step.state()]
    step.make()
    states.append(step.state())
    (step.path / "kept").touch()
    step.path.chmod(0o777)
    states.append(step.state())
    step.make()

    assert [State.MISSING, State.THERE, State.DIFFERS] == states
    assert (State.THERE, True) == (step.state(), (step.path / "kept").exists())
    step.remove()
    step.remove()
    assert State.MISSING is step.state()


def test_an_account_that_is_missing_owns_nothing(tmp_path: Path) -> None:
    """A directory of an account that is not there yet has to be changed."""
    owned = Owned(owner="no-such-account", group=ME["group"], mode=0o700)

    assert State.DIFFERS is Directory(path=tmp_path, owned=owned, purpose="test").state()


def test_a_link_is_never_followed(tmp_path: Path) -> None:
    """A link in the place of a directory or file is refused. A link below a directory is removed, not its target."""
    target = tmp_path / "target"
    target.mkdir()
    (tmp_path / "link").symlink_to(target)
    for step in (directory(tmp_path / "link"), file(tmp_path / "link")):
        with pytest.raises(Refused, match="is there and is no"):
            step.state()
    with pytest.raises(OSError, match=r"symbolic links|Not a directory|File exists"):
        directory(tmp_path / "link").make()

    (tmp_path / "top").mkdir()
    (tmp_path / "top" / "link").symlink_to(target)
    directory(tmp_path / "top").remove()
    assert target.is_dir()


def test_a_file_with_another_content_is_refused(tmp_path: Path) -> None:
    """It is replaced only where that is forced. A file that the site may change counts as there."""
    path = tmp_path / "sub" / "unit"
    file(path).make()
    assert ("text\n", 0o640, State.THERE) == (path.read_text(), path.stat().st_mode & 0o777, file(path).state())
    path.write_text("changed\n")

    with pytest.raises(Refused, match="with different content: move it away, or replace it with --force"):
        file(path).state()
    assert (State.THERE, True) == (file(path, editable=True).state(), file(path, editable=True).lasting)
    assert State.DIFFERS is file(path, forced=True).state()
    file(path, forced=True).make()
    assert ["unit"] == [each.name for each in path.parent.iterdir()]
    assert State.THERE is file(path).state()
    assert not file(path, editable=True).lasting


def test_a_file_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    """A failure in the middle leaves the old file and nothing else."""
    path = tmp_path / "unit"
    path.write_text("old\n")
    broken = File(path=path, text="new\n", owned=Owned(owner="no-such-account", mode=0o600), purpose="", forced=True)

    with pytest.raises(KeyError):
        broken.make()
    assert (["unit"], "old\n") == ([each.name for each in tmp_path.iterdir()], path.read_text())


# ---- The bytecode of an installation, in a directory of its own ------------------------------------------------------


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a directory with gpuqueue, two libraries that it needs, and one for its contributors."""
    needs = {
        "gpuqueue-server": ("Direct_Library>=1; python_version > '3'", "a-checker>=2; extra == 'test'"),
        "direct-library": ("far.library[more]<3", "of-an-extra; extra == 'more'"),
        "far.library": (),
        "a-checker": (),
        "of-an-extra": (),
    }
    for name, requirements in needs.items():
        file = "gpuqueue/module.py" if name == "gpuqueue-server" else f"{name.replace('-', '_')}/module.py"
        (tmp_path / file).parent.mkdir()
        (tmp_path / file).write_text("pattern = '\\d'\n")  # Python warns of it
        found = tmp_path / f"{name.replace('-', '_')}-1.dist-info"
        found.mkdir()
        lines = [f"Name: {name}", "Version: 1", *(f"Requires-Dist: {each}" for each in requirements)]
        (found / "METADATA").write_text("\n".join(["Metadata-Version: 2.1", *lines, ""]))
        (found / "RECORD").write_text(f"{file},,\n/etc/hosts.py,,\nremoved.py,,\n")
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def compiled(site: Path) -> set[str]:
    """Return the directories whose modules have bytecode."""
    return {path.parent.name for path in site.glob("*/*.py") if Path(cache_from_source(path)).exists()}


@pytest.mark.filterwarnings("error")
def test_gpuqueue_and_what_it_needs_are_compiled(site: Path) -> None:
    """The libraries of other extras are left alone. A second install has nothing to do."""
    step = Bytecode(site)
    assert State.DIFFERS is step.state()
    step.make()

    assert {"gpuqueue", "direct_library", "far.library"} == compiled(site)
    assert State.THERE is step.state()


def test_a_module_without_valid_code_is_no_reason_to_compile(site: Path) -> None:
    """Some libraries have templates that end in .py."""
    step = Bytecode(site)
    step.make()
    (site / "gpuqueue" / "template.py").write_text("class {{ name }}:\n")

    assert State.THERE is step.state()
    step.make()
    (site / "gpuqueue" / "new.py").write_text("")
    assert State.DIFFERS is step.state()


def test_every_account_can_read_the_bytecode(site: Path) -> None:
    """It does not depend on the umask of root."""
    before = os.umask(0o077)
    try:
        Bytecode(site).make()
        inside = os.umask(0o077)
    finally:
        os.umask(before)

    file = Path(cache_from_source(site / "gpuqueue" / "module.py"))
    assert (0o077, 0o755) == (inside, file.parent.stat().st_mode & 0o777)
    assert 0o044 == file.stat().st_mode & 0o044


# ---- The key of the tickets, below a temporary directory and for this account ----------------------------------------

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
