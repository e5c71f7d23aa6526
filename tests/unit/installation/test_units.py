"""The units that ``gpuqueue install`` writes, and what it refuses to write into them."""

from __future__ import annotations

import configparser
import os
import pwd
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from unit_files import SANDBOX, service_of

from gpuqueue.embedded.store import OOM_SCORE_ADJ
from gpuqueue.errors import BadRequest, Refused
from gpuqueue.installation.files import Directory, File
from gpuqueue.installation.services import Part
from gpuqueue.installation.site import (
    CONFIG,
    LAUNCHER_RUN,
    NOTIFIER_ACCOUNT,
    NOTIFIER_RUN,
    RUN,
    RUNS,
    RUNS_UNIT,
    WORKERS_CONFIG,
    SystemSite,
)
from gpuqueue.installation.steps import steps_of
from gpuqueue.installation.units import by_hand, config_text, unit_texts, workers_config_text
from gpuqueue.model.joining import SHARED
from gpuqueue.notify import sending
from gpuqueue.settings.settings import SYSTEM_SOCKET, Settings
from workers.cli import RUNS_GROUP

SITE = SystemSite(account="gpuqueue", group="lab", programs=Path("/opt/gpuqueue/bin"))


def test_systemd_takes_the_units(tmp_path: Path) -> None:
    """``systemd-analyze verify`` has no complaint about the units."""
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("systemd-analyze is not installed")
    programs = tmp_path / "bin"  # units take no path with a space
    programs.symlink_to(Path(sys.executable).parent)
    paths = []
    for name, text in unit_texts(replace(SITE, programs=programs)).items():
        paths.append(tmp_path / f"{name}.service")
        paths[-1].write_text(text)

    done = subprocess.run(
        [program, "verify", "--man=no", *map(str, paths)], capture_output=True, text=True, check=False, timeout=60
    )

    ours = [line for line in done.stderr.splitlines() if "gpuqueue" in line]
    assert (0, []) == (done.returncode, ours), done.stderr


def test_the_launcher_opens_sessions_where_a_service_is_named() -> None:
    """The name is an option of the launcher, also in the command without systemd, and there is none by default."""
    site = replace(SITE, pam_service="queue")
    site.check()

    assert unit_texts(site)["gpuqueue-launcher"] == unit_texts(SITE)["gpuqueue-launcher"].replace(
        f"--runs {RUNS}\n", f"--runs {RUNS} --pam-service queue\n"
    )
    assert f"--runs {RUNS} --pam-service queue &" in by_hand(site)[1]
    assert "--pam-service" not in "".join((*unit_texts(SITE).values(), *by_hand(SITE)))


def test_a_restart_leaves_jobs_alone() -> None:
    """Where processes of jobs are, only the main process is stopped, and a job killed for memory stops nothing."""
    for name in (RUNS_UNIT, "gpuqueue-launcher", "gpuqueue"):
        service = service_of(unit_texts(SITE)[name])
        assert (["process"], ["continue"]) == (service["KillMode"], service["OOMPolicy"])
    assert ["mixed"] == service_of(unit_texts(SITE)["gpuqueue-store"])["KillMode"]  # the recorder ends before the store
    assert [str(OOM_SCORE_ADJ)] == service_of(unit_texts(SITE)["gpuqueue-store"])[
        "OOMScoreAdjust"
    ]  # it holds the queue
    for name in (RUNS_UNIT, "gpuqueue-launcher"):
        assert ["yes"] == service_of(unit_texts(SITE)[name])["Delegate"]  # a control group for each run


def test_the_launcher_finds_the_unit_of_the_runs() -> None:
    """The launcher starts that unit, and looks for the runs' control groups below it."""
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read_string(unit_texts(SITE)["gpuqueue-launcher"])

    assert f"{RUNS_UNIT}.service" == unit["Unit"]["Wants"] == unit["Unit"]["After"]
    assert f"/system.slice/{RUNS_UNIT}.service" == RUNS_GROUP


