"""The ``notebook`` command: Jupyter as a job.

Other accounts of the host may reach the port of Jupyter, so its token is what protects it. The token goes to the job in
its environment, which only the same account can read, and from there into a file: kernels and terminals do not inherit
it. It is neither in a command line nor in the log, where Jupyter masks a token that it was given.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from typing import TYPE_CHECKING, Any

import click

from gpuqueue.cli.completion.candidates import files
from gpuqueue.cli.options.job_request import WithRest, interactive_options, note, submit_job, warn_if_alone
from gpuqueue.client import Client
from gpuqueue.errors import BadRequest, GpuQueueError, Refused
from gpuqueue.lazy.imports import later
from gpuqueue.model.job import Job, WaitReason
from gpuqueue.system.command_line import FAR_PYTHON, interpreter
from gpuqueue.text.sanitize import plain
from gpuqueue.text.units import format_duration, parse_duration

if TYPE_CHECKING:
    import secrets
    import subprocess

    from gpuqueue.cli.follow import attach, ctrl_c, status_line, updated_line
    from gpuqueue.cli.output import render
else:  # --help needs none of them
    attach = later("gpuqueue.cli.follow.attach")
    ctrl_c = later("gpuqueue.cli.follow.ctrl_c")
    render = later("gpuqueue.cli.output.render")
    secrets = later("secrets")
    status_line = later("gpuqueue.cli.follow.status_line")
    subprocess = later("subprocess")
    updated_line = later("gpuqueue.cli.follow.updated_line")

#: The variable of the token. Its name looks like a secret, so no job view has it and it goes when the job ends.
TOKEN = "JUPYTER_TOKEN"  # noqa: S105 - the name of a variable
#: Leaves the name of what a Python has of Jupyter in ``name``, or nothing.
_FIND = """\
import sys
from importlib.util import find_spec
sys.path[:] = [each for each in sys.path if each]  # a directory here may have the same name
name = next((each for each in ("jupyterlab", "notebook") if find_spec("jupyter_server") and find_spec(each)), "")
"""
#: What the job's Python runs. Its arguments are a port, 0 for any free one, and those of Jupyter. Tokens, keys and
#: sockets of kernels are in a directory of its own, because other accounts could read what kernels send by TCP.
_START = f"""{_FIND}
import os, runpy, socket, tempfile
if not name:
    sys.exit("no Jupyter here: " + sys.executable + " -m pip install jupyterlab")
token = os.environ.pop("{TOKEN}", "")
if not token:
    sys.exit("no token: start a new one with gpuqueue notebook")
