"""The argument ID of the commands for one job."""

from __future__ import annotations

import click

from gpuqueue.cli.completion.candidates import live_ids
from gpuqueue.cli.output.arrays import JobNameType

job_id = click.argument("job_id", metavar="ID", type=JobNameType(), shell_complete=live_ids())
