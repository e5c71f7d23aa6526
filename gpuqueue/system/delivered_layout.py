"""The layout of the directory with what other hosts have delivered to the service of this machine.

::

    JOB/TOKEN/log, stderr           the output of a run, with holes where its host has cut it
    JOB/TOKEN/log.times, ...        its growth over time
    JOB/TOKEN/complete              an empty file: the run has ended, and its logs are whole
    JOB/TOKEN/results.tar           the files that the job asked to keep
    JOB/TOKEN/results.partial       the same while they arrive
    JOB/TOKEN/results.failed        why there are none
    JOB/TOKEN/results.removed       why there are none any more
    JOB/TOKEN/user                  a link to the name of the job's user, which is no file

All of it belongs to the service, with modes 0600 and 0700.
"""

from __future__ import annotations

from gpuqueue.lazy.imports import pattern

COMPLETE = "complete"
#: All but the second have the same names in a run directory.
RESULTS, PARTIAL, FAILED, REMOVED = "results.tar", "results.partial", "results.failed", "results.removed"
USER = "user"
#: A token of a run, which names a directory.
TOKEN = pattern(r"[0-9]{1,9}\.[A-Za-z0-9]{1,64}")
