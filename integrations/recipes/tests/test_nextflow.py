"""The recipe of docs/howto/nextflow.md, with the real Nextflow and a real queue.

NEXTFLOW names its program, else it is looked for on PATH. The workflows suit releases before and after 20, when
workflows became blocks.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from bounded import until
from site_of_one import Site

from gpuqueue.model.job import JobState

NEXTFLOW = os.environ.get("NEXTFLOW") or shutil.which("nextflow")
pytestmark = [
    pytest.mark.full,
    pytest.mark.timeout(600),
    pytest.mark.skipif(NEXTFLOW is None, reason="NEXTFLOW names no program, and PATH has no nextflow"),
]

PAGE = Path(__file__).resolve().parents[3] / "docs" / "howto" / "nextflow.md"
#: The first major version whose workflows are blocks.
OF_BLOCKS = 20
FAILS = """
process train {
  label 'gpu'
  errorStrategy 'retry'
  maxRetries 1

  script:
  '''
  #!/usr/bin/env python3
  import os, sys
  print("job", os.environ["GPUQUEUE_JOB_ID"])
  sys.exit(7)
  '''
}
"""
TWO = """
process ends {
  label 'gpu'

  script:
  '''
  while [ ! -e $START/started ]; do sleep 0.1; done
  exit 3
  '''
}

process goes {
  label 'gpu'

  script:
  '''
  touch $START/started
  sleep 500
  '''
}
"""


def start(queue: Site, place: Path, text: str, *processes: str) -> subprocess.Popen[str]:
    """Start Nextflow with a workflow of these processes and the configuration of the page."""
    text += "".join(f"\nworkflow {{ {'; '.join(f'{name}()' for name in processes)} }}\n" if _has_workflows() else ())
    (place / "main.nf").write_text(text)
    config = PAGE.read_text().split("```groovy\n")[1].split("```")[0].replace("'6G'", "'100M'")
    (place / "nextflow.config").write_text(config)
    return subprocess.Popen(
        [str(NEXTFLOW), "run", "main.nf"],
        cwd=place,
        env={**queue.environ, "START": str(place), "NXF_HOME": str(place / "home"), "NXF_OFFLINE": "true"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def _has_workflows() -> bool:
    """Return whether this release knows the block ``workflow``, and needs it."""
    words = subprocess.run(
        [str(NEXTFLOW), "-v"], capture_output=True, text=True, check=True, timeout=120
    ).stdout.split()
    return int(words[2].split(".")[0]) >= 20


def ended(queue: Site, tag: str = "nextflow") -> list[tuple[str, JobState]]:
    """Return the names and the states of the jobs of workflows, the oldest first, once all of them have ended."""

    def jobs() -> list[tuple[str, JobState]]:
        records = queue.client.history.search(tags=[tag], reverse=True)
        return [(str(record.job.spec.name), record.job.state) for record in records]

    until(lambda: all(state.is_end for _, state in jobs()), what="the end of all jobs")
    return jobs()


def test_a_task_runs_as_a_job_and_ends_with_its_exit_code(running_queue: Site, tmp_path: Path) -> None:
    """A script in any language does. A failure is retried by Nextflow, which reads what the job has written."""
    shown, _ = start(running_queue, tmp_path, FAILS, "train").communicate(timeout=300)

    assert "terminated with an error exit status (7)" in shown
    logs = [path.read_text() for path in sorted(tmp_path.glob("work/*/*/.command.log"))]
    assert 2 == len(logs)
    assert all("job " in log for log in logs)
    assert [("train", JobState.FAILED)] * 2 == ended(running_queue)[-2:]


@pytest.mark.parametrize("how", ["a failure of another task", "SIGTERM"])
def test_what_nextflow_ends_is_cancelled(running_queue: Site, tmp_path: Path, how: str) -> None:
    """No job goes on that nobody waits for."""
    nextflow = start(running_queue, tmp_path, TWO, *(["goes"] if how == "SIGTERM" else ["ends", "goes"]))
    until(lambda: (tmp_path / "started").exists() or nextflow.poll() is not None, what="the job", timeout_s=200)
    if how == "SIGTERM":
        nextflow.send_signal(signal.SIGTERM)
    shown, _ = nextflow.communicate(timeout=200)

    assert "Killing" in shown, shown
    assert ("goes", JobState.CANCELLED) in ended(running_queue)[-2:]