def test_only_the_launcher_is_root() -> None:
    """The directory of the launcher's socket is root's, and no other unit has that directory. One unit only sleeps."""
    services = {name: service_of(text) for name, text in unit_texts(SITE).items()}

    own, workers, notifier = ["gpuqueue"], ["gpuqueue-workers"], ["gpuqueue-notify"]
    assert [None, None, notifier, own, own, workers] == [service.get("User") for service in services.values()]
    directories = [service.get("RuntimeDirectory") for service in services.values()]
    assert [None, [LAUNCHER_RUN.name], [NOTIFIER_RUN.name], None, [RUN.name], None] == directories
    assert "--account gpuqueue-workers --group lab" in services["gpuqueue-launcher"]["ExecStart"][0]


def test_the_launcher_turns_the_accounting_of_the_driver_on() -> None:
    """Only root may. A machine without nvidia-smi, or a call that hangs, keeps no launcher from starting."""
    services = {name: service_of(text) for name, text in unit_texts(SITE).items()}
    has_it = {name: service["ExecStartPost"] for name, service in services.items() if "ExecStartPost" in service}

    expected = "-/bin/sh -c 'timeout 60 nvidia-smi -am 1 >/dev/null 2>&1 &'"
    assert {"gpuqueue-launcher": [expected]} == has_it


@pytest.mark.parametrize(
    ("name", "most"), [("gpuqueue-store", 3.0), ("gpuqueue-serve", 3.0), ("gpuqueue", 3.9), ("gpuqueue-notify", 1.5)]
)
def test_systemd_finds_little_that_a_unit_could_do_without(name: str, most: float, tmp_path: Path) -> None:
    """The exposure of each unit of the queue's accounts is at most this much of 10, as systemd itself judges it."""
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not installed")
    file = tmp_path / f"{name}.service"
    file.write_text(unit_texts(SITE)[name])
    words = ["security", "--offline=true", f"--threshold={most * 10:.0f}", "--no-pager", file]

    done = subprocess.run([analyze, *words], capture_output=True, text=True, check=False, timeout=60)

    assert "Overall exposure level" in done.stdout, done.stderr
    assert 0 == done.returncode, done.stdout


def test_a_sandbox_of_the_launcher_takes_nothing_from_jobs() -> None:
    """What jobs inherit restricts neither namespaces, devices, /tmp nor set-user-ID programs."""
    for name in (RUNS_UNIT, "gpuqueue-launcher"):
        assert {"CapabilityBoundingSet"} >= SANDBOX & service_of(unit_texts(SITE)[name]).keys()


def test_the_notifier_has_no_file_of_the_queue() -> None:
    """Its account owns nothing, its unit closes all directories of the queue, and ``uninstall`` removes it."""
    (notifier,) = (step for step in steps_of(SITE) if step.name == f"account {NOTIFIER_ACCOUNT}")
    owned = [step for step in steps_of(SITE) if NOTIFIER_ACCOUNT in str(getattr(step, "owned", ""))]
    service = service_of(unit_texts(SITE)["gpuqueue-notify"])

    assert (False, []) == (notifier.lasting, owned)
    directories = [step.path for step in steps_of(SITE) if isinstance(step, Directory)]
    closed = service["InaccessiblePaths"][0].split()
    assert {f"-{each}" for each in (CONFIG.parent, *directories)} == set(closed)
    assert "Environment" not in service
    assert sending.SOCKET.parent == NOTIFIER_RUN
    with pytest.raises(BadRequest, match="gpuqueue-notify is the name of the account of the notifier"):
        replace(SITE, account=NOTIFIER_ACCOUNT).check()


def _settings(text: str, path: Path) -> Settings:
    path.write_text(text)
    return Settings.load({"GPUQUEUE_CONFIG": str(path)})


