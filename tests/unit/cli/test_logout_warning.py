from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import pytest

from gpuqueue.cli.commands import install as install_command
from gpuqueue.cli.commands import up as up_command
from gpuqueue.installation.site import SystemSite
from gpuqueue.settings.settings import Settings
from gpuqueue.system.account import current_account
from gpuqueue.system.logind import Logind

PID = 7


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the root of a machine with systemd, whose default deletes the shared memory of jobs."""
    (tmp_path / "run/systemd/system").mkdir(parents=True)
    for module in (install_command, up_command):
        monkeypatch.setattr(module, "Logind", partial(Logind, tmp_path))
    return tmp_path


@pytest.mark.parametrize("run_as", ["worker", "submitter"])
def test_up_warns_of_a_logout_that_ends_the_queue(root: Path, capsys: pytest.CaptureFixture[str], run_as: str) -> None:
    """One line has the remedy. Where jobs run as their submitters, install and doctor warn."""
    group = root / f"proc/{PID}/cgroup"
    group.parent.mkdir(parents=True)
    group.write_text("0::/user.slice/user-1000.slice/user@1000.service/app.slice/terminal.scope\n")
    environ = {"GPUQUEUE_CONFIG": os.devnull, "GPUQUEUE_STATE_DIR": "/s", "GPUQUEUE_RUN_AS": run_as}

    up_command._warn_of_logout(Settings.load(environ), PID)

    name = current_account("here").name
    what = f"a logout of {name} ends this queue and its jobs (the user manager of systemd, without linger)"
    expected = f"gpuqueue: warning: {what}: loginctl enable-linger {name}\n"
    assert (expected if run_as == "worker" else "") == capsys.readouterr().err


@pytest.mark.parametrize("pam_service", ["", "gpuqueue"])
def test_install_warns_of_logouts_of_submitters(
    root: Path, capsys: pytest.CaptureFixture[str], pam_service: str
) -> None:
    """A session for each run keeps its person logged in, so that there is nothing to warn of."""
    assert root.is_dir()
    site = SystemSite(account="gpuqueue", group="lab", programs=Path("/opt/bin"), pam_service=pam_service)

    install_command.report_done(site)

    words = "a logout of a person deletes the shared memory (/dev/shm) of their running jobs (RemoveIPC of logind): "
    assert (words in capsys.readouterr().err) is (not pam_service)
