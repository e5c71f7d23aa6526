"""Checks of the Python interpreter that jobs submitted from here would use, and of its torch.

The default checks do not import torch. ``deep`` imports it in a job's environment, which takes seconds, and reports the
GPUs that torch really sees.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gpuqueue.lazy.frozen import dataclass
from gpuqueue.model.finding import Findings, note, ok, problem, unknown, warning
from gpuqueue.system.command_line import interpreter as chosen
from gpuqueue.system.environment import travelling
from workers.devices.nvml_diagnostics import DriverFacts

#: How long an interpreter may take to report its torch version, and to import torch, in seconds.
ASK_S, DEEP_S = 5.0, 60.0
#: Reads torch's version file, since importing torch would take seconds.
ASK = """
import importlib.util, json, runpy, sys
found = {"python": ".".join(map(str, sys.version_info[:3]))}
spec = importlib.util.find_spec("torch")
if spec is not None and spec.origin:
    version = runpy.run_path(spec.origin.replace("__init__.py", "version.py"))
    found.update(torch=version["__version__"], cuda=version.get("cuda"), hip=version.get("hip"))
print(json.dumps(found))
"""
#: Initializes CUDA in torch as a job would. It creates no context on a card, so it uses no device memory.
TRY = """
import json, sys, warnings
found = {"count": 0, "error": None}
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import torch
    found["count"] = torch.cuda.device_count()
    try:
        torch.cuda.init()
    except Exception as error:
        found["error"] = str(error) or type(error).__name__
found["warnings"] = [str(each.message) for each in caught]
print(json.dumps(found))
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    """The interpreter and its torch.

    ``failure`` is the reason why the interpreter did not answer. ``trial`` is the result of importing torch, if that
    was tried, and ``trial_failure`` the reason why it failed.
    """

    path: str
    driver: DriverFacts
    python: str | None = None
    torch: str | None = None
    cuda: str | None = None
    failure: str | None = None
    trial: Mapping[str, Any] | None = None
    trial_failure: str | None = None

    @property
    def gpus(self) -> int:
        """Return the number of cards that answer."""
        return sum(card.trouble is None for card in self.driver.cards)

    @property
    def undivided(self) -> tuple[str, ...]:
        """Return the UUIDs of the cards that are not divided by MIG."""
        return tuple(card.uuid for card in self.driver.cards if card.uuid is not None and not card.divided)


# ---- facts -----------------------------------------------------------------------------------------------------------


def facts_of(environ: Mapping[str, str], driver: DriverFacts, *, deep: bool) -> Facts:
    """Return the facts about the Python that *environ* selects, and about its torch."""
    path = chosen(environ)
    try:
        found = _ask(path, ASK, travelling(environ), ASK_S)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        return Facts(path=path, driver=driver, failure=_reported(error))
    facts = Facts(path=path, driver=driver, python=found["python"], torch=found.get("torch"), cuda=found.get("cuda"))
    return _tried(facts, environ) if deep and facts.torch is not None else facts


def _tried(facts: Facts, environ: Mapping[str, str]) -> Facts:
    pinned = {"CUDA_VISIBLE_DEVICES": ",".join(facts.undivided), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    env = {**travelling(environ), **pinned}
    try:
        return replace(facts, trial=_ask(facts.path, TRY, env, DEEP_S))
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        return replace(facts, trial_failure=_reported(error))


def _ask(python: str, code: str, env: Mapping[str, str], limit_s: float) -> dict[str, Any]:
    """Run *code* in the interpreter *python*, and return the JSON object that it prints last."""
    done = subprocess.run(
        [python, "-c", code],
        env=dict(env),
        cwd="/",  # a file torch.py in the current directory would be imported instead
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=limit_s,
        check=True,
    )
    answer: dict[str, Any] = json.loads(next(iter(done.stdout.splitlines()[-1:]), ""))
    return answer


def _reported(error: Exception) -> str:
    if isinstance(error, subprocess.TimeoutExpired):
        return f"no answer within {error.timeout:g} s"
    if isinstance(error, subprocess.CalledProcessError):
        return next(iter(error.stderr.strip().splitlines()[-1:]), f"it ended with {error.returncode}")
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


# ---- checks ----------------------------------------------------------------------------------------------------------


def interpreter(facts: Facts) -> Findings:
    """Report the Python that would run a script submitted from here."""
    if facts.failure is not None:
        seen = f"{facts.path} cannot be asked: {facts.failure}"
        return warning(seen, "activate another environment, or use --python PATH at submit")
    return ok(f"{facts.path}, Python {facts.python}")


def torch(facts: Facts) -> Findings:
    """Check whether the interpreter has a torch that can use the GPUs of this machine."""
    if facts.failure is not None:
        return ()
    if facts.torch is None:
        return note("none in this Python", "activate the environment that has it before you submit, if jobs need it")
    built = f"torch {facts.torch}" + (f" for CUDA {facts.cuda}" if facts.cuda else "")
    if not facts.gpus:
        return ok(f"{built}, and no GPU here")
    if facts.cuda is None:
        return warning(f"{built} is a build without CUDA: its jobs see no GPU", f"install a CUDA build in {facts.path}")
    newest = facts.driver.cuda
    if newest is not None and int(facts.cuda.split(".")[0]) > newest[0]:
        seen = f"{built}, and the driver serves CUDA up to {newest[0]}.{newest[1]}: its jobs will likely see no GPU"
        return warning(seen, "a newer driver, or a torch for an older CUDA; gpuqueue doctor --deep tries it")
    return ok(built)


def trial(facts: Facts) -> Findings:
    """Report the GPUs that torch really sees. Only with ``--deep``."""
    if facts.trial_failure is not None:
        return unknown(f"torch could not be tried: {facts.trial_failure}", f"{facts.path} -c 'import torch'")
    if facts.trial is None:
        return ()
    count, error, there = facts.trial["count"], facts.trial["error"], len(facts.undivided)
    if count == there and not (there and error):
        return ok(f"it sees {count} of {there} GPUs")
    reason = error or next(iter(facts.trial["warnings"]), "it gives no reason")
    seen = f"it sees {count} of {there} GPUs: {reason.splitlines()[0]}"
    return problem(seen, f"the jobs of {facts.path} have the same problem: repair that environment or the driver")


CHECKS = (interpreter, torch, trial)