port = int(sys.argv[1])
if not port:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
with tempfile.TemporaryDirectory(prefix="jupyter-", dir="/tmp") as place:
    os.environ.update(JUPYTER_RUNTIME_DIR=place, JUPYTER_TOKEN_FILE=place + "/token")
    with open(os.open(place + "/token", os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
        file.write(token)
    root = ["--allow-root"] if os.geteuid() == 0 else []
    sys.argv = [name, *root, "--ServerApp.port=" + str(port), *sys.argv[2:]]
    runpy.run_module(name, run_name="__main__", alter_sys=True)
"""
#: The address that Jupyter writes into its log when it is ready.
_ADDRESS = re.compile(rb"(https?://127\.0\.0\.1:(\d+)/\S*)\?token=")
#: Most bytes of the log that are kept to find the address in, and lines that are shown if there is none.
_KEPT_BYTES, _SHOWN_LINES, _WIDTH = 65536, 8, 200


@click.command(cls=WithRest)
@interactive_options
@click.option(
    "--idle", metavar="TIME", default="1h", show_default=True, help="End kernels, then Jupyter, after this time idle."
)
@click.option("--port", metavar="N", type=click.IntRange(1, 65535), help="Port on its host. Default: any free one.")
@click.option(
    "--python", metavar="PATH", help="Python with Jupyter. Default: the active environment's.", shell_complete=files
)
@click.pass_context
def notebook(ctx: click.Context, /, idle: str, port: int | None, python: str | None, **options: Any) -> None:
    """Start JupyterLab, or else Jupyter Notebook, on a device, and print its address.

    It is a job: it waits in the queue until the device has the memory, and Ctrl-C cancels it while it waits. It goes on
    after this command. It ends when nobody has used it for a time, at its time limit, or by gpuqueue cancel ID. The
    words after -- are options of Jupyter.

    \b
    Examples:
      gpuqueue notebook --mem 8G
      gpuqueue notebook --mem 8G --time 4h --idle 30m
    """  # noqa: D301 - \b is click's mark for lines to keep
    idle_s = str(max(1, round(parse_duration(idle))))
    token = secrets.token_hex(24)
    fixed = {"script": None, "requeue": False, "name": options["name"] or "notebook"}
    with Client() as client, ctrl_c.CtrlC() as interrupt:  # Ctrl-C must not leave a job whose token nobody knows
        program = _python(client, python, options["environment"])
        command = (program, "-c", _START, str(port or 0), *_settings(idle_s), *(ctx.obj or ()))
        job = submit_job(client, command, {**options, **fixed, "env": (*options["env"], f"{TOKEN}={token}")})
        with attach.leaving(lambda: None):
            try:
                note(f"job {job.id} queued, for at most {options['time_limit']}")
                warn_if_alone(client, job)
                address = _address(client, job, interrupt)
            except BaseException:
                with contextlib.suppress(GpuQueueError):
                    client.jobs.cancel(job.id)
                    note(f"job {job.id} cancelled")
                raise
        if address is None:
            _report_failure(client, job)
            sys.exit(1)
        url, its_port = address
        host = client.jobs.get(job.id).host
    unused = format_duration(float(idle_s))
    note(f"ready on {host}: it ends when nobody has used it for {unused}, or with gpuqueue cancel {job.id}")
    note(f"in a browser on another machine, type there first: {way_there(client.service, job.id, host, its_port)}")
    click.echo(f"{url}?token={token}")


def way_there(service: str | None, job_id: int, host: str | None, port: str) -> str:
    """Return the command that brings *port* of a job on *host* to a browser of another machine."""
    if service is not None and not service.startswith("unix:"):  # other machines of the user can reach it, too
        return f"gpuqueue forward {job_id} {port}"
    return f"ssh -N -L {port}:127.0.0.1:{port} {host}"


def _settings(idle_s: str) -> tuple[str, ...]:
    """Return the options of Jupyter: only this machine reaches it, and it ends *idle_s* seconds after its last use."""
    return (
        *("--no-browser", "--ServerApp.ip=127.0.0.1", "--ServerApp.port_retries=0", "--KernelManager.transport=ipc"),
        *(f"--ServerApp.shutdown_no_activity_timeout={idle_s}", f"--TerminalManager.cull_inactive_timeout={idle_s}"),
        *(f"--MappingKernelManager.cull_idle_timeout={idle_s}", "--MappingKernelManager.cull_interval=60"),
        "--MappingKernelManager.cull_connected=True",  # a forgotten tab is no use
    )


def _python(client: Client, python: str | None, environment: str | None) -> str:
    """Return the Python that has Jupyter.

    Raises:
        BadRequest: it is on this machine and has none, so that nobody waits for that.

    """
    if environment is not None:
        return "python"  # the first directory of the job's PATH is that of the environment
    url = client.settings.client_url
    if url is not None and not url.startswith("unix:"):
        return python or FAR_PYTHON
    found = python or interpreter(os.environ)
    try:
        has_it = subprocess.run([found, "-c", f"{_FIND}sys.exit(not name)"], stdin=subprocess.DEVNULL, check=False)
    except OSError as error:
        raise BadRequest(f"cannot start {found}: {error.strerror}") from None
    if has_it.returncode:
        raise BadRequest(f"no Jupyter here: {found} -m pip install jupyterlab, or name another Python with --python")
    return found


def _address(client: Client, job: Job, interrupt: ctrl_c.CtrlC) -> tuple[str, str] | None:
    """Wait until Jupyter has written its address and port into its log; None if it ends before.

    Raises:
        Refused: no host can start it, or its log cannot be read here.

    """
    line, written = updated_line.WaitLine(client), b""

    def seen(job: Job) -> None:
        line.seen(job)
        interrupt.check()

    def held(job: Job) -> None:
        if job.reason is WaitReason.CANNOT_START:
            raise Refused(f"job {job.id}: {plain(job.because or 'no host can start it')}")
        line.clear()
        status_line.report_held(job)

    tail, away = client.logs.tail(), status_line.report_away
    try:
        for chunk in client.logs.follow(job.id, tail, held=held, seen=seen, away=away, whole=True):
            written = (written + chunk)[-_KEPT_BYTES:]
            found = _ADDRESS.search(written)
            if found is not None:
                return found[1].decode(errors="replace"), found[2].decode()
    finally:
        line.clear()
    return None


def _report_failure(client: Client, job: Job) -> None:
    """Print how Jupyter ended before it was ready, with the last lines of its log."""
    record = client.jobs.show(job.id)
    for text in render.log_end(client.logs.end(record, render.LOG_BYTES), _SHOWN_LINES, _WIDTH):
        click.echo(f"  {text}", err=True)
    status_line.report_end(job.id, record)
