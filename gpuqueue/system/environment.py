"""Selects the variables of the submitter's environment that a job gets."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from gpuqueue.errors import BadRequest, Unreadable
from gpuqueue.lazy.imports import later
from gpuqueue.text.json_fields import loaded
from gpuqueue.text.sanitize import brief

if TYPE_CHECKING:
    import shutil

    from gpuqueue.model import validation
else:
    shutil = later("shutil")
    validation = later("gpuqueue.model.validation")


#: Variables that say which devices a job sees. The worker decides it, so nobody gives them with ``--env``.
OF_DEVICES = ("CUDA_DEVICE_ORDER", "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES")
#: Variables that a job does not get: the worker sets them, or they are specific to the submitter's shell.
#: The last two are passwords of the history and the store. docs/reference/submit.md lists them.
LEFT_OUT = frozenset(
    {
        *(*OF_DEVICES, "_", "SHLVL", "OLDPWD", "PWD"),
        *("PGPASSWORD", "REDISCLI_AUTH"),
    }
)


#: Prefix of gpuqueue's own variables. A job does not get them, because the URLs among them may hold passwords.
OURS = "GPUQUEUE_"


#: Set in a job: the variables that the worker changed or added, as a JSON object of name to [before, after].
CHANGED = "GPUQUEUE_CHANGED"


#: The variables with the prefix that a job does get. They hold no secret, and a job that submits jobs needs them.
OURS_THAT_TRAVEL = frozenset({"GPUQUEUE_STATE_DIR", "GPUQUEUE_CONFIG"})


#: Variables that hold paths or names of one machine. A job on another machine gets those of that machine.
OF_ONE_MACHINE = frozenset(
    {
        *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "MAIL", "PWD", "HOSTNAME", "TMPDIR", "TEMP", "TMP", "DISPLAY"),
        *("LD_LIBRARY_PATH", "LD_PRELOAD", "MANPATH", "INFOPATH", "EDITOR", "PAGER", "WINDOWID", "XAUTHORITY"),
        *("VIRTUAL_ENV", "VIRTUAL_ENV_PROMPT", "PYTHONHOME", "PYTHONUSERBASE", "PYTHONSTARTUP"),
        *("CUDA_HOME", "CUDA_PATH"),
    }
)
#: How the names of further such variables begin.
_OF_ONE_MACHINE = ("CONDA_", "MAMBA_", "PYENV_", "XDG_", "SSH_", "DBUS_", "WAYLAND_", "VSCODE_", "TMUX", "TERM_")


def travelling(environ: Mapping[str, str], *, is_far: bool = False) -> dict[str, str]:
    """Return the part of *environ* that a job gets; *is_far*: on another machine, with code of its own.

    If a job submits another one, the changes that the worker made for the first job are undone. The second job may ask
    for more memory, and its own worker sets the variables for it.
    """
    return {
        name: value
        for name, value in _unchanged(environ).items()
        # An entry "=x" of the environment has an empty name, which no process can be given.
        if name and name not in LEFT_OUT and (not name.startswith(OURS) or name in OURS_THAT_TRAVEL)
        if not (is_far and is_of_one_machine(name, value))
    }


def given_variables(env: object) -> Mapping[str, str]:
    """Return the variables that a submitter adds to those of the shell: a mapping, or ``KEY=VALUE`` texts.

    A program may pass its own whole environment as a mapping: what that says about its own devices is left out.

    Raises:
        BadRequest: *env* is malformed, or says which devices the job sees.

    """
    variables = validation.environment(env)
    own = {name for name in OF_DEVICES if isinstance(env, Mapping) and env.get(name) == os.environ.get(name)}
    for name in OF_DEVICES:
        if name in variables and name not in own:
            raise BadRequest(f"--env {name}={brief(variables[name])}: {_devices_instead(name, str(variables[name]))}")
    return {name: value for name, value in variables.items() if name not in own} if own else variables


def _devices_instead(name: str, value: str) -> str:
    """Return what a submitter does in place of giving the variable *name* of OF_DEVICES the *value*."""
    if name == "CUDA_DEVICE_ORDER":
        return "in each job it is PCI_BUS_ID, the order of gpuqueue gpus: leave it out"
    devices = value.split(",")
    if value in {"", "-1", "none", "void", "NoDevFiles"}:
        option = "--device cpu"
    elif all(device.isdigit() or device.startswith("GPU-") for device in devices):
        option = f"--device {value}" + (f" --gpus {len(devices)}" if len(devices) > 1 else "")
    else:
        option = "--device INDEX"
    return f"gpuqueue decides which devices a job sees (as numbers: --visible index): use {option} instead"


def is_of_one_machine(name: str, value: str) -> bool:
    """Return whether the variable holds paths or names of one machine."""
    if name == "PYTHONPATH":  # of directories in the code
        return any(os.path.isabs(each) for each in value.split(os.pathsep))  # noqa: PTH117 - pathlib is slow to import
    if name == "UV" or name.startswith("UV_"):  # directories of uv, not its indexes
        return value.startswith("/")
    return name in OF_ONE_MACHINE or name in OURS_THAT_TRAVEL or name.startswith(_OF_ONE_MACHINE)


def _unchanged(environ: Mapping[str, str]) -> dict[str, str]:
    """Return *environ* without the worker's changes, except for variables that the job changed again."""
    before = dict(environ)
    for name, was, now in _changes(environ.get(CHANGED)):
        if before.get(name) == now:
            del before[name]
            if was is not None:
                before[name] = was
    return before


def _changes(text: str | None) -> list[tuple[str, str | None, str]]:
    """Return the worker's changes as tuples of name, before, after. Malformed entries are ignored."""
    try:
        plain = loaded(text, CHANGED)
        pairs = {name: plain.each(name) for name in plain}
    except Unreadable:
        return []
    return [
        (name, *pair)
        for name, pair in pairs.items()
        if len(pair) == 2 and isinstance(pair[1], str) and (pair[0] is None or isinstance(pair[0], str))  # noqa: PLR2004
    ]
