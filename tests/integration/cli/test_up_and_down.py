from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from bounded import until
from own_home import Home
from site_of_one import BIN

from gpuqueue.system.process import ProcessIdentity

UNREACHABLE = 4


@pytest.mark.full
def test_up_a_job_history_down(home: Home) -> None:
    """The embedded default works from ``up`` to ``down`` without a separate server, root or a GPU."""
    up = home("up", "--devices", "cpu")
    assert "store    started" in up
    assert "ready" in up
    status = json.loads(home("status", "--json"))
    assert (True, 1) == (status["store_answers"], len(status["devices"]))
    assert "cpu" == status["devices"][0]["device"]["kind"]

    hello = "print('hello'); held = b'x' * 2**25"  # more than its shim, or the kernel's maximum would be the shim's
    assert "hello\n" in home("run", "--mem", "100M", "--", sys.executable, "-c", hello)
    (row,) = json.loads(home("history", "--json"))
    assert ("succeeded", "host_rss") == (row["job"]["state"], row["runs"][0]["devices"][0]["peak"]["source"])

    assert "already up" in home("up")
    home("down")
    assert [] == home.ours()
    assert "silent" in home("status", code=4)
    assert "does not answer: is it running? Start it with gpuqueue up" in home(
        "submit", "--mem", "1M", "--", "true", code=4
    )
    assert "succeeded" in home("history")


@pytest.mark.full
def test_the_store_is_private_and_durable(home: Home) -> None:
    """Only its owner can use the store's socket. A waiting job survives a kill -9 of all processes."""
    home("up", "--devices", "sim:1x1G")
    socket = home.state / "store" / "store.sock"
    assert 0o700 == socket.stat().st_mode & 0o777
    home("submit", "--mem", "400M", "--name", "blocks", "--", "sleep", "1000")
    home("submit", "--mem", "400M", "--name", "waits", "--", "true")
    home("hold", "2")
    for pid_file in (home.state / "host.pid", home.state / "store" / "pid"):
        identity = ProcessIdentity.parse(pid_file.read_text())
        assert identity is not None
        identity.send(signal.SIGKILL)
        assert identity.wait(10)

    home("up", "--devices", "sim:1x1G")

    queue = {job["spec"]["name"]: job["state"] for job in json.loads(home("queue", "--json"))["jobs"]}
    assert {"blocks": "running", "waits": "held"} == queue
    assert "cancelling" in home("cancel", "1")


@pytest.mark.full
def test_down_drains_by_default(home: Home) -> None:
    """``down`` waits for running jobs, starts none, and keeps the waiting ones."""
    home("up", "--devices", "sim:1x1G")
    gate = home.state / "gate"
    home("submit", "--mem", "400M", "--", "sh", "-c", f"while [ ! -e {gate} ]; do sleep 0.05; done")
    home("submit", "--mem", "400M", "--", "true")
    home("hold", "2")
    with subprocess.Popen(
        [str(BIN / "gpuqueue"), "down"], env=home.environ, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    ) as down:
        assert down.stderr is not None
        assert "waiting for job 1 to end" in down.stderr.readline()
        home("release", "2")
        gate.touch()
        assert 0 == down.wait(timeout=60)

    assert [] == home.ours()
    home("up", "--devices", "sim:1x1G")
    home("wait", "1", "2")


@pytest.mark.full
def test_jobs_left_to_their_shims_are_taken_over_by_the_next_up(home: Home) -> None:
    """After ``down --leave-jobs`` only the job and its shim run. The next ``up`` adopts them, and nothing is lost."""
    home("up", "--devices", "cpu")
    gate = home.state / "gate"
    home("submit", "--mem", "10M", "--", "sh", "-c", f"echo began; while [ ! -e {gate} ]; do sleep 0.05; done; exit 4")
    until(lambda: "began" in home("logs", "1", code=0) if list(home.state.glob("runs/1/*/log")) else False)

    left = home("down", "--leave-jobs")

    assert "1 job goes on without a worker for up to 7d" in left
    (heartbeat,) = home.state.glob("runs/[0-9]*/*/heartbeat")
    assert 6 * 86400 < float(heartbeat.read_text()) - time.monotonic() <= 7 * 86400
    assert any("forkserver.py" in command for command in home.ours())
    home("up", "--devices", "cpu")
    gate.touch()
    home("wait", "1", code=4)
    assert 1 == json.loads(home("show", "1", "--json"))["job"]["attempt"]


