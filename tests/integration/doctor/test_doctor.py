"""``gpuqueue doctor`` as a user or a monitoring system runs it, on a healthy site and on broken ones."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest
from bounded import until
from own_home import BIN
from own_home import Home as OwnHome
from terminal import Terminal

from gpuqueue.doctor import examination
from gpuqueue.model.finding import Grade
from gpuqueue.queue.drains import DrainOrigin
from gpuqueue.queue.jobqueue import JobQueue
from gpuqueue.system.process import ProcessIdentity

#: Checks that depend on the machine that runs the tests: the fill level of its disk.
NOT_OURS = {"disk"}
#: Variables of the caller that a finding depends on.
NOT_FOR_DOCTOR = {"VIRTUAL_ENV", "NO_COLOR", "PYTHONDONTWRITEBYTECODE"}


class Home(OwnHome):
    """A user's machine, whose doctor is asked for findings."""

    def __init__(self, state: Path) -> None:
        super().__init__(state)
        self.environ = {name: value for name, value in self.environ.items() if name not in NOT_FOR_DOCTOR}
        self.environ["GPUQUEUE_DEVICES"] = "sim:1x1G"

    def run(self, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
        """Run ``gpuqueue`` and return the result, whatever the exit code. Fail on a traceback."""
        done = subprocess.run(
            [str(BIN / "gpuqueue"), *words],
            env={**self.environ, **environ},
            capture_output=True,
            text=True,
            timeout=110,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        assert "Traceback" not in done.stderr
        return done

    def findings(self, *words: str, **environ: str) -> list[dict[str, Any]]:
        """Return the findings of ``doctor --json``."""
        found: list[dict[str, Any]] = json.loads(self.run("doctor", "--json", *words, **environ).stdout)["findings"]
        return found

    def the(self, room: str, check: str, **environ: str) -> dict[str, Any]:
        """Return the only finding of a check."""
        (found,) = [each for each in self.findings(**environ) if (each["section"], each["check"]) == (room, check)]
        return found

    def bad(self, *words: str, **environ: str) -> dict[str, str]:
        """Return the grade of each check that is not healthy, by section and name."""
        return {
            f"{each['section']} {each['check']}": each["grade"]
            for each in self.findings("-q", *words, **environ)
            if each["check"] not in NOT_OURS
        }

    def host(self) -> ProcessIdentity:
        """Return the host process."""
        identity = ProcessIdentity.parse((self.state / "host.pid").read_text())
        assert identity is not None
        return identity

    @property
    def queue(self) -> JobQueue:
        """Return the queue of this machine's store."""
        return JobQueue(f"unix://{self.state}/store/store.sock")


@pytest.fixture
def home(home: OwnHome) -> Home:
    """Return a machine on which nothing runs, before and after the test."""
    return Home(home.state)


@pytest.fixture
def up(home: Home) -> Home:
    """Return a machine on which ``gpuqueue up`` has run."""
    done = home.run("up")
    assert 0 == done.returncode, done.stderr
    return home


@pytest.mark.full
def test_a_site_that_is_well_says_so(up: Home) -> None:
    """A healthy site gets a short report and exit code 0, and no output with ``-q``. Every section has been checked."""
    whole, quiet = up.run("doctor"), up.run("doctor", "-q")

    if "free" not in quiet.stdout:  # false if this machine's disk is nearly full
        assert (0, 0, "") == (whole.returncode, quiet.returncode, quiet.stdout)
        assert re.fullmatch(r"\d\d checks passed: gpuqueue doctor --verbose shows them\n", whole.stdout)
    assert {} == up.bad()
    rooms = {each["section"] for each in up.findings()}
    assert {"settings", "state", "host", "python", "store", "queue", "history", "processes", "runs"} == rooms


@pytest.mark.full
def test_an_empty_site_is_reported_and_not_changed(home: Home) -> None:
    """Without a store, a history or a state directory, the report names the command to type, and creates nothing."""
    home.state.rmdir()

    done = home.run("doctor")

    assert 1 == done.returncode
    assert "no store answers at" in done.stdout
    assert "→ start one with gpuqueue up" in done.stdout
    assert not home.state.exists()
    assert {"store answers": "problem", "history answers": "problem", "queue opened": "unknown"} == home.bad()


@pytest.mark.full
def test_a_home_that_nobody_can_write_is_no_obstacle(home: Home) -> None:
    """A home directory that is not writable, such as a service account's, does not stop doctor.

    /proc is read-only even for root.
    """
    environ = {name: value for name, value in home.environ.items() if name != "GPUQUEUE_STATE_DIR"}
    home.environ = {**environ, "HOME": "/proc", "XDG_STATE_HOME": "", "XDG_CONFIG_HOME": ""}

    assert "/proc/.local/state/gpuqueue is not there yet" in home.the("state", "directory")["seen"]


@pytest.mark.full
def test_a_store_that_never_answers_is_not_waited_for_for_ever(home: Home) -> None:
    """A store that accepts the connection and never answers is a problem. Doctor does not hang."""
    (home.state / "store").mkdir()
    with socket.socket(socket.AF_UNIX) as mute:
        mute.bind(str(home.state / "store" / "store.sock"))
        mute.listen(16)

        assert "problem" == home.bad()["store answers"]


def test_settings_that_hang_are_the_only_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings that cannot be read in time, as on a network disk without its server, are the only finding.

    Without the settings doctor does not know where anything else is.
    """
    monkeypatch.setattr(examination, "POLL_S", 0.2)
    config = tmp_path / "config.toml"
    os.mkfifo(config)

    found = list(examination.examine({"GPUQUEUE_CONFIG": str(config), "GPUQUEUE_STATE_DIR": str(tmp_path)}))

    ((room, (finding,)),) = found
    assert ("settings", Grade.PROBLEM) == (room, finding.grade)
    assert "cannot be checked: no answer within" in finding.seen
    os.close(os.open(config, os.O_WRONLY))  # ends the thread that still reads the pipe


@pytest.mark.parametrize("line", ["headroom = = 3", 'heartbeat = "soon"', 'slot = "4"'])
def test_a_setting_that_cannot_be_read_is_the_only_finding(tmp_path: Path, line: str) -> None:
    """The other sections would be about the defaults: a store at another place, which is not there."""
    config = tmp_path / "config.toml"
    config.write_text(f'host = "node1"\n{line}\n')

    found = dict(examination.examine({"GPUQUEUE_CONFIG": str(config), "GPUQUEUE_STATE_DIR": str(tmp_path)}))

    assert ["settings"] == list(found)
    (finding,) = [each for each in found["settings"] if not each.grade.is_well]
    assert ("reading", Grade.PROBLEM) == (finding.check, finding.grade)


@pytest.mark.full
def test_no_password_is_shown(home: Home) -> None:
    """Passwords appear neither in the text nor in the JSON output, because users paste both."""
    secret = {
        "GPUQUEUE_REDIS_URL": "redis://ada:hunter2@127.0.0.1:1/0",
        "GPUQUEUE_DATABASE_URL": "postgresql://ada:hunter2@127.0.0.1:1/db?sslpassword=hunter2",
    }

    for words in ([], ["--verbose"], ["--json"], ["--fix", "-v"]):
        done = home.run("doctor", *words, **secret)
        assert 1 == done.returncode
        assert "hunter2" not in done.stdout + done.stderr
        if not words:
            continue
        assert "redis://ada:***@127.0.0.1:1/0 (environment GPUQUEUE_REDIS_URL)" in done.stdout


# ---- faults of a site that was up ------------------------------------------------------------------------------------


@pytest.mark.full
def test_processes_that_died_or_have_other_settings_are_reported(up: Home, tmp_path: Path) -> None:
    """Settings that changed after the workers started take effect at the next start.

    A missing recorder gets a note while the host process is stopped and cannot restart it. The children of a killed
    host process end with it, and running jobs end after the grace period.
    """
    config = tmp_path / "config.toml"
    config.write_text("")
    os.utime(config, (2**32, 2**32))
    same = up.the("processes", "settings")
    changed = up.the("processes", "settings", GPUQUEUE_SLOTS="3")
    written = up.the("processes", "settings", GPUQUEUE_CONFIG=str(config))
    assert "ok" == same["grade"]
    assert ("note", True) == (changed["grade"], "GPUQUEUE_SLOTS" in changed["seen"])
    assert ("warning", True) == (written["grade"], "settings file was changed" in written["seen"])

    def reported() -> bool:
        return up.the("processes", "recorder")["grade"] == "note"

    host = up.host()
    host.send(signal.SIGSTOP)
    try:
        for child in Path(f"/proc/{host.pid}/task/{host.pid}/children").read_text().split():
            if b"record" in Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0"):
                os.kill(int(child), signal.SIGKILL)
        until(reported, what="a recorder that is missed")
    finally:
        host.send(signal.SIGKILL)
    assert host.wait(30)
    died = up.the("processes", "host")
    assert ("problem", True) == (died["grade"], died["remedy"].startswith("gpuqueue up; why it died: "))


@pytest.mark.full
def test_devices_that_a_killed_down_left_drained_are_resumed(up: Home) -> None:
    """``doctor --fix`` resumes devices that a killed ``down`` left drained, but not those of a running ``down``.

    ``up`` would resume them too, but until then every job waits.
    """
    (device,) = up.queue.devices.all()
    up.run("submit", "--mem", "400M", "--", "sleep", "1000")
    with subprocess.Popen(
        [str(BIN / "gpuqueue"), "down"], env=up.environ, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    ) as down:
        assert down.stderr is not None
        assert "waiting for job 1 to end" in down.stderr.readline()
        assert {} == up.bad()
        assert [] == json.loads(up.run("doctor", "--fix", "--json").stdout)["repairs"]
        assert () != up.queue.devices.all()[0].drains
        down.kill()

    assert {"queue devices": "warning"} == up.bad()
    assert 6 == up.run("doctor").returncode
    fixed = json.loads(up.run("doctor", "--fix", "--json").stdout)

    printed = f"device 0 ({device.device.uuid}) is no longer drained for a down that was killed"
    assert [printed] == fixed["repairs"]
    assert () == up.queue.devices.all()[0].drains
    assert {} == up.bad()
    assert "running" == json.loads(up.run("show", "1", "--json").stdout)["job"]["state"]


@pytest.mark.full
def test_a_drain_by_a_person_is_not_ended(up: Home) -> None:
    """``doctor --fix`` never resumes a device that a user drained, with or without a killed ``down`` beside it."""
    up.run("drain", "0", "--reason", "new fan")
    (device,) = up.queue.devices.all()
    up.queue.devices.drain([device.device.uuid], origin=DrainOrigin.DOWN, why="going down", by="ada")

    repairs = json.loads(up.run("doctor", "--fix", "--json").stdout)["repairs"]

    assert [f"device 0 ({device.device.uuid}) is no longer drained for a down that was killed"] == repairs
    assert [DrainOrigin.PERSON] == [each.origin for each in up.queue.devices.all()[0].drains]
    assert [] == json.loads(up.run("doctor", "--fix", "--json").stdout)["repairs"]


@pytest.mark.full
@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a directory away")
def test_a_site_of_another_account_is_reported_and_not_repaired(home: Home) -> None:
    """Doctor run by root reports that another account owns the site, and repairs nothing.

    Files that root creates there would be in the owner's way.
    """
    os.chown(home.state, 65534, 65534)

    assert "belongs to nobody, and you are root" in home.the("state", "directory")["seen"]
    (printed,) = json.loads(home.run("doctor", "--fix", "--json").stdout)["repairs"]
    assert "nothing was repaired" in printed
    assert [] == list(home.state.iterdir())


@pytest.mark.full
def test_inside_a_job_the_site_is_examined_and_not_the_job(home: Home) -> None:
    """Inside a job doctor checks the site.

    A job's variable with the name of a setting (GPUQUEUE_DEVICES) is not taken for the setting.
    """
    inside = {"GPUQUEUE_TOKEN": "1.aa", "GPUQUEUE_JOB_ID": "7", "GPUQUEUE_DEVICES": "GPU-0"}

    found = home.findings(**inside)

    assert "auto (default)" in [each["seen"] for each in found if each["about"] == "devices"]
    assert "this runs inside job 7" in [each["seen"] for each in found]
    assert "host devices" not in home.bad(**inside)


# ---- output formats --------------------------------------------------------------------------------------------------


@pytest.mark.full
@pytest.mark.parametrize(("no_colour", "coloured"), [("", True), ("1", False)])
def test_colour_is_for_a_terminal_that_wants_it(home: Home, no_colour: str, *, coloured: bool) -> None:
    """The report has colour only on a terminal without NO_COLOR. A pipe gets none."""
    with Terminal([str(BIN / "gpuqueue"), "doctor", "-q"], {**home.environ, "NO_COLOR": no_colour}) as terminal:
        terminal.ended()

    assert b"answers" in terminal.written
    assert coloured == bool(re.search(rb"\x1b\[[0-9;]*m", terminal.written))
    assert "\x1b" not in home.run("doctor", "-q").stdout


@pytest.mark.full
def test_a_finding_goes_on_below_on_a_narrow_terminal(home: Home) -> None:
    """A long finding wraps at words and continues in the text column.

    The terminal used to break words below the marks.
    """
    with Terminal([str(BIN / "gpuqueue"), "doctor"], {**home.environ, "NO_COLOR": "1"}, columns=60) as terminal:
        terminal.ended()
        lines = terminal.written.decode().splitlines()

    assert max(map(len, lines)) <= 60
    answers = next(place for place, line in enumerate(lines) if line.startswith("  ✗ answers"))
    assert lines[answers + 1].startswith(" " * 24)
    assert max(map(len, home.run("doctor").stdout.splitlines())) > 60


@pytest.mark.full
def test_a_command_that_is_not_installed_is_reported(home: Home, tmp_path: Path) -> None:
    """Without ``gpuqueue-worker`` the sections that need it are unknown, and all other sections are reported."""
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.symlink_to(BIN / "python")
    code = "import sys; from gpuqueue.cli.main import main; sys.executable = sys.argv.pop(1); main()"
    done = subprocess.run(
        [str(BIN / "python"), "-c", code, str(python), "doctor", "--json"],
        env={**home.environ, "PATH": "/nowhere"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )

    assert "Traceback" not in done.stderr
    machines = [each for each in json.loads(done.stdout)["findings"] if each["check"] == "machines"]
    assert {"host", "python", "runs"} == {each["section"] for each in machines}
    assert "install" in machines[0]["remedy"]
