"""A job that the service has not signed."""

from __future__ import annotations

#: A program that submits a job of alice to the store, as a worker could that was taken over, and prints its id.
UNSIGNED = """
import sys
from gpuqueue.client import Client
from gpuqueue.model.job_spec import Account, JobSpec
account = Account(name="alice", uid=int(sys.argv[1]), host="x")
spec = JobSpec(argv=("touch", "evil"), cwd="/home/alice", account=account, mem_bytes=2**26, name="evil")
print(Client().queue.requests.submit(spec).id)
"""
