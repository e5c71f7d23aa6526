"""A workflow runs by the command ``snakemake``, is stopped, fails and goes on, on a real queue."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from bounded import until
from site_of_one import Site

from gpuqueue.model.job import Job, JobState
from gpuqueue.model.run import Record


class Workflow:
    """A directory with a workflow, and the program that runs it."""

    def __init__(self, home: Path, site: Site) -> None:
        self.home, self.site = home, site
        self.environ = dict(site.environ)

    def write(self, rule: str, shell: str, *more: str) -> None:
        """Write a workflow with one rule, which makes ``out``."""
        lines = ["rule all:", '    input: "out"', f"rule {rule}:", '    output: "out"', *more, f"    shell: {shell!r}"]
        (self.home / "Snakefile").write_text("\n".join(lines) + "\n")

    def start(self, *words: str) -> subprocess.Popen[str]:
        """Start Snakemake with the executor of the queue."""
        command = [sys.executable, "-m", "snakemake", "--executor", "gpuqueue", "--jobs", "2"]
        return subprocess.Popen(
            [*command, "--seconds-between-status-checks", "1", "--latency-wait", "5", *words],
            cwd=self.home,
            env=self.environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, *words: str) -> tuple[int, str]:
        """Run Snakemake to its end, and return its exit code and its output."""
        process = self.start(*words)
        output = process.communicate(timeout=120)[0]
        return process.returncode, output

    def kill(self, process: subprocess.Popen[str]) -> None:
        """Kill Snakemake, as a crash does, and remove the lock that it leaves."""
        process.kill()
        process.communicate()
        assert 0 == self.run("--unlock")[0]

    def jobs(self) -> list[Record]:
        """Return the jobs of the queue with this workflow's directory, the newest first."""
        return [each for each in self.site.client.history.search() if each.job.spec.cwd == str(self.home)]

    def only_job(self, *states: JobState) -> Job:
        """Wait until there is a job in one of *states*, which must be the only one."""

        def there() -> Job | None:
            jobs = [each.job for each in self.jobs() if each.job.state in states]
            return jobs[0] if jobs else None

        job = until(there, what=f"a job in {states}")
        assert job is not None
        assert 1 == len(self.jobs())
        return job


@pytest.fixture
def workflow(running_queue: Site, tmp_path: Path) -> Workflow:
    """Return an empty workflow."""
    return Workflow(tmp_path.resolve(), running_queue)


def test_resources_of_a_rule_become_options_of_the_job(workflow: Workflow) -> None:
    """A resource without our prefix has the meaning that other executors give it. The profile stays outside."""
    profile = workflow.home / "profile"
    profile.mkdir()
    (profile / "config.yaml").write_text("executor: gpuqueue\njobs: 1\n")
    workflow.environ["SNAKEMAKE_PROFILE"] = str(profile)
    resources = 'gpu=1, gpuqueue_mem="64M", runtime="2h", gpuqueue_priority="high", gpuqueue_tags="lr,night"'
    workflow.write("train", "printenv SNAKEMAKE_PROFILE > {output} || touch {output}", f"    resources: {resources}")

    code, output = workflow.run()

    assert 0 == code, output
    job = workflow.only_job(JobState.SUCCEEDED)
    spec = job.spec
    assert ("train", 64 * 1024**2, 1, 7200.0) == (spec.name, spec.mem_bytes, spec.gpus, spec.time_limit_s)
    assert ("high", {"snakemake", "lr", "night"}) == (str(spec.priority), {*job.tags})
    assert f"is job {job.id} of the queue" in output
    assert "" == (workflow.home / "out").read_text()


def test_a_failed_job_is_named_with_its_ending_and_its_log(workflow: Workflow) -> None:
    """The log has a name in the directory of the workflow."""
    workflow.write("train", "echo broken; exit 3", '    resources: gpuqueue_mem="64M"')

    code, output = workflow.run("--show-failed-logs")

    job = workflow.only_job(JobState.FAILED)
    log = workflow.home / ".snakemake" / "gpuqueue_logs" / f"{job.id}.log"
    assert 0 != code
    assert f"Job {job.id} of the queue has failed: exit 1. See gpuqueue show {job.id}." in output
    assert str(log) in output
    assert "broken" in log.read_text()


def test_a_resource_that_the_queue_does_not_know_is_refused(workflow: Workflow) -> None:
    """The line names those that there are. Nothing is submitted."""
    workflow.write("train", "touch {output}", '    resources: gpuqueue_memory="64M"')

    code, output = workflow.run()

    assert 0 != code
    assert "no resource of gpuqueue: gpuqueue_memory. There are" in output
    assert [] == workflow.jobs()


def test_ctrl_c_cancels_the_jobs(workflow: Workflow) -> None:
    """No job goes on without its workflow."""
    workflow.write("train", "sleep 300; touch {output}", '    resources: gpuqueue_mem="64M"')
    process = workflow.start()
    assert process.stdout is not None
    next(line for line in process.stdout if "of the queue" in line)
    job = workflow.only_job(JobState.RUNNING)

    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)

    workflow.site.until_state(job.id, JobState.CANCELLED)


@pytest.mark.parametrize(("first", "words"), [("true", ()), ("echo one > {output}", ("--rerun-incomplete",))])
def test_a_restarted_snakemake_goes_on_with_its_job(workflow: Workflow, first: str, words: tuple[str, ...]) -> None:
    """After a kill of Snakemake the job runs on. The next Snakemake waits for it, and submits nothing twice.

    If a part of the output is there, Snakemake wants an option, and forgets the job. It is found by its key.
    """
    shell = f"{first}; touch begun; while [ ! -e go ]; do sleep 0.1; done; echo two >> {{output}}"
    workflow.write("train", shell, '    resources: gpuqueue_mem="64M"')
    process = workflow.start()
    until((workflow.home / "begun").exists, what="the job has begun")
    workflow.kill(process)

    process = workflow.start(*words)
    assert process.stdout is not None
    line = next(line for line in process.stdout if "earlier Snakemake" in line)
    (workflow.home / "go").touch()
    output = process.communicate(timeout=120)[0]

    assert 0 == process.returncode, output
    job = workflow.only_job(JobState.SUCCEEDED)
    assert f"has submitted this as job {job.id}, which is running" in line
    assert ("one\ntwo\n" if words else "two\n") == (workflow.home / "out").read_text()


def test_a_job_that_succeeded_meanwhile_is_not_repeated(workflow: Workflow) -> None:
    """Its success is read from the queue."""
    shell = "touch begun; while [ ! -e go ]; do sleep 0.1; done; touch {output}"
    workflow.write("train", shell, '    resources: gpuqueue_mem="64M"')
    process = workflow.start()
    until((workflow.home / "begun").exists, what="the job has begun")
    workflow.kill(process)
    (workflow.home / "go").touch()
    workflow.only_job(JobState.SUCCEEDED)

    code, output = workflow.run()

    assert 0 == code, output
    workflow.only_job(JobState.SUCCEEDED)
