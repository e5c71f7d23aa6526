"""The ticket of a job: the service's signature of what runs, and as which account. Pure. Standard library only.

In system mode the service signs each job with a key that workers cannot read, and the launcher of a host, a process of
root, starts only what was signed (``workers/launcher/ticket.py``). So a worker that was taken over cannot make up a job
of another person.

A ticket is the text ``MAC STATEMENT``. The statement is JSON: the account, the command, the directory and the code of
the job, and digests of its environment. The environment itself is not in it, because the history removes the secrets of
a job that has ended. What an edit can change is not in it either: memory, devices, times and names.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from typing import Any

from gpuqueue.model.array import Array, Indexes
from gpuqueue.model.python_environments import OF_ANOTHER_PYTHON
from gpuqueue.model.sweep import Axis

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from pathlib import Path

VERSION = 1
#: Bytes of a key.
KEY_BYTES = 32
#: How long a ticket is valid: a run must start within this time after the submit, the edit or the earliest start.
VALID_S = 90 * 86400
#: How long the signature of a second command in a run is valid, in seconds. Clocks may differ by a part of it.
COMMAND_VALID_S = 120
#: Variables that the worker or the launcher sets for each run, whatever the submitter sent.
SET_FOR_EACH_RUN = frozenset(
    {
        *("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "GPUQUEUE_JOB_ID", "GPUQUEUE_ATTEMPT", "GPUQUEUE_TOKEN"),
        *("GPUQUEUE_RUN_DIR", "GPUQUEUE_MEM_BYTES", "GPUQUEUE_DEVICES", "GPUQUEUE_CHANGED", "PWD"),
        *("PYTHONUNBUFFERED", "HOME", "USER", "LOGNAME", "SHELL"),
    }
)
#: How the names of the variables of an array's members begin.
OF_MEMBERS = ("GPUQUEUE_ARRAY_", "GPUQUEUE_SWEEP_")

#: Separate these signatures from each other, and from any other use of the key.
_PURPOSE, _OF_REPEATING, _OF_COMMAND = b"gpuqueue ticket\n", b"gpuqueue repeating job\n", b"gpuqueue command\n"


def read_key(path: Path) -> bytes:
    """Return the key in the file *path*: 64 hexadecimal digits.

    Raises:
        OSError: the file cannot be read.
        ValueError: it holds no key.

    """
    with path.open("rb") as file:
        text = file.read(4 * KEY_BYTES)
    try:
        key = bytes.fromhex(text.decode("ascii").strip())
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:
        raise ValueError(f"{path} holds no key: it must have {2 * KEY_BYTES} hexadecimal digits")
    return key


def sign(key: bytes, statement: Mapping[str, Any]) -> str:
    """Return the ticket with *statement*."""
    return _signed(key, statement, _PURPOSE)


def opened(key: bytes, ticket: str) -> dict[str, Any] | None:
    """Return the statement of *ticket*, or None if it was not signed with *key* or is of another version."""
    return _opened(key, ticket, _PURPOSE)


def sign_command(key: bytes, statement: Mapping[str, Any]) -> str:
    """Return the signature and the text of *statement*, a second command in a run: no ticket, so it starts no job.

    It has ``job``, ``token`` and ``uid`` of the run, ``argv``, ``terminal``, ``input``, and ``until``, in seconds since
    the epoch.
    """
    return _signed(key, {"v": VERSION, **statement}, _OF_COMMAND)


def opened_command(key: bytes, text: str) -> dict[str, Any] | None:
    """Return the statement in *text* of :func:`sign_command`, or None if it was not signed with *key*."""
    return _opened(key, text, _OF_COMMAND)


def _signed(key: bytes, statement: Mapping[str, Any], purpose: bytes) -> str:
    text = json.dumps(statement, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return f"{_mac(key, text, purpose)} {text}"


def _opened(key: bytes, ticket: str, purpose: bytes) -> dict[str, Any] | None:
    mac, _, text = ticket.partition(" ")
    if not ticket.isascii() or not hmac.compare_digest(mac, _mac(key, text, purpose)):
        return None
    statement = json.loads(text)  # the service wrote it
    return statement if isinstance(statement, dict) and statement.get("v") == VERSION else None


def seal(key: bytes, statement: Sequence[object]) -> str:
    """Return the signature of *statement*, a repeating job. It is no ticket: no launcher takes it."""
    text = json.dumps(statement, separators=(",", ":"), ensure_ascii=True)
    return hmac.new(key, _OF_REPEATING + text.encode("ascii"), "sha256").hexdigest()


def is_seal(key: bytes, statement: Sequence[object], text: str | None) -> bool:
    """Return whether *text* is the signature of *statement* by :func:`seal`."""
    return text is not None and text.isascii() and hmac.compare_digest(text, seal(key, statement))


def _mac(key: bytes, text: str, purpose: bytes) -> str:
    return hmac.new(key, purpose + text.encode("ascii"), "sha256").hexdigest()


def statement_of(
    job_id: int,
    request: Mapping[str, Any],
    env: Mapping[str, str],
    *,
    secrets: Collection[str],
    until: int,
) -> dict[str, Any]:
    """Return the statement about a job, which is valid until the time *until*, in seconds since the epoch.

    *request* has the other fields of the statement (:func:`gpuqueue.client.signing.request_of`). *secrets* are those
    names of *env* that look like secrets.
    """
    signed = signed_part(env, is_array=request["array"] is not None, has_environment=request["environment"] is not None)
    removable = sorted(set(secrets).intersection(signed))
    return {
        "v": VERSION,
        "job": job_id,
        "until": until,
        **request,
        "path": env.get("PATH"),
        "secrets": removable,
        **env_digests(signed, removable),
    }


def signed_part(env: Mapping[str, str], *, is_array: bool, has_environment: bool) -> dict[str, str]:
    """Return the variables of *env* whose digests are signed. PATH is signed as a text of its own."""
    left_out = SET_FOR_EACH_RUN | (OF_ANOTHER_PYTHON if has_environment else frozenset())
    return {
        name: value
        for name, value in env.items()
        if name not in left_out and name != "PATH" and not (is_array and name.startswith(OF_MEMBERS))
    }


def env_digests(signed: Mapping[str, str], secrets: Collection[str]) -> dict[str, str]:
    """Return the digests of the variables *signed*: of the *secrets*, and of all others."""
    return {
        "env": _digest({name: value for name, value in signed.items() if name not in secrets}),
        "secret_env": _digest({name: value for name, value in signed.items() if name in secrets}),
    }


def _digest(env: Mapping[str, str]) -> str:
    text = json.dumps(env, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def member_index(statement: Mapping[str, Any], job_id: int) -> int | None:
    """Return the index of the job *job_id* in the array of *statement*, or None if it is no member."""
    index = job_id - int(statement["job"]) - 1
    return index if index in _array(statement).indexes else None


def member_command(statement: Mapping[str, Any], index: int) -> list[str]:
    """Return the command of the member *index* of the array of *statement*."""
    array = _array(statement)
    return [array.fill(word, index) for word in statement["argv"]]


def member_variables(statement: Mapping[str, Any], index: int) -> dict[str, str]:
    """Return the variables that the member *index* of the array of *statement* has of it."""
    return _array(statement).environment(index, int(statement["job"]))


def of_another_python(env: Mapping[str, str]) -> set[str]:
    """Return the names of those variables of *env* that a job with a named Python environment does not get."""
    return set(OF_ANOTHER_PYTHON.intersection(env))


def members_of(env: Mapping[str, str]) -> dict[str, str]:
    """Return those variables of *env* that only a member of an array has."""
    return {name: value for name, value in env.items() if name.startswith(OF_MEMBERS)}


def _array(statement: Mapping[str, Any]) -> Array:
    plain = statement["array"]
    axes: Sequence[str] = plain["axes"]
    return Array(indexes=Indexes.parse(plain["indexes"]), axes=tuple(map(Axis.parse, axes)))
