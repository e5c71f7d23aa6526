"""The whole of system mode on one machine, from ``gpuqueue install`` to ``gpuqueue uninstall``."""

from __future__ import annotations

import ast
import json
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from bounded import until
from private_machine import BIN, PrivateMachine
from unit_files import Unit
from unsigned import UNSIGNED

pytestmark = [pytest.mark.full, pytest.mark.timeout(400)]

#: What the admin adds to the settings of the site, and to those of the workers.
SITE = """
heartbeat = "0.5s"
poll = "0.5s"
host_lost_after = "30s"
"""
WORKERS = f"""{SITE}
devices = "cpu"
headroom = "0"
kill_grace = "2s"
"""
REFUSED, UNREACHABLE = 5, 4
#: Writes a line each 50 ms until it finds a file.
LOOP = "n=0; until [ -e go ]; do n=$((n+1)); echo line $n; sleep 0.05; done"
WORD = "xyzzy-of-alice"
#: Sends a submit over the socket that names another account, once in the body and once in the headers.
FORGE = """
import http.client, json, socket, sys
body = {"argv": ["/bin/sh", "-c", "id -un"], "cwd": "/", "env": {}, "mem_bytes": 2**26}
forged = {"X-Remote-User": "alice", "X-Forwarded-User": "alice", "Remote-User": "alice", "From": "alice"}
for more, headers in (({"account": {"name": "alice", "uid": int(sys.argv[1]), "host": "x"}}, {}), ({}, forged)):
    link = http.client.HTTPConnection("localhost")
    link.sock = socket.socket(socket.AF_UNIX)
    link.sock.connect("/run/gpuqueue/api.sock")
    link.request("POST", "/api/v1/jobs", json.dumps({**body, **more}), headers)
    answer = link.getresponse()
    found = json.loads(answer.read())
    print(answer.status, found.get("id"), (found.get("spec") or {}).get("account", {}).get("name"))
"""
#: Runs a function in jobs: in the directory of the submitter, and in a copy of a directory.
FUNCTIONS = """
import os, pwd
import gpuqueue
def who(number):
    return number, pwd.getpwuid(os.getuid()).pw_name, os.getcwd()
if __name__ == "__main__":
    for options in ({}, {"snapshot": True, "cwd": os.path.dirname(__file__)}):
        with gpuqueue.Executor(mem="64M", **options) as executor:
            print([*executor.map(who, [1, 2])])
"""
#: Prints all that the service says of a job.
ASK = """
import http.client, json, socket, sys
reads = [("GET", each) for each in ("", "/record", "/newest", "/ended", "/log", "/events", "/why")]
for method, below in [*reads, ("POST", "/retry-spec"), ("POST", "/retry")]:
    link = http.client.HTTPConnection("localhost")
    link.sock = socket.socket(socket.AF_UNIX)
    link.sock.connect("/run/gpuqueue/api.sock")
    link.request(method, f"/api/v1/jobs/{sys.argv[1]}{below}", "{}" if method == "POST" else None)
    answer = link.getresponse()
    print(answer.status, answer.read())
"""
#: Tries what a worker that was taken over would try, and prints what it reaches.
TAKEN_OVER = """
import http.client, json, pathlib, socket, sys
def tried(name, act):
    try:
        print("REACHED", name, act())
    except Exception as error:
        print("no", name, error)
def asked(method, path, body=None):
    link = http.client.HTTPConnection("localhost")
    link.sock = socket.socket(socket.AF_UNIX)
    link.sock.connect("/run/gpuqueue/api.sock")
    link.request(method, "/api/v1" + path, body)
    answer = link.getresponse()
    found = answer.read()
    assert answer.status < 400, (answer.status, found)
    return found
def store(*words):
    link = socket.socket(socket.AF_UNIX)
    link.connect("/var/lib/gpuqueue-store/store.sock")
    link.sendall(b"".join([b"*%d\\r\\n" % len(words), *(b"$%d\\r\\n%s\\r\\n" % (len(w), w.encode()) for w in words)]))
    found = link.recv(4096)
    assert not found.startswith(b"-"), found
    return found
for path in sys.argv[1:]:
    tried(path, pathlib.Path(path).read_bytes)
tried("state", lambda: list(pathlib.Path("/var/lib/gpuqueue").iterdir()))
for words in (("CONFIG", "GET", "dir"), ("CONFIG", "SET", "dir", "/tmp"), ("ACL", "SETUSER", "x"), ("SHUTDOWN",),
              ("FLUSHALL",), ("REPLICAOF", "127.0.0.1", "1"), ("MODULE", "LIST"), ("KEYS", "*"), ("GET", "other")):
    tried(words, lambda: store(*words))
tried("list", lambda: asked("GET", "/jobs"))
tried("token", lambda: asked("POST", "/tokens", "{}"))
tried("submit", lambda: asked("POST", "/jobs", json.dumps({"argv": ["id"], "cwd": "/", "env": {}, "mem_bytes": 2**26})))
tried("join", lambda: asked("POST", "/host/join", "{}"))
print("host", asked("GET", "/host/settings"))
"""
#: A job that serves HTTP and prints its port, and what a person reads there through a forwarded port; or why not.
SERVES = """
import http.server
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"of her job")
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print("port", server.server_address[1], flush=True)
server.serve_forever()
"""
FORWARDED = """
import sys, urllib.request
from gpuqueue.client import Client
from gpuqueue.errors import GpuQueueError
try:
    with Client() as client, client.jobs.forward(sys.argv[1], int(sys.argv[2]), report=print) as local:
        print(urllib.request.urlopen(f"http://127.0.0.1:{local.port}/", timeout=60).read().decode())
except (GpuQueueError, OSError) as error:
    print(type(error).__name__, error)
"""
#: Prints the addresses of TCP at which a process of the queue's accounts listens.
LISTENERS = """
import pathlib, pwd, sys
uids = {str(pwd.getpwnam(name).pw_uid) for name in ("gpuqueue", "gpuqueue-workers")}
for family in ("tcp", "tcp6"):
    for line in pathlib.Path("/proc/net/" + family).read_text().splitlines()[1:]:
        words = line.split()
        if words[3] == "0A" and words[7] in uids:
            print(words[1])
"""


