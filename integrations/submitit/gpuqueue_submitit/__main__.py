"""The command of a job: ``python -m gpuqueue_submitit FUNCTION FOLDER``.

It runs what is pickled in FOLDER for this job. FUNCTION is its name: people see it in the queue, and the memory of
earlier runs is learned for each name.
"""

from __future__ import annotations

import sys

from submitit.core.submission import process_job

if __name__ == "__main__":
    process_job(sys.argv[2])
