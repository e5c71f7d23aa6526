"""Adds to a new job how much earlier runs show that it will use its devices, for the placement ``least-busy``."""

from __future__ import annotations

from dataclasses import replace

from gpuqueue.client.connection import Connection
from gpuqueue.learning.program import program_of
from gpuqueue.learning.signature import Wanted
from gpuqueue.learning.utilisation import expected_utilisation
from gpuqueue.model.job_spec import JobSpec


def with_expected_utilisation(connection: Connection, spec: JobSpec) -> JobSpec:
    """Return *spec* with its expected utilisation, unchanged if the account's own earlier runs do not show it.

    A submit does not wait for a history that would have to be opened first (see past_runs.py).
    """
    program = program_of(spec.argv, spec.script, spec.cwd)
    runs = connection.past_runs.of(spec.account.name, program, needed=False)
    found = expected_utilisation(Wanted.of(spec), runs or ())
    return spec if found is None else replace(spec, expected_utilisation=found)