#: A worker that was taken over asks the shim of a run for a command of its own.
FORGED_COMMAND = """
import sys
from pathlib import Path
from gpuqueue.client.second_command import JobCommand, LocalLine
from gpuqueue.errors import Refused
from gpuqueue.model.api import SecondCommand
from gpuqueue.system.command_socket import request_frames
line = LocalLine(Path(sys.argv[1]), "1")
line.send(request_frames(SecondCommand(argv=("touch", "/home/alice/forged")), None))
try:
    print(list(JobCommand(line).output()), "RAN")
except Refused as refusal:
    print(refusal)
"""


@dataclass
class Team:
    """A machine in system mode with two people, and nothing configured for them."""

    machine: PrivateMachine
    units: dict[str, Unit]
    uids: dict[str, int]
    #: The files and accounts of the machine before the installation.
    before: list[str]

    def submit(self, name: str, words: str, *options: str) -> int:
        """Submit a shell command as a person."""
        done = self.machine.person(name, "gpuqueue", "submit", "--mem", "64M", *options, "--", "/bin/sh", "-c", words)
        assert 0 == done.returncode, done.stderr
        return int(done.stdout)

    def log(self, name: str, job: int) -> str:
        """Return the log of a person's job."""
        return self.machine.person(name, "gpuqueue", "logs", str(job)).stdout

    def record(self, name: str, job: int) -> dict[str, Any]:
        """Return what a person sees of a job."""
        found = self.machine.person(name, "gpuqueue", "show", str(job), "--json")
        assert 0 == found.returncode, found.stderr
        return dict(json.loads(found.stdout))

    def ended(self, name: str, job: int) -> int:
        """Wait for the end of a person's job, and return the exit code of ``gpuqueue wait``."""
        return self.machine.person(name, "gpuqueue", "wait", str(job)).returncode

    def runs_of(self, words: str, account: str = "gpuqueue-workers") -> list[int]:
        """Return the pids of processes of the workers' or another account whose command line has *words*."""
        return [int(pid) for pid in self.machine.root("pgrep", "-u", account, "-f", words).stdout.split()]

    def of_workers(self, *words: str) -> str:
        """Run a program as the account of the workers, with their settings, and return what it prints."""
        become = ("setpriv", "--reuid=gpuqueue-workers", "--regid=gpuqueue-workers", "--init-groups", "--")
        return self.machine.root(*become, "env", "GPUQUEUE_CONFIG=/etc/gpuqueue/workers.toml", *words).stdout

    def run_dir(self, job: int) -> str:
        """Return the directory of the first run of a job."""
        return self.machine.root("sh", "-c", f"echo /var/lib/gpuqueue-runs/{job}/*").stdout.strip()


