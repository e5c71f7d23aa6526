"""What is checked, made and removed, and the record of what was made."""

from __future__ import annotations

import contextlib
import json
import os
import stat
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from pathlib import Path

from gpuqueue.codec.wire import from_plain
from gpuqueue.errors import GpuQueueError, Refused, Unreadable, install_extra
from gpuqueue.installation.files import File, Owned, State, Step
from gpuqueue.installation.services import (
    STARTED,
    Units,
    forget_units,
    has_systemd,
    listening,
    remove_sockets,
    running_jobs,
    take_down,
)
from gpuqueue.installation.site import CONFIG, ETC, RECORD, UNITS, SystemSite
from gpuqueue.installation.steps import steps_of, steps_of_host
from gpuqueue.settings.settings import Settings

#: Where PAM has a file for each service, and the word for no service.
PAM_SERVICES, NO_PAM_SERVICE = Path("/etc/pam.d"), "none"
#: The libraries of the service (extra ``service``).
SERVICE_LIBRARIES = ("httptools", "prometheus_client", "starlette", "uvicorn", "uvloop")


def refuse_unsafe(programs: Path) -> None:
    """Check that only root can change this installation and that the accounts of the queue can read it.

    Raises:
        Refused: others than root can change it, or others cannot read it.

    """
    for path in (programs, Path(sys.executable).resolve(), Path(os.__file__), Path(__file__)):
        closed = next((each for each in path.parents if not each.stat().st_mode & stat.S_IXOTH), None)
        if closed is not None:
            raise Refused(f"{closed} is closed to the accounts of the queue: install gpuqueue and its Python elsewhere")
    words = [str(programs / "gpuqueue-worker"), "launcher", "--check"]
    environ = {"PATH": os.defpath}  # no PYTHONPATH: the services have none
    done = subprocess.run(words, env=environ, cwd="/", capture_output=True, text=True, check=False)
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or ["gpuqueue-worker launcher --check failed"]
        raise Refused(lines[-1].removeprefix("gpuqueue-worker: "))


def refuse_without_libraries() -> None:
    """Check that the libraries of the service are installed.

    Raises:
        Refused: some are missing.

    """
    missing = [name for name in SERVICE_LIBRARIES if find_spec(name) is None]
    if missing:
        raise Refused(f"the service needs {', '.join(missing)}: {install_extra('service')}")


def refuse_other_settings() -> None:
    """Check that a settings file which is there already is one for a service whose workers have another account.

    Raises:
        Refused: the file has no ``run_as = submitter``, or no ``workers_account``.
        BadRequest: the file cannot be read.

    """
    if not os.access(CONFIG, os.R_OK):
        return
    found = Settings.load({"GPUQUEUE_CONFIG": str(CONFIG)})
    if found.launcher_in_use is None or found.workers_account is None:
        raise Refused(
            f"{CONFIG} is there without run_as and workers_account, so jobs would run as one account: "
            "move the file away, and bring what you need of it into the new one afterwards"
        )


def pam_service(given: str | None) -> str:
    """Return the name of the PAM service for the runs, empty if there is none: as *given*, else as installed.

    Raises:
        Refused: it has no file.

    """
    if given is None:
        record = Record.load()
        return "" if record is None else record.pam_service
    if given == NO_PAM_SERVICE:
        return ""
    if not (PAM_SERVICES / given).is_file():
        raise Refused(f"there is no {PAM_SERVICES / given}: write this file first")
    return given


def to_do(steps: Sequence[Step]) -> list[tuple[Step, State]]:
    """Return each step with its state. Changes nothing.

    Raises:
        Refused: something else is in the place of one.

    """
    return [(step, step.state()) for step in steps]


def running_units(site: SystemSite, states: Sequence[tuple[Step, State]]) -> Units:
    """Return the step that starts the units, after those of *states*."""
    return Units(site.units, any(isinstance(step, File) and state is not State.THERE for step, state in states))


