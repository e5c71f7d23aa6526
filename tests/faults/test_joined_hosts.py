"""A team works from a laptop on GPU hosts that have joined the service of their site, without any shared disk."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from bounded import until
from lab import HOSTS, Lab
from own_store import OwnStore
from private_machine import skip_without_root
from private_postgres import Server
from site_lab import ETC, SiteLab

pytestmark = [pytest.mark.full, pytest.mark.timeout(600)]


@pytest.fixture
def site(own_store: OwnStore, postgres_server: Server, tmp_path: Path) -> Iterator[SiteLab]:
    """Return a site with its service and its people, and two GPU hosts that have joined it."""
    skip_without_root()
    try:
        lab = Lab(tmp_path)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no network namespaces here: {error}")
    try:
        with postgres_server.database() as database:
            made = SiteLab(lab, tmp_path, own_store.url, database)
            try:
                made.set_up()
                for host in HOSTS:
                    made.join(host)
                until(lambda: all(each in made.cli("alice", "gpus") for each in HOSTS), what="devices", timeout_s=100)
                yield made
            finally:
                made.close()  # before its database is dropped
    finally:
        lab.close()


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
        again = machine.gpuqueue("join", site.url, "--token-file", "/root/token", "--ca", "/etc/site-ca.pem", "--yes")
        assert "nothing to do" == again.stdout.splitlines()[-1], again
    joins = site.done(site.machines["server"].gpuqueue("audit", "--action", "join"))
    assert all(host in joins for host in HOSTS)