@pytest.fixture
def team(machine_of_its_own: PrivateMachine, tmp_path: Path) -> Team:
    """Return a machine on which everything was installed and started."""
    return _installed(machine_of_its_own, tmp_path)


@pytest.fixture
def small_site(machine_of_its_own: PrivateMachine, tmp_path: Path) -> Iterator[Team]:
    """Return the same with a small disk for the state of all accounts and the runs."""
    done = machine_of_its_own.root("mount", "-t", "tmpfs", "-o", "mode=755,size=400m", "none", "/var/lib")
    assert 0 == done.returncode, done.stderr
    team = _installed(machine_of_its_own, tmp_path, 'log_limit = "none"\n')
    yield team
    for unit in reversed(team.units.values()):
        unit.end(signal.SIGKILL)


def _installed(machine: PrivateMachine, tmp_path: Path, more: str = "") -> Team:
    """Install and start everything, with *more* settings of the workers."""
    before = _traces(machine)
    done = machine.gpuqueue("install", "--yes")
    if "can be changed by others than root" in done.stderr:
        pytest.skip(done.stderr)
    assert 0 == done.returncode, done.stderr
    for text, name in ((SITE, "config"), (WORKERS + more, "workers")):
        machine.root("sh", "-c", f"printf '%s' '{text}' >> /etc/gpuqueue/{name}.toml")
    uids = {}
    for name, other in (("alice", "vision"), ("bob", "speech")):
        machine.root("groupadd", other)
        uids[name] = machine.add_person(name, "gpuqueue-users", other)
    names = ("gpuqueue-launcher", "gpuqueue-store", "gpuqueue-serve", "gpuqueue")
    units = {each: Unit(machine, each, tmp_path / each) for each in names}
    for unit in units.values():
        unit.start()
    until(lambda: machine.person("alice", "gpuqueue", "gpus").returncode == 0, what="the service", timeout_s=100)
    until(lambda: "cpu" in machine.person("alice", "gpuqueue", "gpus").stdout, what="a device", timeout_s=100)
    return Team(machine, units, uids, before)


def _traces(machine: PrivateMachine) -> list[str]:
    """Return the files, accounts and groups of the machine, without those of people."""
    accounts = machine.root("cat", "/etc/passwd", "/etc/group").stdout.splitlines()
    of_people = ("alice:", "bob:", "vision:", "speech:")
    return machine.listing("/etc", "/run", "/var/lib") + [each for each in accounts if not each.startswith(of_people)]


