"""A team works from a laptop on GPU hosts that have joined the service of their site, without any shared disk."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from bounded import until
from lab import HOSTS, Lab
from own_store import running_store
from private_machine import BIN, skip_without_root
from private_postgres import Server
from site_lab import ETC, UIDS, SiteLab
from unsigned import UNSIGNED

#: Makes a repository with a submodule, with changed, untracked and ignored files, in the directory proj.
TREE = r"""
set -e
git config --global user.name alice; git config --global user.email alice@example.org
git config --global protocol.file.allow always
git init -q lib && cd lib && echo committed > part.txt && git add . && git commit -qm one && cd ..
git init -q proj && cd proj
echo committed > a.txt && echo ignored.txt > .gitignore && mkdir src && echo committed > src/c.txt
git submodule --quiet add ../lib lib
cat > run.sh <<'END'
id -un
find . -type f ! -name .gitmodules | LC_ALL=C sort | while read -r each; do echo "$each $(head -1 "$each")"; done
mkdir results && head -c 3000000 /dev/urandom > results/model.bin && echo scratch > scratch
sha256sum results/model.bin
n=0; until [ -e ~/go ]; do n=$((n + 1)); echo "line $n"; sleep 0.05; done
exit 3
END
git add . && git commit -qm one
echo changed > a.txt && echo new > b.txt && echo no > ignored.txt && echo changed > lib/part.txt && rm src/c.txt
"""
#: What the job sees of it.
EXPECTED = ["./.gitignore ignored.txt", "./a.txt changed", "./b.txt new", "./lib/part.txt changed", "./run.sh id -un"]

pytestmark = [pytest.mark.full, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def site(postgres_server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SiteLab]:
    """Return a site with its service and its people, and two GPU hosts that have joined it. The tests share it."""
    skip_without_root()
    place = tmp_path_factory.mktemp("lab")
    with ExitStack() as stack:
        try:
            lab = Lab(place)
        except (OSError, subprocess.CalledProcessError) as error:
            pytest.skip(f"no network namespaces here: {error}")
        stack.callback(lab.close)
        made = SiteLab(lab, place, stack.enter_context(postgres_server.database()))
        stack.callback(made.close)
        made.set_up()
        for host in HOSTS:
            made.join(host)
        until(lambda: all(each in made.cli("alice", "gpus") for each in HOSTS), what="devices", timeout_s=100)
        yield made


def test_a_site_may_give_its_hosts_a_store_of_its_own(postgres_server: Server, tmp_path: Path) -> None:
    """They connect to it over TLS, with a password that the service gives them."""
    skip_without_root()
    with ExitStack() as stack:
        lab = Lab(tmp_path)
        stack.callback(lab.close)
        database = stack.enter_context(postgres_server.database())
        site = SiteLab(lab, tmp_path, database, store_url=stack.enter_context(running_store()).url)
        stack.callback(site.close)
        site.set_up()
        site.join("h1")
        until(lambda: "h1" in site.cli("alice", "gpus"), what="devices", timeout_s=100)

        job = int(site.cli("alice", "submit", "--mem", "64M", "--no-snapshot", "-C", "/tmp", "--", "id", "-un"))
        site.cli("alice", "wait", str(job))

        assert ["h1"] == [run["host"] for run in site.show("alice", job)["runs"]]
        assert "rediss://" in site.machines["h1"].text(f"{ETC}/config.toml")


class Followed:
    """The file into which a follower writes."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def grow(self) -> None:
        """Wait until more lines have come."""
        seen = self._path.read_bytes().count(b"line ")
        until(lambda: self._path.read_bytes().count(b"line ") > seen + 5, what="more output", timeout_s=60)


def test_hosts_that_have_joined_run_jobs_and_have_no_history(site: SiteLab) -> None:
    """Jobs of a laptop run on both, as their submitter. No host has a history, or the password of one."""
    words = ("--no-snapshot", "-C", "/tmp", "--", "sh", "-c", 'test "$(id -un)" = alice')
    jobs = [int(site.cli("alice", "submit", "--mem", "64M", "--device", f"{each}:0", *words)) for each in HOSTS]
    site.cli("alice", "wait", *map(str, jobs))
    assert [[host] for host in HOSTS] == [[run["host"] for run in site.show("alice", job)["runs"]] for job in jobs]

    for host in HOSTS:
        machine = site.machines[host]
        assert "postgresql" not in machine.text(f"{ETC}/config.toml")
        assert "" == machine.root("find", "/var/lib/gpuqueue", "-name", "history.db*").stdout
        found = [each for each in site.findings(host) if each["section"] in {"store", "service", "history"}]
        assert not [each for each in found if each["grade"] in {"problem", "warning"}], found
        about_service = {each["check"] for each in found if each["section"] == "service"}
        assert {"answers", "token", "clock", "common"} == about_service
        (key,) = (each for each in site.findings(host) if each["check"] == "tickets")
        assert ("ok", f"only root can read {ETC}/ticket-key") == (key["grade"], key["seen"])
        again = machine.gpuqueue("join", site.url, "--token-file", "/root/token", "--ca", "/etc/site-ca.pem", "--yes")
        assert "nothing to do" == again.stdout.splitlines()[-1], again
    joins = site.done(site.machines["server"].gpuqueue("audit", "--action", "join"))
    assert all(host in joins for host in HOSTS)


