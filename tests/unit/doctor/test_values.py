from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from factories import make_spec
from findings import findings, the

from gpuqueue.doctor.examination import repair
from gpuqueue.doctor.site import Site
from gpuqueue.doctor.values import CHECKS, IN_A_JOB, outside_of_jobs, tls
from gpuqueue.model.finding import Finding, Grade
from gpuqueue.settings.parsers import READERS
from gpuqueue.settings.settings import Settings
from gpuqueue.settings.sources import OF_COMPOSE, PREFIX, key_of
from workers.run.environment import environment

ROOT = Path(__file__).resolve().parents[3]
HERE = {"GPUQUEUE_CONFIG": os.devnull, "GPUQUEUE_STATE_DIR": "/s"}


def site_of(environ: dict[str, str]) -> Site:
    return Site(*Settings.salvage(outside_of_jobs(environ)), environ)


def found(environ: dict[str, str]) -> list[Finding]:
    return findings(CHECKS, site_of(environ))


def test_every_value_is_reported_with_its_origin() -> None:
    """Each setting is shown as a user would type it, with its origin, and a list of several lines on one line."""
    given = {"GPUQUEUE_HOST_LOST_AFTER": "90m", "GPUQUEUE_LIMITS": "\n*: running_jobs=4\n  ann: running_gpus=2\n"}
    reported = {each.about: each.seen for each in found({**HERE, **given}) if each.about}

    assert {key_of(name) for name in READERS} == set(reported)
    assert "1:30:00 (environment GPUQUEUE_HOST_LOST_AFTER)" == reported["host_lost_after"]
    assert "*: running_jobs=4; ann: running_gpus=2 (environment GPUQUEUE_LIMITS)" == reported["limits"]
    defaults = {"headroom": "512M", "default_mem": "none", "cap": "true", "pool": "empty"}
    assert {f"{value} (default)" for value in defaults.values()} == {reported[name] for name in defaults}


@pytest.mark.parametrize("given", [{}, {"NOTIFY_URLS": "false"}, {"RECORD": "false"}, {"RUN_AS": "worker"}])
def test_a_missing_notifier_is_reported_where_urls_of_users_need_it(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, str]
) -> None:
    """The check warns where jobs have other accounts, and is silent where nobody's URL is sent by another account."""
    monkeypatch.setattr("gpuqueue.notify.sending.is_there", lambda: True)
    more = {f"GPUQUEUE_{name}": value for name, value in {"RUN_AS": "submitter", **given}.items()}

    reported = [each for each in found({**HERE, **more}) if each.check == "notifier"]

    assert ([] if given else [Grade.WARNING]) == [each.grade for each in reported]
    assert given or "the unit gpuqueue-notify does not run" in reported[0].seen


@pytest.fixture
def open_directory() -> Iterator[Path]:
    """Return a directory that each account can enter. Those of pytest are open to one account only."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can look with the rights of another account")
@pytest.mark.parametrize(
    "start", ["--tls-cert {0}/cert --tls-key {0}/key", "--tls-key={0}/key \\\n --tls-cert={0}/cert"]
)
def test_a_key_that_the_service_cannot_read_is_found(open_directory: Path, start: str) -> None:
    """The unit runs as an account of its own, which root's files are closed to. The last ExecStart is the one."""
    (open_directory / "cert").write_text("")
    (open_directory / "cert").chmod(0o644)
    (open_directory / "key").touch(mode=0o600)
    unit = open_directory / "gpuqueue-serve.service"
    unit.write_text("[Service]\nUser=nobody\nExecStart=/opt/gpuqueue serve\n")
    assert [] == list(tls(site_of(HERE), unit))
    changes = open_directory / "gpuqueue-serve.service.d"
    changes.mkdir()
    (changes / "override.conf").write_text(
        f"[Service]\nExecStart=\nExecStart=/opt/gpuqueue serve {start.format(open_directory)}\n"
    )

    reported = {each.seen.partition(":")[0]: each for each in tls(site_of(HERE), unit)}

    assert {"--tls-cert": Grade.OK, "--tls-key": Grade.PROBLEM} == {name: each.grade for name, each in reported.items()}
    assert f"the account nobody of the service cannot read {open_directory}/key" in reported["--tls-key"].seen
    (open_directory / "key").chmod(0o644)
    assert [Grade.OK] * 2 == [each.grade for each in tls(site_of(HERE), unit)]