def test_a_team_works_on_one_machine(team: Team, tmp_path: Path) -> None:
    """Alice and bob work as themselves and never meet; worker and service die in the middle; nothing is left."""
    machine = team.machine
    hers = team.submit(
        "alice", f": {WORD}; id -un; id -G; umask; echo mine > here; {LOOP}; exit 5", "--env", f"A={WORD}"
    )
    until(lambda: "line 3\n" in team.log("alice", hers), what="her output", timeout_s=60)
    followed = tmp_path / "followed"
    with followed.open("wb") as out:
        follower = subprocess.Popen(machine.command_of("alice", "gpuqueue", "logs", "-f", str(hers)), stdout=out)
    until(lambda: b"line 3\n" in followed.read_bytes(), what="the follower", timeout_s=60)

    assert ["ok", "ok"] == [_launcher_seen_by(team, who) for who in ("root", "gpuqueue-workers")]
    _the_service_is_examined(team)
    _only_signed_jobs_start(team)
    _a_worker_that_was_taken_over_reaches_little(team, hers)
    _her_second_command_is_hers(team, hers)
    _her_code_travels(team)
    _her_functions_run(team)
    _her_port_is_reached_by_her_alone(team)
    _bob_reaches_nothing(team, hers)
    _bob_forges_no_name(team)
    _the_worker_dies(team)
    _the_service_restarts(team, followed)
    _the_store_dies(team)
    busy = machine.gpuqueue("uninstall", "--yes")
    assert (REFUSED, True) == (busy.returncode, f"job {hers} still runs" in busy.stderr), busy

    machine.person("alice", "touch", "go")
    assert 5 == team.ended("alice", hers)
    assert 0 == follower.wait(timeout=60)
    _she_was_herself(team, hers, followed.read_text())
    _uninstalled(team)


def _she_was_herself(team: Team, job: int, followed: str) -> None:
    """Check the account, the groups and the one run of alice's job, and that a follower saw each line once."""
    machine = team.machine
    user, groups, mask, *lines = team.log("alice", job).splitlines()
    expected = set(machine.person("alice", "id", "-G").stdout.split())
    assert ("alice", expected, "0022") == (user, set(groups.split()), mask)
    assert 3 == len(expected)  # her own, gpuqueue-users and vision
    assert [f"line {number + 1}" for number in range(len(lines))] == lines
    assert team.log("alice", job) == followed
    assert "alice 700\n" == machine.root("stat", "-c", "%U %a", "/home/alice").stdout
    assert "alice\n" == machine.root("stat", "-c", "%U", "/home/alice/here").stdout
    assert 1 == len(team.record("alice", job)["runs"])


def _launcher_seen_by(team: Team, account: str) -> str:
    """Return the grade that ``gpuqueue doctor`` gives the launcher."""
    become = ["setpriv", f"--reuid={account}", f"--regid={account}", "--init-groups", "--"]
    config = "GPUQUEUE_CONFIG=/etc/gpuqueue/workers.toml"
    done = team.machine.root(*become, "env", config, "gpuqueue", "doctor", "--json")
    checks = ["launcher", "installation", "tickets"]
    found = [each for each in json.loads(done.stdout)["findings"] if each["check"] in checks]
    assert checks == [each["check"] for each in found], done.stdout
    assert "only root and gpuqueue, the account of the service, can read" in found[-1]["seen"]
    return str(next((each["grade"] for each in found if each["grade"] != "ok"), "ok"))


def _the_service_is_examined(team: Team) -> None:
    """Check that `doctor` of the service takes the workers for its own, and not for those of another queue."""
    become = ("setpriv", "--reuid=gpuqueue", "--regid=gpuqueue", "--init-groups", "--")
    config = "GPUQUEUE_CONFIG=/etc/gpuqueue/config.toml"
    done = team.machine.root(*become, "env", config, "gpuqueue", "doctor", "--json")
    found = json.loads(done.stdout)["findings"]

    assert [] == [each for each in found if "another queue" in each["seen"]]
    assert ["ok"] == [each["grade"] for each in found if each["check"] == "workers account"]
    assert ["ok"] == [each["grade"] for each in found if each["check"] == "workers"]


def _only_signed_jobs_start(team: Team) -> None:
    """Check that a job is held that reaches the store without the service, and that alice retries her own."""
    machine = team.machine
    job = team.of_workers(str(BIN / "python"), "-c", UNSIGNED, str(team.uids["alice"])).strip()
    until(lambda: team.record("alice", int(job))["job"]["state"] == "held", what="the hold", timeout_s=60)
    assert f"job {job} was not signed by the service" in machine.person("alice", "gpuqueue", "show", job).stdout
    assert 0 == machine.person("alice", "gpuqueue", "cancel", job).returncode

    again = machine.person("alice", "gpuqueue", "retry", job)
    assert (REFUSED, True) == (again.returncode, "before this service signed its jobs" in again.stderr), again
    first = team.submit("alice", "exit 7", "--env", "HF_TOKEN=s")
    assert 7 == team.ended("alice", first)
    second = machine.person("alice", "gpuqueue", "retry", str(first)).stdout.strip()
    assert 7 == team.ended("alice", int(second))