@dataclass(slots=True)
class Record:
    """What ``gpuqueue install`` or ``gpuqueue join`` has made on this machine, in a file.

    *joined* is the address of the service that this machine has joined, empty if it runs its own. *pam_service* is the
    PAM service of the runs, empty if they have no session. *workers_account* is the account of the workers beside a
    service, empty on a host that has joined.
    """

    account: str
    group: str
    made: list[str] = field(default_factory=list)
    joined: str = ""
    pam_service: str = ""
    workers_account: str = ""

    @property
    def has_units(self) -> bool:
        """Return whether units were made, and not only what an uninstall keeps."""
        return any(Path(name).parent == UNITS for name in self.made)

    @classmethod
    def load(cls) -> Record | None:
        """Return the record of this machine, None if there is none.

        Raises:
            GpuQueueError: it is damaged.

        """
        try:
            record: Record = from_plain(cls, json.loads(RECORD.read_text(encoding="utf-8")))
        except FileNotFoundError:
            return None
        except (ValueError, Unreadable):
            raise GpuQueueError(f"{RECORD} is damaged: remove by hand what gpuqueue install has made") from None
        return record

    def add(self, name: str) -> None:
        """Write down that *name* was made."""
        if name not in self.made:
            self.made.append(name)
        self.save()

    def remove(self, name: str) -> None:
        """Remove *name* from the record, and STARTED, since the units no longer run as installed.

        Delete the record if it is empty.
        """
        self.made = [each for each in self.made if each not in {name, STARTED}]
        if self.made:
            self.save()
            return
        RECORD.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            ETC.rmdir()  # unless the site has files of its own in it

    def save(self) -> None:
        """Write the record."""
        text = f"{json.dumps(asdict(self), indent=2)}\n"
        File(path=RECORD, text=text, owned=Owned(mode=0o644), purpose="record").make()


def install(site: SystemSite, states: Sequence[tuple[Step, State]], joined: str = "") -> None:
    """Make what is missing, and correct what differs. *joined* is the address of the service that this host joins.

    Raises:
        GpuQueueError: a step failed. The steps before it stay, and the next install goes on from there.

    """
    record = Record.load() or Record(site.account, site.group)
    record.joined, record.pam_service = joined, site.pam_service
    record.workers_account = site.workers_account if site.serves else ""
    for step, state in states:
        if state is State.THERE:
            continue
        step.make()
        if state is State.MISSING:
            record.add(step.name)
    record.save()


def refuse_other_installation(site: SystemSite, joined: str = "") -> None:
    """Check that this machine has no installation of another kind, or with other names.

    Raises:
        Refused: it runs its own service, has joined another one than *joined*, or the account or group differs.

    """
    record = Record.load()
    if record is None:
        return
    if (record.has_units or record.joined) and record.joined != joined:
        there = f"has joined the service at {record.joined}" if record.joined else "runs a service of its own"
        raise Refused(f"this machine {there}: gpuqueue uninstall first")
    workers = record.workers_account
    if (record.account, record.group) != (site.account, site.group) or (workers and workers != site.workers_account):
        accounts = " and ".join(filter(None, (record.account, workers)))
        raise Refused(
            f"this machine has an installation with the account {accounts} and the group {record.group}: "
            "give these names, or gpuqueue uninstall --purge first"
        )


def removals(record: Record, site: SystemSite, *, purge: bool) -> tuple[list[Step], list[Step]]:
    """Return what uninstall removes, in this order, and what it keeps. Only what install has made is in it."""
    every = steps_of_host(site, None, force=True) if record.joined else steps_of(site, force=True)
    made = [step for step in reversed(every) if step.name in record.made]
    kept = [step for step in made if step.lasting and not purge]
    removed = [step for step in made if step not in kept]
    started = has_systemd() and any(isinstance(step, File) and step.path.parent == UNITS for step in removed)
    return ([Units(site.units), *removed] if started else removed), kept


def refuse_while_busy(site: SystemSite, *, cancel: bool) -> None:
    """Check that no job runs and, without systemd, that launcher and service are stopped.

    With *cancel*, jobs may run.

    Raises:
        Refused: a job or a process still runs.

    """
    jobs = "" if cancel else running_jobs(site)
    if jobs:
        raise Refused(f"{jobs}: wait for the end, or end all jobs with --cancel-jobs")
    if not has_systemd() and (found := listening()):
        raise Refused(f"{' and '.join(found)} still run{'s' if len(found) == 1 else ''}: stop what you started by hand")


def uninstall(record: Record, site: SystemSite, removed: Sequence[Step], *, cancel: bool) -> None:
    """Stop everything, and remove the steps *removed*.

    Raises:
        GpuQueueError: a step failed. What is left is in the record, so uninstall can be repeated.

    """
    take_down(site, cancel=cancel)
    for step in removed:
        step.remove()
        record.remove(step.name)
    if record.made and not record.has_units:
        record.joined = ""
        record.save()
    remove_sockets()
    forget_units()
