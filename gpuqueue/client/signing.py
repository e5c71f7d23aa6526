"""Signs the requests of jobs for the launchers of the hosts, and checks what the queue has of signed jobs.

Only the service of a site in system mode has a key (setting ``ticket_key_file``). What the queue and the history have
of a job may come from a worker that was taken over. So nothing that was read there is signed again before its first
ticket is checked.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuqueue.errors import Refused
from gpuqueue.model import ticket
from gpuqueue.model.code_snapshot import CodeSnapshot
from gpuqueue.model.environment import is_secret

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuqueue.model.job import Job
    from gpuqueue.model.job_spec import JobSpec
    from gpuqueue.model.repeating import Repetition


class Signer:
    """Signs requests with the key of a site."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    @classmethod
    def load(cls, path: Path) -> Signer:
        """Return the signer with the key in *path*.

        Raises:
            Refused: the file cannot be read, or holds no key.

        """
        try:
            return cls(ticket.read_key(path))
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise Refused(
                f"the key of the tickets {path} cannot be used: {reason} (setting ticket_key_file)"
            ) from error

    def signed(self, spec: JobSpec, job_id: int) -> JobSpec:
        """Return *spec*, the request of the new job *job_id*, with its ticket. It must come from its submitter."""
        begin_at = spec.waits.begin_at
        starts_s = time.time() if begin_at is None else max(time.time(), begin_at.timestamp())
        return replace(spec, ticket=ticket.sign(self._key, _statement(spec, job_id, int(starts_s) + ticket.VALID_S)))

    def command(self, statement: Mapping[str, Any]) -> str:
        """Return the signature of a second command in a run. It must come from the owner of the job."""
        return ticket.sign_command(self._key, statement)

    def sealed(self, made: Repetition) -> Repetition:
        """Return the repeating job *made* with its seal. It must come from its owner, or have been checked."""
        return replace(made, seal=ticket.seal(self._key, made.statement))

    def is_sealed(self, kept: Repetition) -> bool:
        """Return whether *kept* is what its owner has asked for."""
        return ticket.is_seal(self._key, kept.statement, kept.seal)

    def renewed(self, spec: JobSpec, job_id: int) -> JobSpec:
        """Return *spec*, the changed request of a queued job, with a ticket that is valid for longer.

        A job without a genuine ticket gets none: nobody knows whether its submitter asked for it.
        """
        known = None if spec.ticket is None else ticket.opened(self._key, spec.ticket)
        is_genuine = known is not None and known == _statement(spec, job_id, known["until"])
        return self.signed(spec, job_id) if is_genuine else spec

    def check(self, job: Job, name: object, env: Mapping[str, str] | None) -> None:
        """Check that *job* is what the service has signed, before it runs again. *name* is its name in messages.

        *env* is the environment that the queue or the history has of it, perhaps without its secrets; None: it has
        none.

        Raises:
            Refused: it was not signed, or differs.

        """
        if job.spec.ticket is None:
            raise Refused(f"job {name} was submitted before this service signed its jobs: submit it again")
        statement = ticket.opened(self._key, job.spec.ticket)
        if statement is None or not _is_of(statement, job) or not (env is None or _has_env(statement, env)):
            raise Refused(f"what the queue has of job {name} is not what its submitter asked for: submit it again")


def request_of(spec: JobSpec) -> dict[str, Any]:
    """Return what a ticket says of *spec* besides its environment."""
    code = None if spec.snapshot is None else CodeSnapshot.parse(spec.snapshot)
    array = spec.array
    return {
        "user": spec.account.name,
        "uid": spec.account.uid,
        "argv": list(spec.argv),
        "cwd": spec.cwd,
        "umask": spec.umask,
        "pty": spec.pty is not None,
        "typed": spec.pty is not None and spec.pty.typed,
        "python": spec.interpreter is not None,
        "environment": spec.environment,
        "code": None if code is None else [code.address, code.directory],
        **({"outputs": [spec.output, spec.error]} if spec.output or spec.error else {}),
        **({"container": [spec.container, *spec.binds]} if spec.container is not None else {}),
        "array": None
        if array is None
        else {"indexes": str(array.indexes), "axes": [str(each).strip() for each in array.axes]},
    }


def _statement(spec: JobSpec, job_id: int, until: int) -> dict[str, Any]:
    secrets = [name for name in spec.env if is_secret(name)]
    return ticket.statement_of(job_id, request_of(spec), spec.env, secrets=secrets, until=until)


def _is_of(statement: Mapping[str, Any], job: Job) -> bool:
    """Return whether *statement* is about *job*, apart from the environment."""
    request, job_id = request_of(job.spec), job.id
    if job.member is not None:
        index, job_id = job.member.index, job.member.array_id
        if statement["array"] is None or ticket.member_index(statement, job.id) != index:
            return False
        if request["argv"] != ticket.member_command(statement, index):
            return False
        request |= {"argv": statement["argv"], "array": statement["array"]}
    optional = {"outputs": None, "container": None}
    stated = {name: statement.get(name) for name in {*request, *optional}}
    return stated == {**optional, **request} and bool(statement["job"] == job_id)


def _has_env(statement: Mapping[str, Any], env: Mapping[str, str]) -> bool:
    """Return whether *env*, perhaps without its secrets, is the environment in *statement*."""
    secrets = statement["secrets"]
    signed = ticket.signed_part(
        env, is_array=statement["array"] is not None, has_environment=statement["environment"] is not None
    )
    digests = ticket.env_digests(signed, secrets)
    is_whole = any(name in signed for name in secrets)
    has_same_secrets = not is_whole or digests["secret_env"] == statement["secret_env"]
    return bool(digests["env"] == statement["env"] and has_same_secrets and env.get("PATH") == statement["path"])
