"""Checks of the settings: whether they are readable, where each comes from, and which variables are misspelt."""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import shlex
import subprocess
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path

from gpuqueue.doctor.site import Site
from gpuqueue.errors import install_extra
from gpuqueue.model.finding import Finding, Findings, note, ok, problem, warning
from gpuqueue.model.notification import masked
from gpuqueue.notify import sending
from gpuqueue.settings.sources import PREFIX, key_of, settings_file, unknown_variables
from gpuqueue.system.timed_call import CallFailed
from gpuqueue.text.sanitize import without_password
from gpuqueue.text.units import format_bytes, format_duration

#: Variables that a job gets in addition to settings (docs/reference/submit.md). One has the name of a setting.
IN_A_JOB = frozenset(
    f"{PREFIX}{name}" for name in ("JOB_ID", "ATTEMPT", "TOKEN", "RUN_DIR", "MEM_BYTES", "DEVICES", "CHANGED")
)

#: The unit of the service, and the directory with what `systemctl edit` has changed in it.
SERVICE_UNIT = Path("/etc/systemd/system/gpuqueue-serve.service")
#: The options of `gpuqueue serve` that name a file with the certificate or its key.
TLS_OPTIONS = ("--tls-cert", "--tls-key")


def outside_of_jobs(environ: Mapping[str, str]) -> dict[str, str]:
    """Return *environ* without the variables that a job gets and that would be taken for settings."""
    inside = f"{PREFIX}TOKEN" in environ
    return {name: value for name, value in environ.items() if not (inside and name in IN_A_JOB)}


def away(why: CallFailed) -> Finding:
    """Return the only finding there is without settings, since no other part can be located."""
    return problem(f"the settings cannot be checked: {why}", "is the disk of the home directory there?")


def file(site: Site) -> Findings:
    """Check that the settings file is readable, if it exists."""
    path = settings_file(site.environ)
    try:
        with path.open("rb") as opened:
            opened.read(1)
    except FileNotFoundError:
        return ok(f"none at {path}")
    except OSError as error:
        seen = f"{path} cannot be read ({error.strerror or error}): its settings have no effect here"
        return warning(seen, f"let this account read it, or leave it out: {PREFIX}CONFIG=/dev/null")
    return ok(f"{path}")


def reading(site: Site) -> Findings:
    """Check that every value is valid."""
    if not site.faults:
        return ok("every value can be read")
    remedy = "correct it there: until then every command is refused, and doctor examines nothing else"
    return (problem(str(fault), remedy) for fault in site.faults)


def variables(site: Site) -> Findings:
    """Check for variables that look like settings and are not."""
    unknown = unknown_variables(site.environ)
    if unknown:
        remedy = "correct it, or remove it from the environment"
        return (warning(f"{name} is no setting and has no effect: {hint}", remedy) for name, hint in unknown.items())
    if f"{PREFIX}TOKEN" in site.environ:
        return note(f"this runs inside job {site.environ.get(f'{PREFIX}JOB_ID', '?')}")
    return ok("none is misspelt")


def targets(site: Site) -> Findings:
    """Check that messages to the configured targets can be sent from this Python."""
    named = ", ".join(sorted(site.settings.notify))
    if not named:
        return ok("no notification target is configured here")
    if not sending.is_there():
        seen = f"{named}: Apprise is not installed here, and nobody is notified of the end of a job from here"
        return warning(seen, f"{install_extra('notify')}, if the recorder runs here")
    return ok(f"messages can be sent to {named}")


def notifier(site: Site) -> Iterator[Finding]:
    """Check that messages to URLs of users can be sent, where the recorder runs and the site takes them."""
    settings = site.settings
    has_notifier = settings.launcher_in_use is None or sending.has_notifier()  # else this account sends them
    if settings.record and settings.notify_urls and sending.is_there() and not has_notifier:
        remedy = (
            "gpuqueue install --force makes it, systemctl start gpuqueue-notify starts it; else notify_urls = false"
        )
        yield warning("messages to URLs of users are not sent: the unit gpuqueue-notify does not run", remedy)


def tls(site: Site, unit: Path = SERVICE_UNIT) -> Iterator[Finding]:
    """Check that the account of the service can read the certificate and the key that its *unit* names.

    Only root can look with the rights of another account; others check nothing.
    """
    lines = _unit_lines(unit) if site.settings.record and os.geteuid() == 0 else []
    accounts = [line.removeprefix("User=") for line in lines if line.startswith("User=")]
    starts = [line.removeprefix("ExecStart=") for line in lines if line.startswith("ExecStart=")]
    words = shlex.split(re.sub(r"(--tls-\w+)=", r"\1 ", starts[-1])) if accounts and starts else []
    for option, path in pairwise(words):
        if option not in TLS_OPTIONS:
            continue
        if _can_read(accounts[-1], path):
            yield ok(f"{option}: the service can read {path}")
        else:
            remedy = f"chown {accounts[-1]}: {path} && chmod 400 {path}, and let it enter the directories above"
            yield problem(f"{option}: the account {accounts[-1]} of the service cannot read {path}", remedy)


def _can_read(account: str, path: str) -> bool:
    """Return whether *account* can read the file *path*, asked as that account."""
    try:
        there = pwd.getpwnam(account)
    except KeyError:
        return False
    groups = os.getgrouplist(account, there.pw_gid)
    command = ["/usr/bin/test", "-r", path]
    done = subprocess.run(command, user=there.pw_uid, group=there.pw_gid, extra_groups=groups, check=False)
    return done.returncode == 0


def _unit_lines(unit: Path) -> list[str]:
    """Return the lines of *unit* and then those of its changes, in the order in which systemd applies them."""
    lines = []
    for path in (unit, *sorted(unit.with_name(f"{unit.name}.d").glob("*.conf"))):
        with contextlib.suppress(OSError):
            lines += path.read_text(errors="replace").replace("\\\n", " ").splitlines()
    return lines


def values(site: Site) -> Iterator[Finding]:
    """Report each setting's value and its origin."""
    for name, origin in site.settings.origins.items():
        yield ok(f"{_shown(name, getattr(site.settings, name))} ({origin})", about=key_of(name))


def _shown(name: str, value: object) -> str:
    """Return *value* in the form that a user types, with secrets masked."""
    if value is None or value == "":
        return "none" if value is None else "empty"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):  # targets, whose addresses are secret
        return ", ".join(f"{each} ({masked(url)})" for each, url in value.items()) or "none"
    if name.endswith("_bytes") and isinstance(value, int):
        return format_bytes(value) if value else "0"
    if name.endswith("_s") and isinstance(value, float):
        return format_duration(value)
    text = _in_one_line(str(value)) if name in _BY_LINES else str(value)
    return without_password(text) if name.endswith("_url") else text


def _in_one_line(entries: str) -> str:
    return "; ".join(filter(None, map(str.strip, entries.splitlines())))


#: Settings in which a newline and a semicolon are equivalent.
_BY_LINES = frozenset({"limits", "pool_limits"})

CHECKS = (file, reading, variables, targets, notifier, tls, values)
