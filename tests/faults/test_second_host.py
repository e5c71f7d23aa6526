"""The how-to for a second host, tried: TLS store, PostgreSQL, two GPU hosts and a client in network namespaces."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from bounded import until
from lab import HOSTS, PASSWORD, Lab, certificate, documented_rule
from own_store import OwnStore
from private_postgres import Server

from gpuqueue.queue.connect import connect

pytestmark = pytest.mark.full

#: Notes its start and its end in a file, and ends once its gate exists.
JOB = """note() { echo "$GPUQUEUE_JOB_ID $GPUQUEUE_ATTEMPT $1"; }
note start >>"$1"; while [ ! -e "$2/$3" ]; do sleep 0.1; done; note end >>"$1"
"""


@pytest.fixture
def lab(own_store: OwnStore, postgres_server: Server, tmp_path: Path) -> Iterator[Lab]:
    """Return the namespaces, with a TLS store and a database that all of them reach and nothing else."""
    try:
        made = Lab(tmp_path)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no network namespaces here: {error}")
    try:
        with postgres_server.database() as database:
            parts = sa.make_url(database)
            cert, key = certificate(tmp_path, made.address)
            made.relay(6379, own_store.url.removeprefix("unix://"), cert, key)
            made.relay(5432, f"{parts.query['host']}/.s.PGSQL.5432")
            store = connect(own_store.url)
            store.execute_command(*documented_rule())
            settings = tmp_path / "config.toml"
            settings.write_text(
                f'redis_url = "rediss://gpuqueue:{PASSWORD}@{made.address}:6379/0?ssl_ca_certs={cert}"\n'
                f'database_url = "postgresql://gpuqueue@{made.address}:5432/{parts.database}"\n'
            )
            made.environ = {
                "GPUQUEUE_CONFIG": str(settings),
                "GPUQUEUE_HEADROOM": "0",
                "GPUQUEUE_HEARTBEAT": "1s",
                "GPUQUEUE_POLL": "0.5s",
            }
            yield made
            made.close()  # before its database is dropped
    finally:
        made.close()


def submit(lab: Lab, *words: str) -> int:
    """Submit a job or an array from the client's namespace and return its id."""
    return int(lab.cli("submit", "--mem", "500M", *words))


def runs(lab: Lab) -> dict[int, list[str]]:
    """Return the hosts of the runs of each job that ran, from the history; all of them succeeded."""
    found = json.loads(lab.cli("history", "--json", "--limit", "100"))
    assert {"succeeded"} == {row["job"]["state"] for row in found}
    return {row["job"]["id"]: [run["host"] for run in row["runs"]] for row in found if row["runs"]}


@pytest.mark.timeout(400)  # alone it takes less than a minute, most of it for starting commands
def test_two_hosts_share_the_jobs_and_one_is_cut_off_for_a_while(lab: Lab, tmp_path: Path) -> None:
    """Jobs run on both hosts. While one is cut off, its run goes on and ends, and the other host takes the new jobs.

    Nothing is lost, nothing runs twice, and the history has all of it. A job whose directory is missing on one host
    runs on the other, and ``why`` names the first.
    """
    disk, effects, gates = tmp_path / "disk", tmp_path / "effects", tmp_path / "gates"
    for directory in (disk, gates, disk / "proj"):
        directory.mkdir()
    lab.up("h1")
    lab.up("h2", f"mount -t tmpfs none {disk}")  # nothing of this disk is there
    run = ("sh", "-c", JOB, "job", str(effects), str(gates))

    some = submit(lab, "--array", "0-11", "--", *run, "")
    lab.cli("wait", str(some))
    long = [submit(lab, "--device", f"{host}:0", "--", *run, host) for host in HOSTS]
    until(lambda: all(f"{job} 1 start" in effects.read_text() for job in long), timeout_s=60, what="the long jobs")

    lab.cut("h1")
    (gates / "h1").touch()
    during = submit(lab, "--array", "0-5", "--", *run, "")
    lab.cli("wait", str(during))
    assert f"{long[0]} 1 end" in effects.read_text()  # and nobody knows
    assert "running" == json.loads(lab.cli("show", "--json", str(long[0])))["job"]["state"]
    lab.heal("h1")
    (gates / "h2").touch()
    lab.cli("wait", *map(str, long))

    lab.cli("drain", "h1:0")
    there = submit(lab, "-C", str(disk / "proj"), "--", *run, "")
    reason = (
        f"h2 could not start the job: cannot enter the working directory {disk / 'proj'}: No such file or directory"
    )
    until(lambda: reason in lab.cli("why", str(there)), timeout_s=60, what="the reason")
    lab.cli("resume", "h1:0")
    lab.cli("wait", str(there))

    ran = runs(lab)
    first, second = range(some + 1, some + 13), range(during + 1, during + 7)
    assert {*first, *second, *long, there} == set(ran)
    assert set(HOSTS) == {ran[job][0] for job in first}
    assert {"h2"} == {ran[job][0] for job in second}
    assert [["h1"], ["h2"], ["h1"]] == [ran[job] for job in (*long, there)]
    expected = {f"{job} 1 {moment}": 1 for job in ran for moment in ("start", "end")}
    assert expected == Counter(effects.read_text().splitlines())
    assert not [
        each for each in json.loads(lab.cli("doctor", "--json", code=6))["findings"] if each["grade"] == "problem"
    ]