def _a_worker_that_was_taken_over_reaches_little(team: Team, hers: int) -> None:
    """Check that the account of the workers reads no key, password or history, and is no person at the service."""
    (service, *_), (recorder, *_) = (team.runs_of(each, "gpuqueue") for each in ("gpuqueue serve", "worker record"))
    child = team.machine.root("pgrep", "-u", "alice", "-f", "until").stdout.split()[0]
    closed = (
        "/etc/gpuqueue/ticket-key",
        "/etc/gpuqueue/config.toml",
        "/var/lib/gpuqueue/history.db",
        f"/proc/{service}/environ",
        f"/proc/{recorder}/environ",
        f"/proc/{child}/environ",
        "/home/alice/here",
    )
    found = team.of_workers(str(BIN / "python"), "-c", TAKEN_OVER, *closed).splitlines()

    assert len(closed) + 15 == len(found), found
    assert all(line.startswith("no ") for line in found[:-1]), found
    assert found[-1].startswith("host ")
    assert "running" == team.record("alice", hers)["job"]["state"]


def _her_second_command_is_hers(team: Team, hers: int) -> None:
    """Check that alice runs a command in her job as herself, and that bob and the workers run none there."""
    words = ("exec", str(hers), "--", "sh", "-c", 'id -un; pwd; echo "$A"; exit 6')
    done = team.machine.person("alice", "gpuqueue", *words)
    assert (6, ["alice", "/home/alice", WORD]) == (done.returncode, done.stdout.splitlines()), done.stderr
    done = team.machine.person("bob", "gpuqueue", *words)
    assert (REFUSED, "gpuqueue: only alice may run a command in this job\n") == (done.returncode, done.stderr)
    forged = team.of_workers(str(BIN / "python"), "-c", FORGED_COMMAND, team.run_dir(hers))
    assert "has not signed this command" in forged, forged


def _her_code_travels(team: Team) -> None:
    """Check that a job of alice's runs her code as it was at submit, in a copy that is hers and nobody else enters."""
    machine = team.machine
    machine.person(
        "alice", "sh", "-c", "mkdir -p project/src; echo first > project/data; echo cat ../data > project/src/x"
    )
    asked = ("--mem", "64M", "--cwd", "project/src", "--snapshot", "project", "--hold")
    done = machine.person("alice", "gpuqueue", "submit", *asked, "--", "sh", "-c", "sh x; id -un; pwd; touch made")
    assert 0 == done.returncode, done.stderr
    job = int(done.stdout)
    machine.person("alice", "sh", "-c", "echo second > project/data; gpuqueue release " + str(job))

    assert 0 == team.ended("alice", job)
    where = f"{team.run_dir(job)}/code/tree/src"
    assert ["first", "alice", "/run/gpuqueue-launcher/code/tree/src"] == team.log("alice", job).splitlines()
    assert ["alice 700", "alice"] == [
        machine.root("stat", "-c", form, path).stdout.strip()
        for form, path in (("%U %a", f"{team.run_dir(job)}/code"), ("%U", f"{where}/made"))
    ]
    refused = machine.person("bob", "ls", where)
    assert (True, "Permission denied" in refused.stderr) == (refused.returncode != 0, True)


def _her_functions_run(team: Team) -> None:
    """Calls of an executor run as alice in her closed home, and in a copy of her code; she gets the results."""
    program = "/home/alice/functions/who.py"
    team.machine.root("install", "-d", "-o", "alice", "/home/alice/functions")
    team.machine.write(program, FUNCTIONS, owner="alice")
    done = team.machine.person("alice", f"{BIN}/python", program)

    assert (0, "") == (done.returncode, done.stderr)
    first, second = map(ast.literal_eval, done.stdout.splitlines())
    assert [(number, "alice", "/home/alice") for number in (1, 2)] == first
    assert [(1, "alice"), (2, "alice")] == [each[:2] for each in second]
    assert all(each[2].endswith("/code/tree") for each in second)


