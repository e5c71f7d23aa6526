"""A site of four machines that share no disk: the host of the service, two GPU hosts that join it, and a laptop.

Each is a machine of its own (private_machine.py) in a network namespace of its own (lab.py). The database runs outside
of them, and is reached only on the host of the service. The store is the embedded one of the service, which hosts reach
through the service, or one outside of the machines, which they reach over TLS.
"""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
from contextlib import ExitStack
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import sqlalchemy as sa
from bounded import until
from lab import HOSTS, PASSWORD, Lab, certificate, documented_rule
from private_machine import PrivateMachine
from unit_files import UNITS, Unit

from gpuqueue.queue.connect import connect

ETC = "/etc/gpuqueue"
RUNS = "/var/lib/gpuqueue-runs"
PORT = 8443
UIDS = {"alice": 64_501, "bob": 64_502}
#: What the administrator adds to the settings of the host of the service, and of each GPU host.
SERVER_SETTINGS = 'heartbeat = "1s"\npoll = "0.5s"\n'
SERVER_WORKERS = f'{SERVER_SETTINGS}devices = "cpu"\nheadroom = "0"\n'
HOST_SETTINGS = 'devices = "sim:1x8G"\nheadroom = "0"\npoll = "0.5s"\nkill_grace = "2s"\n'