def test_a_worker_that_was_taken_over_starts_no_job_of_its_own(site: SiteLab) -> None:
    """It writes a job of alice's into the store: both hosts refuse it, and it is held. It cannot read the key."""
    become = ("setpriv", "--reuid=gpuqueue", "--regid=gpuqueue", "--init-groups", "--")
    config = ("env", f"GPUQUEUE_CONFIG={ETC}/config.toml", str(BIN / "python"), "-c", UNSIGNED, str(UIDS["alice"]))
    job = int(site.done(site.machines["h1"].root(*become, *config)))

    until(lambda: site.show("alice", job)["job"]["state"] == "held", what="the hold", timeout_s=60)
    assert f"job {job} was not signed by the service" in site.cli("alice", "show", str(job))
    for host in HOSTS:
        assert "" == site.machines[host].root("find", "/home/alice", "-name", "evil").stdout
    read = site.machines["h1"].root(*become, "cat", f"{ETC}/ticket-key")
    assert (True, "") == ("Permission denied" in read.stderr, read.stdout)
    site.cli("alice", "cancel", str(job))


def test_forty_jobs_run_where_their_environment_is(site: SiteLab) -> None:
    """Both hosts name the environment, and on one of them its program is missing: all jobs succeed on the other."""
    for host in HOSTS:
        site.add_settings(host, '[environments]\ntorch = "/opt/torch/bin/python"\n')
    make = f"mkdir -p /opt/torch/bin && ln -s {Path(sys.executable).resolve()} /opt/torch/bin/python"
    site.done(site.machines["h1"].root("sh", "-c", make))
    for host in HOSTS:
        site.restart(host, "gpuqueue")
    until(lambda: "torch" in site.cli("alice", "gpus"), what="the environment", timeout_s=60)
    site.as_person("laptop", "alice", "mkdir -p small && echo 'print(1)' > small/train.py")

    words = ("submit", "--mem", "64M", "--environment", "torch", "--array", "0-39", "train.py")
    array = int(site.cli("alice", *words, cwd="small"))
    site.cli("alice", "wait", str(array))

    found = json.loads(site.cli("alice", "history", "--json", "--limit", "100"))
    members = [each for each in found if (each["job"]["member"] or {}).get("array_id") == array and each["runs"]]
    assert 40 == len(members)
    assert {("succeeded", "h1")} == {(each["job"]["state"], each["runs"][-1]["host"]) for each in members}
    tried = site.machines["h2"].root("sh", "-c", "cat /var/lib/gpuqueue/log/*.log").stdout
    assert "does not start: the environment torch is missing: there is no /opt/torch/bin/python" in tried


def test_the_work_of_a_laptop_comes_back_whatever_dies(site: SiteLab, tmp_path: Path) -> None:
    """A dirty tree runs as it is; its log is followed while worker, relay and service die; the host goes, all stays.

    This test comes last: it ends a host.
    """
    site.as_person("laptop", "alice", TREE)
    job = int(site.cli("alice", "submit", "--mem", "64M", "--device", "h1:0", "--keep", "results/**",
                       "--", "sh", "run.sh", cwd="proj"))  # fmt: skip
    followed = tmp_path / "followed"
    with followed.open("wb") as out, (tmp_path / "warnings").open("wb") as warnings:
        follower = subprocess.Popen(site.command("alice", "logs", "-f", str(job)), stdout=out, stderr=warnings)
    lines = Followed(followed)
    lines.grow()

    assert len(site.kill_on("h1", "gpuqueue-worker run")) == 1
    lines.grow()
    assert site.kill_on("h1", "gpuqueue-worker relay")
    lines.grow()
    assert site.kill_on("h1", "gpuqueue-worker tunnel")
    lines.grow()
    site.die("server", "gpuqueue-serve")
    lines.grow()
    for words in (("logs", str(job)), ("fetch", str(job)), ("cancel", str(job))):
        refused = site.cli("bob", *words, code=5)
        assert "line 1" not in refused
        assert "results" not in refused

    site.as_person("h1", "alice", "touch go")
    site.cli("alice", "wait", str(job), code=3)
    assert 0 == follower.wait(timeout=60)
    until(lambda: site.delivered(job) >= {"complete", "results.tar"}, what="the delivery", timeout_s=60)
    site.power_off("h1")

    log = site.cli("alice", "logs", str(job))
    assert followed.read_text() == log
    head, _, rest = log.partition("line 1\n")
    assert ["alice", *EXPECTED] == head.splitlines()[:-1]
    numbers = [int(line.split()[1]) for line in f"line 1\n{rest}".splitlines()]
    assert [*range(1, len(numbers) + 1)] == numbers
    site.cli("alice", "fetch", str(job), "--to", "got")
    digest = site.as_person("laptop", "alice", "cd got && find . -type f && sha256sum results/model.bin")
    assert ["./results/model.bin", head.splitlines()[-1]] == digest.splitlines()
    for words in (("logs", str(job)), ("fetch", str(job))):
        assert "results" not in site.cli("bob", *words, code=5)
    assert 1 == len(site.show("alice", job)["runs"])
