"""jobd: a broker on SQLite, and a worker with four slots that polls it."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.measure.place import ROOT
from benchmarks.peers.crew import running
from benchmarks.peers.install import HOME, PYTHON
from benchmarks.peers.peer import SLOTS, NotInstalled, Peer, private_place
from benchmarks.peers.reach import answer, free_port

#: The programs that the measured jobs call by name.
CALLED = ("date", "sleep", "sh")


@contextmanager
def jobd() -> Iterator[Peer]:
    """Run one broker and one worker."""
    programs = [HOME / "bin" / each for each in ("jobd", "jobd-worker", "job")]
    if not all(each.exists() for each in programs):
        raise NotInstalled("jobd")
    broker, worker, job = map(str, programs)
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with private_place(JOBD_URL=url, JOBD_PORT=str(port), JOBD_ALLOW_NO_AUTH="1") as (place, environ):
        environ |= {"JOBD_DB_URL": f"sqlite:///{place}/jobd.db", "JOBD_LOGS_DIR": f"{place}/logs"}
        environ |= {"JOBD_CONFIG_DIR": f"{place}/config", "JOBD_STATE_DIR": place}
        with running([[broker]], environ) as broker_crew:
            broker_crew.await_up(lambda: answer(f"{url}/workers"), "the broker of jobd")
            slots = {"JOBD_WORKER_HOST": "peer", "JOBD_WORKER_MAX_CONCURRENT_JOBS": str(SLOTS)}
            roots = {"JOBD_WORKER_MOUNT_ROOTS": f"{place},{ROOT}"}  # it takes no job from other directories
            with running([[worker]], environ | slots | roots | _path(Path(place))) as crew:
                crew.await_up(lambda: b'"peer"' in answer(f"{url}/workers"), "the worker of jobd")
                yield Peer(
                    name="jobd",
                    environ=environ,
                    python=str(PYTHON),
                    command=[job, "submit", "--project", "peers", "--", "/bin/true"],
                    mains=crew.mains,
                    restart=crew.start,
                )


def _path(place: Path) -> dict[str, str]:
    """Hide ``systemd-run`` where it does not work: jobd uses it if it finds it, and then each job fails."""
    words = ["systemd-run", "--user", "--scope", "--quiet", "/bin/true"]
    if shutil.which(words[0]) is None or _works(words):
        return {}
    hidden = place / "path"
    hidden.mkdir()
    for name in CALLED:
        (hidden / name).symlink_to(shutil.which(name) or f"/bin/{name}")
    return {"PATH": str(hidden)}


def _works(words: list[str]) -> bool:
    try:
        return subprocess.run(words, capture_output=True, timeout=10, check=False).returncode == 0
    except subprocess.TimeoutExpired:
        return False