def _her_port_is_reached_by_her_alone(team: Team) -> None:
    """She reaches the server in her job; bob does not, and nobody reaches a server of hers that is in no job."""
    machine, python = team.machine, str(BIN / "python")
    machine.write("/home/alice/serves.py", SERVES, owner="alice")
    job = team.submit("alice", f"exec {python} serves.py")
    until(lambda: "port " in team.log("alice", job), what="her server", timeout_s=60)
    port = team.log("alice", job).split()[1]
    said = {who: machine.person(who, python, "-c", FORWARDED, str(job), port).stdout for who in ("alice", "bob")}
    assert "of her job\n" == said["alice"], said
    assert "Refused only alice may reach the ports of this job\n" == said["bob"], said

    serves = machine.command_of("alice", python, "serves.py")
    with subprocess.Popen(serves, stdout=subprocess.PIPE, text=True) as outside:
        assert outside.stdout is not None
        port = outside.stdout.readline().split()[1]
        found = machine.person("alice", python, "-c", FORWARDED, str(job), port).stdout
        machine.root("pkill", "-u", "alice", "-f", "serves.py")
    assert found.startswith(f"no process of the job listens on port {port} of 127.0.0.1\n"), found
    assert "of her job" not in found
    team.ended("alice", job)


def _bob_reaches_nothing(team: Team, hers: int) -> None:
    """Check that neither bob's commands nor his jobs cancel, read or reach anything of alice or of the service."""
    machine = team.machine
    for words in (("cancel", str(hers)), ("logs", str(hers)), ("edit", str(hers), "--priority", "high")):
        for more in ((), ("env", "USER=alice", "LOGNAME=alice", "HOME=/home/alice")):
            done = machine.person("bob", *more, "gpuqueue", *words)
            assert REFUSED == done.returncode, done
            assert "line" not in done.stdout
    for words in (("show", str(hers)), ("show", str(hers), "--json"), ("queue", "--json"), ("history", "--json")):
        done = machine.person("bob", "gpuqueue", *words)
        assert 0 == done.returncode, done.stderr
        assert WORD not in done.stdout + done.stderr
        assert "mine > here" not in done.stdout
    said = machine.person("bob", str(BIN / "python"), "-c", ASK, str(hers)).stdout
    assert ("200 b", False, False) == (said[:5], WORD in said, "line 3" in said), said
    said = machine.person("alice", str(BIN / "python"), "-c", ASK, str(hers)).stdout
    assert ("200 b", True, True) == (said[:5], WORD in said, "line 3" in said), said
    past = machine.person("bob", "env", "GPUQUEUE_STATE_DIR=/var/lib/gpuqueue", "gpuqueue", "cancel", str(hers))
    assert past.returncode in {1, UNREACHABLE, REFUSED}, past

    run = team.run_dir(hers)
    (worker, *_), (host, *_) = team.runs_of("gpuqueue-worker run"), team.runs_of("gpuqueue up")
    child = machine.root("pgrep", "-u", "alice", "-f", "until").stdout.split()[0]
    connect = f"{BIN}/python -c 'import socket; socket.socket(socket.AF_UNIX, socket.%s).connect(\"%s\")'"
    tries = [
        "cat /home/alice/here",
        f"ls {run}",
        *(f"cat {run}/{each}" for each in ("log", "spec", "claim")),
        f"ln -s /etc/passwd {run}/exit",
        *(f"cat /proc/{pid}/environ" for pid in (child, worker, host)),
        *(f"kill -9 {pid}" for pid in (child, worker, host)),
        *(f"ls /var/lib/{each}" for each in ("gpuqueue", "gpuqueue-store", "gpuqueue-workers")),
        "cat /var/lib/gpuqueue/history.db",
        *(f"cat /etc/gpuqueue/{each}" for each in ("config.toml", "workers.toml", "ticket-key")),
        connect % ("SOCK_STREAM", "/var/lib/gpuqueue-store/store.sock"),
        connect % ("SOCK_SEQPACKET", "/run/gpuqueue-launcher/launcher.sock"),
        "rm /run/gpuqueue/api.sock",
        "rm /run/gpuqueue-launcher/launcher.sock",
    ]
    script = "\n".join(f"({each}) >got 2>&1 && echo 'REACHED {number}'; cat got" for number, each in enumerate(tries))
    mine = "\n".join(script.splitlines()[:2]).replace(f"ls {run}", f"cat {run}/log")
    assert 2 == machine.person("alice", "/bin/sh", "-c", mine).stdout.count("REACHED")  # the owner does
    for found in (machine.person("bob", "/bin/sh", "-c", script).stdout, _of_a_job(team, "bob", script)):
        assert "REACHED" not in found, found
        assert WORD not in found
        assert len(tries) <= len(found.splitlines())  # each says why not
    assert "" == machine.root(str(BIN / "python"), "-c", LISTENERS).stdout  # the store has no port
    assert "running" == team.record("alice", hers)["job"]["state"]


