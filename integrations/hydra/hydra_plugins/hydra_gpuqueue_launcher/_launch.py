"""Runs a batch of a sweep as an array, and waits for it."""

from __future__ import annotations

import copy
import functools
import logging
import os
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import wait
from contextlib import suppress
from pathlib import Path
from typing import Any

from hydra.core.singleton import Singleton
from hydra.core.utils import JobReturn, JobStatus, configure_log, filter_overrides, run_job, setup_globals
from hydra.errors import CompactHydraException
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, open_dict

from gpuqueue.cli.follow import ctrl_c
from gpuqueue.client import Client
from gpuqueue.console import INTERRUPTED, LEFT
from gpuqueue.errors import GpuQueueError
from gpuqueue.executor.calls import Call
from gpuqueue.executor.executor import Executor
from gpuqueue.executor.watcher import Future

from .config import given

log = logging.getLogger(__name__)

#: Longest name of a value of a sweep, in characters.
LONGEST_NAME = 60


class App:
    """The app of the user, as a function of its configuration. It has the name of the user's function."""

    def __init__(self, context: HydraContext, function: TaskFunction, config: DictConfig) -> None:
        self.context, self.function, self.config = context, function, config
        functools.update_wrapper(self, function)

    def composed(self, overrides: Sequence[str], number: int) -> DictConfig:
        """Return the configuration of job *number* of the sweep."""
        config = self.context.config_loader.load_sweep_config(self.config, [*overrides])
        with open_dict(config):
            config.hydra.job.num = number
        return config

    def __call__(self, config: DictConfig, state: Any) -> JobReturn:
        """Run the app. This runs in the job. *state* is that of Hydra where it was submitted.

        Raises:
            Exception: what the app raised. So the job fails, and can be retried.

        """
        Singleton.set_state(state)
        setup_globals()
        array, index = (os.environ.get(f"GPUQUEUE_ARRAY_{name}") for name in ("JOB_ID", "INDEX"))
        with open_dict(config):
            config.hydra.job.id = os.environ["GPUQUEUE_JOB_ID"] if array is None else f"{array}_{index}"
        found = run_job(
            hydra_context=self.context,
            task_function=self.function,
            config=config,
            job_dir_key="hydra.sweep.dir",
            job_subdir_key="hydra.sweep.subdir",
        )
        _ = found.return_value
        return found


def launch(
    app: App, options: Mapping[str, Any], job_overrides: Sequence[Sequence[str]], first_number: int
) -> list[JobReturn]:
    """Run a batch. The arguments and errors are those of ``GpuQueueLauncher.launch``."""
    setup_globals()
    hydra, state = app.config.hydra, Singleton.get_state()
    configure_log(hydra.hydra_logging, hydra.verbose)
    Path(str(hydra.sweep.dir)).mkdir(parents=True, exist_ok=True)
    # Composed here and not in the job, so that a change of a file while the array waits changes nothing.
    configs = [app.composed(each, number) for number, each in enumerate(job_overrides, first_number)]
    values = values_of(job_overrides)
    calls = [Call(app, (config, state), values=each) for config, each in zip(configs, values, strict=True)]
    try:
        with Client() as client, ctrl_c.CtrlC() as interrupt:  # no array is left whose id nobody has seen
            executor = Executor(client=client, **{"name": str(hydra.job.name), **given(options)})
            futures = executor.submit_array(calls)
            name, _, is_member = futures[0].job.partition("_")
            what = f"array {name} of {len(calls)} jobs" if is_member else f"job {name}"
            log.info("gpuqueue: %s, sweep output dir : %s", what, hydra.sweep.dir)
            for number, each in enumerate(job_overrides, first_number):
                log.info("\t#%d : %s", number, " ".join(filter_overrides(each)))
            _wait(client, executor, name, futures, interrupt)
            return [_returned(*each) for each in zip(futures, configs, strict=True)]
    except GpuQueueError as error:
        raise CompactHydraException(f"gpuqueue: {error}") from error


def values_of(job_overrides: Sequence[Sequence[str]]) -> list[dict[str, str]]:
    """Return the values of each job, as a person sees them: ``{"optimizer_lr": "0.1"}`` for ``optimizer.lr=0.1``.

    All jobs have the same names. An empty value, or one that a job does not have, is ``''``.
    """
    jobs = [dict(each.lstrip("+~").partition("=")[::2] for each in filter_overrides(some)) for some in job_overrides]
    names: dict[str, str] = {}
    for key in dict.fromkeys(key for job in jobs for key in job):
        name = re.sub(r"[^A-Za-z0-9_]", "_", key)[:LONGEST_NAME]
        if name[:1].isdigit() or name.lower() == "index":
            name = f"_{name}"
        while name.lower() in map(str.lower, names.values()):
            name += "_"
        names[key] = name
    return [{name: job.get(key) or "''" for key, name in names.items()} for job in jobs]


def _wait(client: Client, executor: Executor, name: str, futures: Sequence[Future], interrupt: ctrl_c.CtrlC) -> None:
    """Wait until the array *name* has ended. Ctrl-C asks what to do with it, as it does for ``gpuqueue run``.

    Raises:
        SystemExit: as for ``GpuQueueLauncher.launch``.

    """
    while True:
        try:
            interrupt.check()
            if not wait(futures, ctrl_c.POLL_S).not_done:
                executor.shutdown()
                return
        except KeyboardInterrupt:
            # Where nobody can be asked nobody is left who would read the results either.
            choice = ctrl_c.Choice.CANCEL
            if ctrl_c.can_ask():
                choice = ctrl_c.ask(name, lambda: all(each.done() for each in futures))
            if choice is ctrl_c.Choice.CANCEL:
                client.jobs.cancel(name)
                log.info("gpuqueue: job %s is cancelled", name)
                with suppress(KeyboardInterrupt):  # the third one: do not wait for the ends of its processes
                    executor.shutdown()
                raise SystemExit(INTERRUPTED) from None
            if choice is ctrl_c.Choice.DETACH:
                log.info("gpuqueue: job %s goes on: gpuqueue wait %s", name, name)
                raise SystemExit(LEFT) from None
            interrupt.forget()


def _returned(future: Future, config: DictConfig) -> JobReturn:
    """Return what became of a job, with an error of the queue if the app could not say it."""
    try:
        found: JobReturn = future.result()
    except Exception as error:  # noqa: BLE001 - whatever the app raised
        found = JobReturn(hydra_cfg=DictConfig({"hydra": config.hydra}), status=JobStatus.FAILED)
        found.overrides = [*config.hydra.overrides.task]
        found.cfg = copy.deepcopy(config)
        with open_dict(found.cfg):
            del found.cfg["hydra"]
        found.task_name = str(config.hydra.job.name)
        found.return_value = error
    return found
