"""gflow (``runqd``): one daemon that spawns the jobs, or types each into its own tmux, which is its default."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from benchmarks.peers.crew import running
from benchmarks.peers.install import HOME
from benchmarks.peers.peer import SLOTS, NotInstalled, Peer, private_place
from benchmarks.peers.reach import answer, free_port

#: gflow has no slots for jobs without a GPU. With one user, a quota of each user's running jobs is the same.
CONFIG = """\
[daemon]
host = "127.0.0.1"
port = {port}
[quota.default_user]
max_running_jobs = {slots}
[executor]
type = "{executor}"
"""


#: tmux runs a login shell, which resets PATH. Jobs end there with gflow's own commands, so the profile sets PATH.
PROFILE = "PATH='{path}'\nexport PATH\n"


@contextmanager
def gflow(name: str = "gflow", executor: str = "tmux") -> Iterator[Peer]:
    """Run one daemon with the given executor, ``tmux`` or ``process``."""
    program = HOME / "bin" / "gflowd"
    if not program.exists() or shutil.which("tmux") is None:
        raise NotInstalled("gflow", "tmux")
    with private_place(USER="peer", SHELL="/bin/sh") as (place, environ):
        port = free_port()
        config = Path(place) / ".config" / "gflow" / "gflow.toml"
        config.parent.mkdir(parents=True)
        config.write_text(CONFIG.format(port=port, slots=SLOTS, executor=executor), encoding="utf-8")
        (Path(place) / ".profile").write_text(PROFILE.format(path=environ["PATH"]), encoding="utf-8")
        environ["TMUX_TMPDIR"] = place
        with running([[str(program)]], environ) as crew:
            crew.await_up(partial(answer, f"http://127.0.0.1:{port}/health"), "the daemon of gflow")
            yield Peer(
                name=name,
                environ=environ,
                command=[str(HOME / "bin" / "gbatch"), "true"],  # gbatch would read a path as a script
                mains=crew.mains,
                restart=crew.start,
            )