@pytest.mark.full
def test_up_in_the_foreground_ends_with_its_signal(home: Home) -> None:
    """``up --foreground`` is one process that one signal stops, for systemd and containers."""
    with subprocess.Popen(
        [str(BIN / "gpuqueue"), "up", "--foreground", "--devices", "cpu"],
        env=home.environ,
        stdout=subprocess.PIPE,
        text=True,
    ) as up:
        assert up.stdout is not None
        until(lambda: "ready" in (up.stdout.readline() if up.stdout else ""))
        up.send_signal(signal.SIGTERM)
        assert 0 == up.wait(timeout=60)

    assert [] == home.ours()


@pytest.mark.full
def test_up_in_the_foreground_takes_over_from_one_that_was_killed(home: Home) -> None:
    """Jobs go on, and the next ``up --foreground`` starts. It used to end with exit code 5, until a ``down``."""
    command = [str(BIN / "gpuqueue"), "up", "--foreground", "--devices", "sim:1x1G"]
    with subprocess.Popen(command, env=home.environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as killed_up:
        until(lambda: "ready" in home.output_of("gpus"))
        home("submit", "--mem", "10M", "--", "sleep", "1000")
        until(lambda: json.loads(home("queue", "--json"))["jobs"][0]["state"] == "running")
        killed_up.kill()
    host = json.loads(home("status", "--json"))["host_pid"]
    assert "it is up already" not in home("up")  # in the background there is nothing to take over
    with subprocess.Popen(command, env=home.environ, stdout=subprocess.PIPE, text=True) as up:
        assert up.stdout is not None
        until(lambda: "ready" in (up.stdout.readline() if up.stdout else ""), what="the next one")
        assert host != json.loads(home("status", "--json"))["host_pid"]
        assert "it is up already" in home("up", "--foreground", code=5)
        (job,) = json.loads(home("queue", "--json"))["jobs"]
        assert ("running", 1) == (job["state"], job["attempt"])
        home("cancel", "1")
        home("wait", "1", code=130)
        up.send_signal(signal.SIGTERM)
        assert 0 == up.wait(timeout=60)

    assert [] == home.ours()


@pytest.mark.full
def test_down_may_leave_the_jobs_of_an_up_in_the_foreground(home: Home) -> None:
    """The foreground process ends with its workers, but only after ``down`` has finished with the store."""
    with subprocess.Popen(
        [str(BIN / "gpuqueue"), "up", "--foreground", "--devices", "cpu"],
        env=home.environ,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as up:
        until(lambda: "ready" in home.output_of("gpus"))
        assert "it is up already" in home("up", "--foreground", code=5)
        home("submit", "--mem", "10M", "--", "sleep", "1000")
        until(lambda: json.loads(home("queue", "--json"))["jobs"][0]["state"] == "running")

        assert "1 job goes on" in home("down", "--leave-jobs")
        assert 0 == up.wait(timeout=60)

    home("up", "--devices", "cpu")
    assert "cancelling" in home("cancel", "1")


@pytest.mark.full
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_ctrl_c_while_down_waits_leaves_the_machine_as_it_was(home: Home, number: signal.Signals) -> None:
    """A Ctrl-C or a closed terminal during ``down`` resumes the devices that it had drained."""
    home("up", "--devices", "sim:1x1G")
    home("submit", "--mem", "10M", "--", "sleep", "1000")
    with subprocess.Popen(
        [str(BIN / "gpuqueue"), "down"], env=home.environ, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    ) as down:
        assert down.stderr is not None
        assert "waiting for job 1 to end" in down.stderr.readline()
        down.send_signal(number)
        assert 130 == down.wait(timeout=30)

    home("run", "--mem", "1M", "--", "true")
    assert "ready" in home("gpus")


@pytest.mark.parametrize(
    "spec", ["sim:0x1G", *(pytest.param(each, marks=pytest.mark.full) for each in ("nonsense", "sim:4x24", "", " "))]
)
def test_devices_that_make_no_sense_are_refused_before_anything_starts(home: Home, spec: str) -> None:
    """Invalid devices give one line and exit code 2, and nothing is started."""
    assert home("up", "--devices", spec, code=2).startswith("gpuqueue: ")
    assert [] == home.ours()


def test_up_warns_of_a_variable_that_is_no_setting(home: Home) -> None:
    """A misspelled setting is reported in one line."""
    home.environ["GPUQUEUE_SLOT"] = "8"

    reported = home("up", "--devices", "sim:0x1G", code=2)

    assert "warning: GPUQUEUE_SLOT is no setting and has no effect: did you mean" in reported


def killed(home: Home, pid_file: str) -> ProcessIdentity:
    """Send SIGKILL to the process of a file below the state directory, wait for its end, and return its identity."""
    identity = ProcessIdentity.parse((home.state / pid_file).read_text())
    assert identity is not None
    identity.send(signal.SIGKILL)
    assert identity.wait(10)
    return identity


@pytest.mark.full
def test_a_store_that_died_alone_is_back_within_seconds(home: Home) -> None:
    """The host process starts it again. Jobs that run go on, those that wait are there, and the reason is shown."""
    home("up", "--devices", "sim:1x1G")
    gate = home.state / "gate"
    home("submit", "--mem", "400M", "--", "sh", "-c", f"while [ ! -e {gate} ]; do sleep 0.05; done; exit 4")
    home("submit", "--mem", "400M", "--", "true")
    for _ in range(2):
        killed(home, "store/pid")
        until(lambda: home.output_of("queue"), what="the queue", timeout_s=20)

    assert ["running", "queued"] == [each["state"] for each in json.loads(home("queue", "--json"))["jobs"]]
    # The store answers a moment before its supervisor has looked.
    until(lambda: json.loads(home("status", "--json"))["store_trouble"]["state"] == "serving", what="the record")
    assert "was killed by SIGKILL" in home("status")
    assert "was killed by SIGKILL" in home("doctor", code=6)
    assert "the store answers again" in (home.state / "log" / "host.log").read_text()
    assert "already up" in home("up", "--devices", "sim:1x1G")
    assert "for other devices run gpuqueue down first" in home("up", "--devices", "cpu", code=5)
    gate.touch()
    home("wait", "1", code=4)
    home("wait", "2")
    assert [1, 1] == [len(each["runs"]) for each in json.loads(home("history", "--json"))]


@pytest.mark.full
def test_up_starts_a_store_that_cannot_be_started_again(home: Home) -> None:
    """A damaged store is left alone, and named. After the repair ``up`` starts it beside the running workers."""
    home("up", "--devices", "sim:1x1G")
    home("submit", "--mem", "10M", "--", "sleep", "1000")
    (log,) = (home.state / "store" / "appendonlydir").glob("*.incr.aof")
    whole = log.read_bytes()
    log.write_bytes(b"*no command\r\n" + whole)
    killed(home, "store/pid")
    until(lambda: "given up" in home.output_of("status"), what="it gives up")
    assert "cannot read its files" in home("doctor", code=1)
    assert "cannot read its files" in home("up", code=1)

    log.write_bytes(whole)
    assert "store    restarted" in home("up")
    home("run", "--mem", "1M", "--", "true")
    assert 1 == json.loads(home("show", "1", "--json"))["job"]["attempt"]
    home("cancel", "1")


@pytest.mark.full
def test_up_in_the_foreground_ends_if_its_store_cannot_be_started_again(home: Home) -> None:
    """A unit restarts it then. Before that it leaves no zombie of a store that was only killed."""
    with subprocess.Popen(
        [str(BIN / "gpuqueue"), "up", "--foreground", "--devices", "sim:1x1G"],
        env=home.environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as up:
        assert up.stdout is not None
        assert up.stderr is not None
        while "Simulated" not in up.stdout.readline():  # the last line of its start, which needs the store
            assert up.poll() is None
        first = killed(home, "store/pid")
        assert f"the store (pid {first.pid}) was killed by SIGKILL: see" in up.stderr.readline()
        until(lambda: not Path(f"/proc/{first.pid}").exists(), what="no zombie")
        until(lambda: home.output_of("queue") != "" or home.output_of("status"), what="the queue")
        until(lambda: json.loads(home.output_of("status", "--json"))["store_answers"], what="the store")

        (log,) = (home.state / "store" / "appendonlydir").glob("*.incr.aof")
        log.write_bytes(b"*no command\r\n" + log.read_bytes())
        killed(home, "store/pid")
        assert UNREACHABLE == up.wait(timeout=60)
        assert "the workers' host process ended with 4: " in (reported := up.stderr.read())
        assert "the store cannot be started again: the store cannot read its files" in reported

    assert [] == home.ours()


@pytest.mark.full
def test_nothing_is_left_running_silently(home: Home) -> None:
    """Without host process and store ``down`` names the jobs that run, and ends them with ``--cancel-jobs``."""
    home("up", "--devices", "sim:1x1G")
    home("submit", "--mem", "10M", "--", "sleep", "1000")
    until(lambda: json.loads(home("queue", "--json"))["jobs"][0]["state"] == "running")
    killed(home, "host.pid")
    killed(home, "store/pid")

    assert "job 1 still runs without a worker" in home("down", code=5)
    assert any("forkserver.py" in command for command in home.ours())
    home("down", "--cancel-jobs")

    until(lambda: not home.ours())  # the worker ends by itself, since its parent is gone
    home("up", "--devices", "sim:1x1G")
    home("wait", "1", code=130)
    assert 1 == json.loads(home("show", "1", "--json"))["job"]["attempt"]


@pytest.mark.full
def test_a_worker_that_dies_is_started_again(home: Home) -> None:
    """The host process restarts a worker that dies."""
    home("up", "--devices", "sim:1x1G")
    (first,) = json.loads(home("status", "--json"))["devices"]
    pid = next(int(entry.name) for entry in Path("/proc").iterdir() if _is_worker_of(entry, home))
    os.kill(pid, signal.SIGKILL)

    until(lambda: json.loads(home("status", "--json"))["devices"][0]["worker"] != first["worker"])
    home("run", "--mem", "1M", "--", "true")


def _is_worker_of(entry: Path, home: Home) -> bool:
    try:
        words = (entry / "cmdline").read_bytes().split(b"\0")
        return b"run" in words and str(home.state).encode() in (entry / "environ").read_bytes()
    except OSError:
        return False


@pytest.mark.full
@pytest.mark.timeout(300)  # each up and down starts or stops several processes
def test_a_persons_drain_survives_down_up_and_a_crash(home: Home) -> None:
    """``up`` resumes only the devices that ``down`` drained, not those that a user drained."""
    home("up", "--devices", "sim:2x1G")
    home("drain", "0", "--reason", "waits for its RMA")
    home("down")
    assert "waits for its RMA" in home("up", "--devices", "sim:2x1G")

    home("up")  # a second `up` only resumes what a `down` drained
    host = ProcessIdentity.parse((home.state / "host.pid").read_text())
    assert host is not None
    host.send(signal.SIGKILL)
    assert host.wait(10)
    home("up", "--devices", "sim:2x1G")

    zero, one = json.loads(home("gpus", "--json"))
    assert (["person"], []) == ([each["origin"] for each in zero["drains"]], one["drains"])


@pytest.mark.full
def test_a_reader_that_goes_away_takes_nothing_down(home: Home) -> None:
    """A closed output pipe does not stop ``up``. ``gpuqueue up | head -1`` used to stop the site silently."""
    command = [str(BIN / "gpuqueue"), "up", "--devices", "sim:1x8G"]
    with subprocess.Popen(command, env=home.environ, stdout=subprocess.PIPE, text=True) as up:
        assert up.stdout is not None
        assert up.stdout.readline().startswith("store    started")
        up.stdout.close()
        assert 0 == up.wait(60)

    assert "workers  up" in home("status")


def test_up_and_why_name_a_device_that_is_missing(home: Home) -> None:
    """After a crash one of two cards was gone. `up` started without a word, and a job that named it waited for ever."""
    home.environ["GPUQUEUE_HEARTBEAT"] = "0.2s"
    home("up", "--devices", "sim:2x1G")
    home("submit", "--mem", "100M", "--device", "1", "--hold", "--", "true")
    killed(home, "host.pid")
    until(lambda: min(each["seen_s_ago"] for each in json.loads(home("gpus", "--json"))) > 2, what="silence")

    up = home("up", "--devices", "sim:1x1G")

    uuid = json.loads(home("gpus", "--json"))[0]["device"]["uuid"].removesuffix("0") + "1"
    assert f"gpuqueue: warning: device 1 (Simulated 1G, {uuid}) is missing: it was served before." in up
    until(lambda: len(json.loads(home("gpus", "--json"))) == 1, what="the withdrawal of the device", timeout_s=60)
    home("release", "1")
    assert f"never: {uuid}, which the job names, is missing: no worker serves it." in home("why", "1")
    edited = home("edit", "1", "--name", "again")  # it said that no GPU is served
    assert f"gpuqueue: {uuid}, which the job names, is missing: no worker serves it. Name others:" in edited
    home("down")
    assert "missing" not in home("up", "--devices", "sim:1x1G")


def test_down_says_when_nothing_runs(home: Home) -> None:
    """It asked whether the store is running, and advised `gpuqueue up`."""
    printed = home("down")

    assert ["workers were down", f"store was down unix://{home.state}/store/store.sock"] == [
        " ".join(line.split()) for line in printed.splitlines()
    ]


#: A job that saves its state when it is warned.
SAVES = "trap 'cat $GPUQUEUE_RUN_DIR/preempt.json > saved; exit 3' TERM; echo began; while :; do sleep 0.05; done"


def began(home: Home) -> bool:
    """Return whether the first job has begun."""
    return any("began" in log.read_text() for log in home.state.glob("runs/1/*/log"))


def check_handed_back(home: Home) -> None:
    """Check that nothing is left, and that the job was preempted, saved its state and waits for another run."""
    assert [] == home.ours()
    *_, row = json.loads(home("history", "--json"))  # the newest job is the first
    assert ("queued", 0, 0) == tuple(row["job"][name] for name in ("state", "losses", "retries"))
    (run,) = row["runs"]
    assert ("preempted", "its time on the device was over") == (run["ending"]["kind"], run["ending"]["detail"])
    assert '"its time on the device is over"' in (home.state / "saved").read_text()


@pytest.mark.full
def test_a_host_with_an_end_hands_its_jobs_back_in_time(home: Home) -> None:
    """``up --foreground --until`` preempts what runs, leaves nothing and returns 0. The next ``up`` has no end."""
    home.environ["GPUQUEUE_PREEMPT_GRACE"] = "5s"
    command = [str(BIN / "gpuqueue"), "up", "--foreground", "--until", "30s", "--devices", "sim:1x1G"]
    with subprocess.Popen(command, env=home.environ, stderr=subprocess.PIPE, text=True) as up:
        until(lambda: "ends at" in home.output_of("gpus"))
        home("submit", "--mem", "400M", "--cwd", str(home.state), "--", "sh", "-c", SAVES)
        home("submit", "--mem", "400M", "--time", "2m", "--hold", "--", "true")
        until(lambda: began(home))
        home("release", "2")
        assert "end" == json.loads(home("queue", "--json"))["jobs"][-1]["reason"]
        home("cancel", "2")
        assert 0 == up.wait(timeout=60)
        assert up.stderr is not None
        assert "the time of this host is over\n" in up.stderr.read()

    check_handed_back(home)
    home("up", "--devices", "sim:1x1G")
    until(lambda: "running" in home.output_of("queue"))
    assert [None] == [each["ends_at"] for each in json.loads(home("gpus", "--json"))]


@pytest.mark.full
def test_sigterm_hands_the_jobs_of_a_host_with_an_end_back_at_once(home: Home) -> None:
    command = [str(BIN / "gpuqueue"), "up", "--foreground", "--until", "3h", "--devices", "sim:1x1G"]
    with subprocess.Popen(command, env=home.environ, stderr=subprocess.PIPE, text=True) as up:
        until(lambda: "ends at" in home.output_of("gpus"))
        home("submit", "--mem", "400M", "--cwd", str(home.state), "--", "sh", "-c", SAVES)
        until(lambda: began(home))

        up.send_signal(signal.SIGTERM)

        assert 0 == up.wait(timeout=60)

    check_handed_back(home)


@pytest.mark.full
def test_a_host_in_the_background_with_an_end_goes_down_by_itself(home: Home) -> None:
    home.environ["GPUQUEUE_PREEMPT_GRACE"] = "5s"
    home("up", "--until", "30s", "--devices", "sim:1x1G")
    home("submit", "--mem", "400M", "--cwd", str(home.state), "--", "sh", "-c", SAVES)
    assert "for another end run gpuqueue down first" in home("up", "--until", "2h", code=5)

    until(lambda: not home.ours())

    check_handed_back(home)


@pytest.mark.full
def test_down_can_preempt_the_running_jobs(home: Home) -> None:
    home("up", "--devices", "sim:1x1G")
    home("submit", "--mem", "400M", "--no-requeue", "--", "sh", "-c", "echo began; exec sleep 1000")
    until(lambda: began(home))

    assert "preempting job 1\n" in home("down", "--preempt-jobs")

    assert [] == home.ours()
    (row,) = json.loads(home("history", "--json"))  # it must not run twice
    assert ("failed", "preempted") == (row["job"]["state"], row["runs"][0]["ending"]["kind"])
    contradiction = home("down", "--preempt-jobs", "--leave-jobs", code=2)
    assert "contradict each other" in contradiction


def test_an_end_of_a_host_must_be_to_come(home: Home) -> None:
    assert "is over" in home("up", "--until", "2020-01-01", code=2)
    assert "--until 50s is too soon: at the end, preempt_grace (1:00) is left" in home("up", "--until", "50s", code=2)
    assert [] == home.ours()
