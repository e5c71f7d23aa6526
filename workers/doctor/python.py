"""Checks of the Python that jobs submitted from here would use, of its torch, and of the environments of this host.

The default checks do not import torch. ``deep`` imports it in a job's environment, which takes seconds, and reports the
GPUs that torch really sees.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from typing import Any

from gpuqueue.model.finding import Finding, Findings, note, ok, problem, unknown, warning
from gpuqueue.settings.settings import Settings
from gpuqueue.system.command_line import interpreter as chosen
from gpuqueue.system.environment import travelling
from workers.devices.nvml_calls import DriverFacts

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


class Interpreter:
    """The Python that a script submitted from here would get, and its torch. ``failure`` is why it did not answer."""

    def __init__(self, environ: Mapping[str, str], driver: DriverFacts, *, deep: bool) -> None:
        self.driver, self.deep = driver, deep
        self.path, self.environ = chosen(environ), travelling(environ)
        answer: dict[str, str | None] = {}
        self.failure: str | None = None
        try:
            answer = _ask(self.path, ASK, self.environ, ASK_S)
        except (OSError, subprocess.SubprocessError, ValueError) as error:
            self.failure = _reported(error)
        self.python, self.torch, self.cuda = answer.get("python"), answer.get("torch"), answer.get("cuda")


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


def interpreter(of: Interpreter) -> Findings:
    """Report the Python that would run a script submitted from here."""
    if of.failure is not None:
        return warning(
            f"{of.path} cannot be asked: {of.failure}", "activate another environment, or use --python PATH at submit"
        )
    return ok(f"{of.path}, Python {of.python}")


def torch(of: Interpreter) -> Findings:
    """Check whether the interpreter has a torch that can use the GPUs of this machine."""
    if of.failure is not None:
        return ()
    if of.torch is None:
        return note("none in this Python", "activate the environment that has it before you submit, if jobs need it")
    built = f"torch {of.torch}" + (f" for CUDA {of.cuda}" if of.cuda else "")
    if all(card.trouble is not None for card in of.driver.cards):
        return ok(f"{built}, and no GPU here")
    if of.cuda is None:
        return warning(f"{built} is a build without CUDA: its jobs see no GPU", f"install a CUDA build in {of.path}")
    newest = of.driver.cuda
    if newest is not None and int(of.cuda.split(".")[0]) > newest[0]:
        seen = f"{built}, and the driver serves CUDA up to {newest[0]}.{newest[1]}: its jobs will likely see no GPU"
        return warning(seen, "a newer driver, or a torch for an older CUDA; gpuqueue doctor --deep tries it")
    return ok(built)


def trial(of: Interpreter) -> Findings:
    """Report the GPUs that torch really sees. Only with ``--deep``."""
    if not of.deep or of.torch is None:
        return ()
    undivided = [card.uuid for card in of.driver.cards if card.uuid is not None and not card.divided]
    pinned = {"CUDA_VISIBLE_DEVICES": ",".join(undivided), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    try:
        answer = _ask(of.path, TRY, {**of.environ, **pinned}, DEEP_S)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        return unknown(f"torch could not be tried: {_reported(error)}", f"{of.path} -c 'import torch'")
    count, reason, there = answer["count"], answer["error"], len(undivided)
    if count == there and not (there and reason):
        return ok(f"it sees {count} of {there} GPUs")
    reason = reason or next(iter(answer["warnings"]), "it gives no reason")
    seen = f"it sees {count} of {there} GPUs: {reason.splitlines()[0]}"
    return problem(seen, f"the jobs of {of.path} have the same problem: repair that environment or the driver")


def environments(settings: Settings) -> Iterator[Finding]:
    """Report each environment of the settings without a program: its jobs go to other hosts, or are held."""
    for name, program in sorted(settings.environments.items()):
        fault = _fault(program)
        if fault is None:
            yield ok(program, about=name)
        else:
            remedy = "install it there, or change the setting environments and restart the workers"
            yield problem(f"{program} {fault}: no job with --environment starts", remedy, about=name)


def _fault(program: str) -> str | None:
    if not os.path.lexists(program):
        return "is not there"
    if os.path.isdir(program):  # noqa: PTH112 - as the line above
        return "is a directory"
    return None if os.access(program, os.X_OK) else "cannot be executed"


CHECKS = (interpreter, torch, trial)
