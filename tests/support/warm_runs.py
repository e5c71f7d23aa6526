"""Runs one script cold and by a warm interpreter: the output and the ending must be the same."""

from __future__ import annotations

import os
import select
import sys
import time
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

from bounded import until
from factories import make_spec

from gpuqueue.clock import SystemClock
from gpuqueue.model.job_spec import JobSpec
from gpuqueue.model.run import RunDevice
from gpuqueue.settings.settings import Settings
from workers.run import process_tree
from workers.run.directory import Held, RunDir, ShimSpec
from workers.run.environment import TOKEN, environment
from workers.shim.client import Shim, Shims
from workers.warm_pool import WarmPool, image_of

CARD = RunDevice(uuid="sim-here-0", lease_bytes=1)


@dataclass(frozen=True)
class Outcome:
    """The result of a run: its log, its ending, and how its shim started it."""

    log: str
    ending: str
    start: str | None


class WarmRuns:
    """Runs jobs without a store or a worker, with a worker's fork server and warm interpreters."""

    def __init__(self, place: Path, modules: str = "json", **settings: str) -> None:
        place.mkdir(exist_ok=True)
        self.place = place
        self.runs = place / "runs"
        environ = {"GPUQUEUE_STATE_DIR": str(place), "GPUQUEUE_WARM_MODULES": modules, **settings}
        self.settings = Settings.load(environ)
        self.shims = Shims()
        self.warm_interpreters = WarmPool(self.settings, self.shims, SystemClock())
        self._numbers = count(1)
        self._tokens: list[str] = []

    def spec(self, script: str, *args: str, name: str = "train.py", **changes: object) -> JobSpec:
        """Return a spec that runs a script with this text."""
        (self.place / name).write_text(script)
        # Without a port each run would get another one.
        env = {"PATH": os.environ["PATH"], "HOME": str(self.place), "LANG": "C.UTF-8", "MASTER_PORT": "29501"}
        spec = make_spec(argv=(sys.executable, name, *args), cwd=str(self.place), env=env)
        return replace(spec, **changes)  # type: ignore[arg-type]

    def cold(self, spec: JobSpec) -> Outcome:
        """Run the job without a warm interpreter."""
        directory, lock, _ = self.ready(spec)
        shim = self.shims.start(directory.path, lock)
        os.close(lock)
        return self.ended(directory, shim)

    def warm(self, spec: JobSpec) -> Outcome:
        """Run the job by a warm interpreter."""
        directory, shim = self.begin_warm(spec)
        return self.ended(directory, shim)

    def begin_warm(self, spec: JobSpec) -> tuple[RunDir, Shim]:
        """Let a warm interpreter become the job, and return its run and its shim."""
        self.prepare(spec)
        directory, lock, env = self.ready(spec)
        shim, why = self.warm_interpreters.start(spec, env, directory.path, lock)
        os.close(lock)
        assert shim is not None, why
        return directory, shim

    def prepare(self, spec: JobSpec) -> None:
        """Wait until there is a warm interpreter that could become *spec*."""
        env = environment(0, "1.none", spec, (CARD,), self.place)
        with self.warm_interpreters._lock:
            why = self.warm_interpreters._start_wanted(image_of(spec, env), env)  # type: ignore[arg-type]
        assert why is None, why

        def ready() -> bool:
            self.warm_interpreters.tidy()
            (warm_interpreter,) = self.warm_interpreters._interpreters or [None]
            assert warm_interpreter is not None, self.warm_interpreters._unfit
            return warm_interpreter.ready

        until(ready, timeout_s=100, what="a warm interpreter")

    def refusal(self, spec: JobSpec) -> str:
        """Return why no warm interpreter becomes *spec*."""
        env = environment(0, "1.none", spec, (CARD,), self.place)
        shim, why = self.warm_interpreters.start(spec, env, self.place / "nowhere", -1)
        assert shim is None
        return why

    def ready(self, spec: JobSpec) -> tuple[RunDir, int, dict[str, str]]:
        """Return a run directory that is ready for a shim, its lock, and the job's environment."""
        number = next(self._numbers)
        token = f"1.{os.getpid():x}{number:x}"
        self._tokens.append(token)
        directory = RunDir.create(self.runs, Held(job_id=number, token=token, devices=(CARD,)))
        env = environment(7, token, spec, (CARD,), self.place)  # the same for each run, except for the token
        directory.write_spec(
            ShimSpec(
                argv=spec.argv,
                cwd=spec.cwd,
                env=env,
                time_limit_s=None,
                kill_grace_s=1.0,
                start_before=time.monotonic() + 60,
                umask=spec.umask,
                oom_score_adj=300,
            )
        )
        directory.renew(time.monotonic() + 100)
        directory.close()
        lock = directory.try_lock()
        assert lock is not None
        return directory, lock, env

    def ended(self, directory: RunDir, shim: Shim) -> Outcome:
        """Wait for the end of a run."""
        poll = select.poll()
        poll.register(shim.handle, select.POLLIN)
        assert poll.poll(100_000), "the job does not end"
        os.close(shim.handle)
        shim.close()
        end = directory.exit()
        assert end is not None
        return Outcome(directory.log.read_text(errors="replace"), str(end.ending), directory.start())

    def close(self) -> None:
        """End all processes that are left."""
        self.warm_interpreters.close()
        self.shims.close()
        for token in self._tokens:
            process_tree.sweep(TOKEN, token)