class SiteLab:
    """The machines by their names: ``server``, ``h1``, ``h2`` and ``laptop``."""

    def __init__(self, lab: Lab, place: Path, database_url: str, *, store_url: str | None = None) -> None:
        """Make the machines. With *store_url*, hosts reach that store over TLS."""
        self.lab, self._place = lab, place
        self.url = f"https://{lab.address}:{PORT}"
        self._stack = ExitStack()
        self._certificate, self._key = (Path(each) for each in certificate(place, lab.address))
        parts = sa.make_url(database_url)
        lab.relay(5432, f"{parts.query['host']}/.s.PGSQL.5432", address="127.0.0.1")
        self._has_own_store = store_url is not None
        if store_url is not None:
            self._share(store_url)
        self._database_url = f"postgresql://gpuqueue@127.0.0.1:5432/{parts.database}"
        namespaces = {"server": "db", "h1": "h1", "h2": "h2", "laptop": "client"}
        self.machines = {name: self._machine(lab.namespace(each)) for name, each in namespaces.items()}
        self.units: dict[tuple[str, str], Unit] = {}
        for machine in self.machines.values():
            machine.write("/etc/site-ca.pem", self._certificate.read_text())

    def _share(self, store_url: str) -> None:
        self.lab.relay(6379, store_url.removeprefix("unix://"), str(self._certificate), str(self._key))
        store = connect(store_url)
        store.execute_command(*documented_rule())
        store.execute_command("ACL", "SETUSER", "default", "resetpass", f">{PASSWORD}-of-the-administrator")
        self._stack.callback(store.close)
        self._stack.callback(store.execute_command, "ACL", "SETUSER", "default", "nopass")  # its fixture has none

    def _machine(self, namespace: str) -> PrivateMachine:
        base = Path(mkdtemp(prefix="gpuqueue-lab-"))
        self._stack.callback(shutil.rmtree, base, ignore_errors=True)
        made = PrivateMachine(base, namespace)
        self._stack.callback(made.close)
        return made

    def set_up(self) -> None:
        """Install the host of the service, and add the people to each machine. The laptop has no group of theirs."""
        server = self.machines["server"]
        self.done(server.gpuqueue("install", "--yes"))
        server.write(f"{ETC}/host.pem", self._certificate.read_text())
        server.write(f"{ETC}/host.key", self._key.read_text(), owner="gpuqueue", mode="600")
        lines = {"database_url": self._database_url, "host": "server"}
        workers = server.text(f"{ETC}/workers.toml")
        if self._has_own_store:
            store = f"rediss://gpuqueue:{PASSWORD}@{self.lab.address}:6379/0"
            trusting = f"{store}?ssl_ca_certs={ETC}/host.pem"
            lines |= {"redis_url": trusting, "hosts_redis_url": store, "hosts_redis_ca": f"{ETC}/host.pem"}
            workers = re.sub(r"redis_url = .*", f'redis_url = "{trusting}"', workers)
        self.add_settings("server", SERVER_SETTINGS, **lines)
        text = f'{workers}{SERVER_WORKERS}host = "server"\n'
        server.write(f"{ETC}/workers.toml", text, owner="root:gpuqueue-workers", mode="640")
        unit = f"{UNITS}/gpuqueue-serve.service"
        more = f"--listen {self.lab.address}:{PORT} --tls-cert {ETC}/host.pem --tls-key {ETC}/host.key"
        self.done(server.root("sed", "-i", f"s|gpuqueue serve$|& {more}|", unit))
        for name, machine in self.machines.items():
            groups = () if name == "laptop" else ("gpuqueue-users",)
            machine.root("groupadd", "--force", "--system", "gpuqueue-users")
            for person, uid in UIDS.items():
                machine.add_person(person, *groups, uid=uid)
        self.start("server", "gpuqueue-launcher", "gpuqueue-store", "gpuqueue-serve", "gpuqueue")
        until(lambda: server.gpuqueue("gpus").returncode == 0, what="the service", timeout_s=100)
        until(lambda: "server" in server.gpuqueue("gpus").stdout, what="its device", timeout_s=100)
        self.done(server.gpuqueue("drain", "server:0"))  # the jobs are for the GPU hosts
        for person in UIDS:
            token = self.done(server.person(person, "gpuqueue", "token", "create")).strip()
            login = self.command(person, "login", self.url)
            subprocess.run(login, input=token, text=True, check=True, capture_output=True, timeout=100)

    def join(self, host: str) -> str:
        """Have a GPU host join the site, and start its units; return what ``join`` printed."""
        server, machine = self.machines["server"], self.machines[host]
        machine.write("/root/token", self.done(server.gpuqueue("token", "create", "--host", host)), mode="600")
        machine.write("/root/ticket-key", server.text(f"{ETC}/ticket-key"), mode="600")
        files = ("--token-file", "/root/token", "--ca", "/etc/site-ca.pem", "--ticket-key", "/root/ticket-key")
        done = self.done(machine.gpuqueue("join", self.url, *files, "--yes"))
        self.add_settings(host, HOST_SETTINGS)
        self.start(host, "gpuqueue-launcher", "gpuqueue")
        return done

    def add_settings(self, machine_name: str, text: str, **more: str) -> None:
        """Add lines to the settings of a machine."""
        path = f"{ETC}/config.toml"
        lines = "".join(f'{name} = "{value}"\n' for name, value in more.items())
        machine = self.machines[machine_name]
        machine.write(path, machine.text(path) + text + lines, owner="root:gpuqueue", mode="640")

    def start(self, host: str, *names: str) -> None:
        """Start units of a machine."""
        for name in names:
            unit = self.units.setdefault(
                (host, name), Unit(self.machines[host], name, self._place / f"{host}-{name}.log")
            )
            unit.start()

    def die(self, host: str, name: str) -> None:
        """Kill the main process of a unit with SIGKILL, and start the unit again, as systemd would."""
        self.units[host, name].end(signal.SIGKILL)
        self.units[host, name].start()

    def restart(self, host: str, name: str) -> None:
        """Restart a unit. Running jobs go on."""
        self.units[host, name].end(signal.SIGTERM)
        self.units[host, name].start()

    def kill_on(self, host: str, words: str) -> list[int]:
        """Kill the processes of the service account whose command line has *words*, and return their pids."""
        found = self.machines[host].root("pgrep", "-u", "gpuqueue", "-f", words).stdout.split()
        self.machines[host].root("kill", "-9", *found)
        return [int(each) for each in found]

    def power_off(self, host: str) -> None:
        """End everything on a machine at once, and unplug it."""
        self.lab.cut(host)
        self.machines.pop(host).close()

    def command(self, person: str, *words: str) -> list[str]:
        """Return the command line that runs ``gpuqueue`` on the laptop as a person."""
        environ = (f"GPUQUEUE_URL={self.url}", "SSL_CERT_FILE=/etc/site-ca.pem")
        return self.machines["laptop"].command_of(person, "env", *environ, "gpuqueue", *words)

    def cli(self, person: str, *words: str, cwd: str = ".", code: int = 0) -> str:
        """Run ``gpuqueue`` on the laptop as a person, in a directory below the home, and return its output."""
        environ = (f"GPUQUEUE_URL={self.url}", "SSL_CERT_FILE=/etc/site-ca.pem")
        inside = ("sh", "-c", f'cd {cwd} && exec "$@"', "sh", "env", *environ, "gpuqueue", *words)
        return self.done(self.machines["laptop"].person(person, *inside), code)

    def as_person(self, machine: str, person: str, words: str) -> str:
        """Run a shell command as a person in the home on a machine, and return its output."""
        return self.done(self.machines[machine].person(person, "sh", "-c", words))

    def delivered(self, job: int) -> set[str]:
        """Return the names of the files of a job that its host has sent to the service."""
        place = f"/var/lib/gpuqueue/delivered/{job}"
        return set(self.machines["server"].root("find", place, "-type", "f", "-printf", "%f\n").stdout.split())

    def findings(self, host: str) -> list[dict[str, str]]:
        """Return what ``gpuqueue doctor`` finds on a machine, as the service account."""
        become = ("setpriv", "--reuid=gpuqueue", "--regid=gpuqueue", "--init-groups", "--")
        words = ("env", f"GPUQUEUE_CONFIG={ETC}/config.toml", "gpuqueue", "doctor", "--json")
        found: list[dict[str, str]] = json.loads(self.machines[host].root(*become, *words).stdout)["findings"]
        return found

    def show(self, person: str, job: int) -> dict[str, Any]:
        """Return what a person sees of a job."""
        found: dict[str, Any] = json.loads(self.cli(person, "show", str(job), "--json"))
        return found

    def done(self, done: subprocess.CompletedProcess[str], code: int = 0) -> str:
        """Return the output of a command that has ended as expected; both outputs of a refused one."""
        assert code == done.returncode, f"{done.args}: {done.returncode}\n{done.stdout}\n{done.stderr}\n{self.logs()}"
        return done.stdout if code == 0 else done.stdout + done.stderr

    def logs(self) -> str:
        """Return the ends of the logs of all units, for a failed test."""
        paths = sorted(self._place.glob("*-gpuqueue*.log"))
        return "\n".join(f"== {path.name}\n{path.read_text(errors='replace')[-2000:]}" for path in paths)

    def close(self) -> None:
        """End all machines, and with them all units."""
        self._stack.close()
        for unit in self.units.values():
            unit.ended()


__all__ = ["ETC", "HOSTS", "RUNS", "UIDS", "SiteLab"]