@pytest.mark.parametrize("apprise", [True, False])
def test_targets_are_named_without_secrets(monkeypatch: pytest.MonkeyPatch, *, apprise: bool) -> None:
    """Targets are shown without their secret addresses.

    Without Apprise on this machine, nothing is sent from here, and the check warns.
    """
    monkeypatch.setattr("gpuqueue.notify.sending.is_there", lambda: apprise)

    reported = found({**HERE, "GPUQUEUE_NOTIFY": "team=slack://secret mail=mailto://q:secret@h"})

    assert "team (slack://…), mail (mailto://…) (environment GPUQUEUE_NOTIFY)" in [each.seen for each in reported]
    finding = the(reported, "targets")
    assert (Grade.OK if apprise else Grade.WARNING) is finding.grade
    assert "mail, team" in finding.seen
    assert not any("secret" in each.seen for each in reported)


def test_broken_settings_are_reported_one_by_one(tmp_path: Path) -> None:
    """Doctor reports each broken setting and goes on with the readable ones, where other commands stop at the first.

    It repairs nothing.
    """
    config = tmp_path / "config.toml"
    config.write_text('leese = "5m"\nslots = 0\npool = "a"\n')
    wrong = {"GPUQUEUE_CONFIG": str(config), "GPUQUEUE_HEARTBEAT": "soon", "GPUQUEUE_SLOT": "4"}

    reported = found(wrong)

    faults = " ".join(each.seen for each in reported if (each.check, each.grade) == ("reading", Grade.PROBLEM))
    assert all(word in faults for word in ("setting heartbeat", "setting slots", "'leese' is no setting"))
    assert "GPUQUEUE_SLOT is no setting" in the(reported, "variables").seen
    assert "a (file" in the(reported, "values", "pool").seen
    (printed,) = repair(wrong)
    assert printed.startswith("nothing was repaired: ")


@pytest.mark.parametrize("content", [b"lease = ", b"\xff\xfe"])
def test_an_invalid_settings_file_is_reported(tmp_path: Path, content: bytes) -> None:
    """A settings file that is not TOML, for example after an editor's accident, is a problem."""
    config = tmp_path / "config.toml"
    config.write_bytes(content)

    finding = the(found({"GPUQUEUE_CONFIG": str(config)}), "reading")

    assert (Grade.PROBLEM, True) == (finding.grade, "is not TOML" in finding.seen)


def test_what_has_no_effect_is_reported(tmp_path: Path) -> None:
    """An unknown variable and an unreadable settings file give a warning: all other code ignores them silently."""
    (tmp_path / "gpuqueue" / "config.toml").mkdir(parents=True)

    reported = found({"XDG_CONFIG_HOME": str(tmp_path), "GPUQUEUE_LEESE": "1m"})

    variable, file = the(reported, "variables"), the(reported, "file")
    assert (Grade.WARNING, Grade.WARNING) == (variable.grade, file.grade)
    assert "GPUQUEUE_LEESE is no setting" in variable.seen
    assert "Is a directory" in file.seen


def test_what_is_no_setting_but_ours_is_not_taken_for_a_misspelling() -> None:
    """Known variables that are not settings give no warning.

    The lists match the code that sets these variables and the docker-compose.yml that reads them.
    """
    in_a_job = {name for name in environment(1, "1.a", make_spec(env={}), (), Path("/r")) if name.startswith(PREFIX)}
    of_compose = set(re.findall(r"\$\{(GPUQUEUE_\w+)", (ROOT / "docker-compose.yml").read_text()))
    settings = {PREFIX + key_of(name).upper() for name in READERS}

    assert in_a_job | {"GPUQUEUE_CHANGED"} == IN_A_JOB
    from_shell = {PREFIX + key.upper() for key in OF_COMPOSE}
    assert of_compose - settings == from_shell
    environ = {**HERE, **dict.fromkeys((IN_A_JOB | from_shell) - settings, "x")}
    assert {Grade.OK, Grade.NOTE} == {each.grade for each in found(environ)}