def test_the_settings_are_those_of_the_units(tmp_path: Path) -> None:
    """Both settings files are valid, jobs run as submitters, and launcher and service are where everybody looks."""
    site, workers = (
        _settings(text(SITE), tmp_path / name) for text, name in ((config_text, "site"), (workers_config_text, "host"))
    )

    assert ("/var/lib/gpuqueue", True, True) == (str(site.state_dir), site.embedded, site.record)
    assert ("gpuqueue-workers", None) == (site.workers_account, site.own_host)
    assert ("/var/lib/gpuqueue-workers", False, False) == (str(workers.state_dir), workers.embedded, workers.record)
    assert ("/var/lib/gpuqueue-runs", workers.host) == (str(workers.runs_dir), workers.own_host)
    assert site.redis_url == workers.redis_url
    assert str(LAUNCHER_RUN / "launcher.sock") == workers.launcher_in_use
    assert (str(RUN / "api.sock"), f"unix://{SYSTEM_SOCKET}") == (SYSTEM_SOCKET, workers.service_url)


def test_what_all_hosts_have_in_common_is_the_same_in_both_files(tmp_path: Path) -> None:
    """Also when other hosts join later: the workers cannot see that in their settings."""
    site = _settings(config_text(SITE) + 'hosts_redis_url = "rediss://gpu:6379/0"\n', tmp_path / "site")
    workers = _settings(workers_config_text(SITE), tmp_path / "host")

    assert [getattr(site, name) for name in SHARED] == [getattr(workers, name) for name in SHARED]


def test_the_settings_of_the_workers_have_no_secret() -> None:
    """They have neither the history nor the key, and their file cannot be read by the users."""
    text = workers_config_text(SITE)

    assert not {"database", "ticket", "notify"} & set(text.replace("_", " ").split())
    files = {each.name: each for each in steps_of(SITE) if isinstance(each, File)}
    assert "root:gpuqueue-workers 0640" == str(files[str(WORKERS_CONFIG)].owned)
    assert "root:gpuqueue 0640" == str(files[str(CONFIG)].owned)


def test_the_commands_without_systemd_are_those_of_the_units() -> None:
    """Each unit's command is among those to type on a machine without systemd."""
    typed = "\n".join(by_hand(SITE))

    for name, text in unit_texts(SITE).items():
        assert name == RUNS_UNIT or service_of(text)["ExecStart"][0] in typed


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"account": "a b"}, BadRequest, "--account a b: use at most 31 lower-case letters"),
        ({"group": "lab\nUser=root"}, BadRequest, "--group lab\nUser=root: use at most 31 lower-case letters"),
        ({"pam_service": "../x"}, BadRequest, "--pam-service ../x: use at most 31 lower-case letters"),
        ({"account": "lab"}, BadRequest, "--group lab is the name of an account of the queue"),
        ({"workers_account": "lab"}, BadRequest, "--group lab is the name of an account of the queue"),
        ({"workers_account": "gpuqueue"}, BadRequest, "--account and --workers-account must differ"),
        ({"programs": Path("/opt/50% off")}, Refused, "has special characters"),
    ],
)
def test_names_that_would_change_a_unit_are_refused(
    changes: dict[str, object], error: type[Exception], words: str
) -> None:
    """Names and paths that would need quotes in a unit are refused."""
    with pytest.raises(error, match=words):
        SystemSite(**{"account": "gpuqueue", "group": "lab", "programs": Path("/opt"), **changes}).check()  # type: ignore[arg-type]


def test_the_commands_to_start_an_account_by_hand_give_it_no_terminal() -> None:
    """On root's terminal the account could type commands for root (TIOCSTI)."""
    for line in by_hand(SITE):
        assert "--reuid" not in line or (line.startswith("setsid ") and line.endswith("</dev/null >/dev/null 2>&1 &"))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start a program as an account")
def test_what_root_starts_as_an_account_has_no_terminal(tmp_path: Path) -> None:
    """On root's terminal the account could type commands for root (TIOCSTI)."""
    me = pwd.getpwuid(os.geteuid()).pw_name
    program = tmp_path / "gpuqueue-worker"
    program.write_text('#!/bin/sh\nreadlink /proc/self/fd/0; test "$(ps -o sid= -p $$)" -eq $$ && echo apart\n')
    program.chmod(0o755)

    output = Part(tmp_path, me, tmp_path, tmp_path / "config.toml").run("gpuqueue-worker", "left")
    assert ["/dev/null", "apart"] == output.splitlines()