def _of_a_job(team: Team, name: str, words: str) -> str:
    """Return the output of a job with these words."""
    job = team.submit(name, words)
    team.ended(name, job)
    return team.log(name, job)


def _bob_forges_no_name(team: Team) -> None:
    """Check that a submit which names alice is refused, or is bob's."""
    assert (
        _of_a_job(team, "bob", "id -un; id -G; pwd")
        == team.machine.person("bob", "/bin/sh", "-c", "id -un; id -G; pwd").stdout
    )
    done = team.machine.person("bob", str(BIN / "python"), "-c", FORGE, str(team.uids["alice"]))
    in_body, in_headers = done.stdout.splitlines()

    assert "400 None None" == in_body, done
    status, job, owner = in_headers.split()
    assert ("201", "bob") == (status, owner)
    assert 0 == team.ended("bob", int(job))
    assert "bob\n" == team.log("bob", int(job))


def _the_worker_dies(team: Team) -> None:
    """Kill the workers with SIGKILL, and wait for the next ones."""
    before = set(team.runs_of("gpuqueue-worker run"))
    team.machine.root("kill", "-9", *map(str, before))
    until(lambda: set(team.runs_of("gpuqueue-worker run")) - before, what="the next worker", timeout_s=60)


def _the_service_restarts(team: Team, followed: Path) -> None:
    """Restart the service, once orderly and once after SIGKILL, while a follower reads."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        team.units["gpuqueue-serve"].end(number)
        team.units["gpuqueue-serve"].start()
        seen = len(followed.read_bytes())
        until(lambda seen=seen: len(followed.read_bytes()) > seen + 100, what="more output", timeout_s=60)  # type: ignore[misc]


def _the_store_dies(team: Team) -> None:
    """Kill the store with SIGKILL. It is back without the help of a unit, with its jobs, and leaves no zombie."""
    machine = team.machine
    waiting = team.submit("alice", "true", "--hold")
    (before,) = _stores(team)
    machine.root("kill", "-9", str(before))
    until(lambda: set(_stores(team)) - {before}, what="the next store", timeout_s=60)
    until(lambda: machine.person("alice", "gpuqueue", "queue").returncode == 0, what="the queue", timeout_s=60)
    until(lambda: "" == machine.root("ps", "-o", "stat=", "-p", str(before)).stdout, what="no zombie", timeout_s=60)
    assert "held" == team.record("alice", waiting)["job"]["state"]
    assert f"the store (pid {before}) was killed by SIGKILL" in team.units["gpuqueue-store"].log.read_text()
    machine.person("alice", "gpuqueue", "release", str(waiting))
    assert 0 == team.ended("alice", waiting)


def _stores(team: Team) -> list[int]:
    """Return the pids of the store's servers."""
    return team.runs_of("unixsocket:/var/lib/gpuqueue-store", "gpuqueue")


