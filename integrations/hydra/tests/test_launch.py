"""The launcher without a program of a user: its options, the values of its jobs, and what it returns to a sweeper."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from hydra import initialize
from hydra._internal.callbacks import Callbacks
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.plugins import Plugins
from hydra.core.utils import JobStatus
from hydra.types import HydraContext, RunMode
from hydra_plugins.hydra_gpuqueue_launcher._launch import values_of

from gpuqueue.cli.commands.submit import submit
from gpuqueue.errors import NoResult
from gpuqueue.executor.calls import InsideJob


def test_options_are_called_as_those_of_submit() -> None:
    """They come from the request. What the command line calls otherwise must be renamed here."""
    node: Any = ConfigStore.instance().load("hydra/launcher/gpuqueue.yaml").node
    typed = {name for param in submit.params for name in (*param.opts, *param.secondary_opts)}

    unknown = {name for name in map(str, node) if not {f"--{name.replace('_', '-')}", f"--no-{name}"} & typed}

    assert {"_target_", "preference"} == unknown


@pytest.mark.parametrize(
    ("overrides", "values"),
    [
        ([["lr=0.1", "opt=adam"], ["lr=1", "opt=sgd"]], [{"lr": "0.1", "opt": "adam"}, {"lr": "1", "opt": "sgd"}]),
        ([["+opt.lr=1", "hydra.job.name=x"]], [{"opt_lr": "1"}]),
        ([["++index=1", "db@src=a=b"]], [{"_index": "1", "db_src": "a=b"}]),
        ([["a.b=1", "a_b=2", "A_B=3"]], [{"a_b": "1", "a_b_": "2", "A_B__": "3"}]),
        (
            [["~db", "name="], ["x=1", "name=n"]],
            [{"db": "''", "name": "''", "x": "''"}, {"db": "''", "name": "n", "x": "1"}],
        ),
        ([[]], [{}]),
    ],
)
def test_each_job_has_the_values_of_its_overrides(overrides: list[list[str]], values: list[dict[str, str]]) -> None:
    """A name is one that a sweep can have, and no two are alike. The options of Hydra itself are no values."""
    assert values == values_of(overrides)


@pytest.mark.usefixtures("hydra_restore_singletons", "running_queue")
def test_a_sweeper_gets_what_each_job_returned_or_raised(tmp_path: Path) -> None:
    """In the order of the overrides; of a job that was killed too, which could say nothing itself."""

    def function(cfg: Any) -> Any:
        if cfg.x < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return 1 / cfg.x

    with initialize(version_base=None, config_path=None, job_name="app"):
        hydra = GlobalHydra.instance().hydra
        assert hydra is not None
        options = ["hydra/launcher=gpuqueue", "hydra.launcher.mem=1M", f"hydra.sweep.dir={tmp_path}"]
        config = hydra.compose_config(None, options, RunMode.MULTIRUN)
        context = HydraContext(config_loader=hydra.config_loader, callbacks=Callbacks())
        launcher = Plugins.instance().instantiate_launcher(context, function, config)
        good, bad, killed = launcher.launch([["+x=4"], ["+x=0"], ["+x=-1"]], initial_job_idx=5)

    assert (JobStatus.COMPLETED, 0.25, 5) == (good.status, good.return_value, good.hydra_cfg.hydra.job.num)
    assert [(JobStatus.FAILED, ["+x=0"], {"x": 0}, 6), (JobStatus.FAILED, ["+x=-1"], {"x": -1}, 7)] == [
        (each.status, each.overrides, each.cfg, each.hydra_cfg.hydra.job.num) for each in (bad, killed)
    ]
    with pytest.raises(ZeroDivisionError) as raised:
        _ = bad.return_value
    assert isinstance(raised.value.__cause__, InsideJob)
    assert "return 1 / cfg.x" in str(raised.value.__cause__)
    with pytest.raises(NoResult, match=r"job \d+_2 \(app\) ended without a result: .*KILL"):
        _ = killed.return_value