@pytest.mark.timeout(800)
def test_a_full_disk_stops_a_site_only_while_it_is_full(small_site: Team) -> None:
    """The log of a job that prints too much is cut. A disk full of other files ends the store, which comes back.

    The jobs that were accepted run once, and one that runs goes on. A store that waits for room for too long ends its
    unit with exit code 4, for systemd.
    """
    team, machine = small_site, small_site.machine
    prints = "while [ ! -e go ]; do head -c 1000000 /dev/zero | tr '\\0' x; echo; sleep 0.05; done; exit 5"
    hers = team.submit("alice", prints)
    until(
        lambda: f"the log of job {hers} of alice" in machine.text("/var/lib/gpuqueue-workers/log/host.log"),
        what="the cut",
        timeout_s=200,
    )
    accepted = [team.submit("bob", "true") for _ in range(3)]
    silent = team.submit("bob", "until [ -e go ]; do sleep 0.1; done; exit 7")
    until(lambda: team.record("bob", silent)["job"]["state"] == "running", what="his job runs", timeout_s=60)
    machine.person("alice", "touch", "go")
    assert 5 == team.ended("alice", hers)

    (before,) = _stores(team)
    _fill(team, "first")
    until(lambda: (_refused(team, accepted), before not in _stores(team))[1], what="the store ends", timeout_s=100)
    until(lambda: not _refused(team, accepted), what="it is back on its reserve", timeout_s=100)
    _fill(team, "second")
    until(lambda: _refused(team, accepted) and not _stores(team), what="no room", timeout_s=100)
    assert 4 == team.units["gpuqueue-store"].ended(timeout_s=150)

    machine.root("sh", "-c", "rm /var/lib/first /var/lib/second")
    team.units["gpuqueue-store"].start()  # as systemd does
    until(lambda: not _refused(team, accepted), what="the queue", timeout_s=100)
    machine.person("bob", "touch", "go")
    assert 7 == team.ended("bob", silent)
    assert {0} == {team.ended("bob", job) for job in accepted}
    assert {1} == {len(team.record("bob", job)["runs"]) for job in (*accepted, silent)}


def _fill(team: Team, name: str) -> None:
    """Fill the disk of the site."""
    team.machine.root("sh", "-c", f"cat /dev/zero > /var/lib/{name}")


def _refused(team: Team, accepted: list[int]) -> bool:
    """Submit a job; return whether it was refused, and note it in *accepted* otherwise."""
    words = ("gpuqueue", "submit", "--mem", "64M", "--env", f"FILL={'x' * 20_000}", "--", "true")
    done = team.machine.person("bob", *words)
    if done.returncode == 0:
        accepted.append(int(done.stdout))
    return done.returncode != 0


def _uninstalled(team: Team) -> None:
    """Check that uninstall leaves only the state, and with --purge nothing."""
    machine = team.machine
    by_hand = machine.gpuqueue("uninstall", "--yes")
    assert REFUSED == by_hand.returncode, by_hand
    assert "the launcher and the service still run: stop what you started by hand" in by_hand.stderr
    for name in ("gpuqueue-launcher", "gpuqueue-serve"):
        team.units[name].end(signal.SIGTERM)
    assert "problem" == _launcher_seen_by(team, "gpuqueue-workers")
    done = machine.gpuqueue("uninstall", "--yes")
    assert 0 == done.returncode, done.stderr
    for name in ("gpuqueue", "gpuqueue-store"):
        team.units[name].ended()
    until(lambda: not team.runs_of(".") + team.runs_of(".", "gpuqueue"), what="the end of all processes of both")
    assert "" == machine.root("find", "/run", "/etc/systemd", "-name", "gpuqueue*").stdout
    kept = "/var/lib/gpuqueue /var/lib/gpuqueue-runs /etc/gpuqueue/config.toml /etc/gpuqueue/workers.toml"
    assert 0 == machine.root("ls", *kept.split(), "/var/lib/gpuqueue/history.db").returncode

    purged = machine.gpuqueue("uninstall", "--yes", "--purge")
    assert 0 == purged.returncode, purged.stderr
    assert team.before == _traces(machine)
