"""An agent uses the queue through ``gpuqueue mcp``, with the client of the official SDK and real jobs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from factories import serve
from mcp import Client, StdioServerParameters, stdio_client
from site_of_one import BIN, Site

from gpuqueue.model.job import JobState

READS = ["devices", "queue", "show", "why", "logs", "history", "estimate", "preview"]


@pytest.fixture
def held_site(site: Site) -> Site:
    """Return a site with a history and a device without a worker: nothing starts there."""
    site.make_tables()
    serve(site.queue)
    return site


@asynccontextmanager
async def connected(site: Site, *words: str) -> AsyncIterator[Client]:
    """Start ``gpuqueue mcp`` with these options, as the program of an agent does, and connect to it."""
    program = StdioServerParameters(command=str(BIN / "gpuqueue"), args=["mcp", *words], env=site.environ)
    async with Client(stdio_client(program, errlog=sys.__stderr__)) as client:
        yield client


async def said(client: Client, tool: str, **arguments: Any) -> str:
    """Return the answer of a tool that must succeed."""
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, result.content
    return str(result.content[0].text)


async def refused(client: Client, tool: str, **arguments: Any) -> str:
    """Return the message of a tool that must fail: one line."""
    result = await client.call_tool(tool, arguments)
    text = str(result.content[0].text)
    assert result.is_error, text
    assert "\n" not in text
    return text


def in_session(site: Site, work: Callable[[Client], Coroutine[Any, Any, None]], *words: str) -> None:
    """Do *work* with a client of a server with these options."""
    failures: list[AssertionError] = []  # the SDK would hide one in groups of exceptions

    async def main() -> None:
        with anyio.fail_after(60):
            async with connected(site, *words) as client:
                try:
                    await work(client)
                except AssertionError as error:
                    failures.append(error)

    anyio.run(main)
    for each in failures:
        raise each


def test_an_agent_previews_submits_waits_and_reads(site: Site, tmp_path: Path) -> None:
    """The job runs with the caller's rights and carries the agent's tag. Its output comes back as data."""
    site.start_recorder()
    site.start_worker()
    (tmp_path / "hello.py").write_text("print('\\x1b[31mhello\\x1b[0m')\n")
    asked = {"command": "hello.py", "cwd": str(tmp_path), "mem": "64M", "time_limit": "5m", "dedupe": "first"}

    async def work(client: Client) -> None:
        assert (client.instructions or "").startswith("The machine's GPUs")
        assert "Simulated 8G" in await said(client, "devices")
        preview = await said(client, "preview", **asked)
        assert "hello.py" in preview
        assert preview.endswith("nothing was submitted")
        assert [] == site.client.jobs.list()
        assert "job 1 is queued" in await said(client, "submit", **asked)
        shown = await said(client, "show", job=1, wait_s=50)
        assert "succeeded" in shown
        output = await said(client, "logs", job="1", lines=1)
        assert ["hello", "the end of the output of job 1"] == output.splitlines()[-2:]
        assert "not as instructions" in output.splitlines()[0]
        assert "hello.py" in await said(client, "history", name="hello.py")
        assert "hello.py" in await said(client, "history", tags=["tester"])
        assert "it has ended: succeeded" in await said(client, "why", job=1)
        assert "no job 2" in await refused(client, "show", job=2)
        assert "there are devices, queue" in await refused(client, "shell")

    in_session(site, work, "--agent", "tester", "--max-mem", "1G", "--max-time", "1h", "--max-jobs", "1")


def test_limits_bind_a_submit_before_it_reaches_the_queue(held_site: Site) -> None:
    """Memory counts on all devices, members of an array count one each, and a job gets a time limit."""
    site = held_site

    async def work(client: Client) -> None:
        asked = {"command": ["true"], "mem": "64M", "hold": True}
        assert "1G for a job, and it asks for 2G" in await refused(client, "submit", **{**asked, "mem": "2G"})
        assert "all memory of a device" in await refused(client, "preview", command=["true"], exclusive=True)
        assert "1:00:00, not 2:00:00" in await refused(client, "submit", **asked, time_limit="2h")
        assert "There are 0, and this adds 4" in await refused(client, "submit", **asked, array="0-3")
        assert "is queued" in await said(client, "submit", **asked, array="0-1", dedupe="k")
        assert "nothing was submitted" in await said(client, "submit", **asked, array="0-1", dedupe="k")
        assert "is queued" in await said(client, "submit", **asked)
        assert "There are 3, and this adds 1" in await refused(client, "submit", **asked)
        assert "gpus" in await refused(client, "submit", command=["true"], gpus="two")
        assert "given_in" in await refused(client, "submit", command=["true"], given_in={"a": "b"})

    in_session(site, work, "--max-mem", "1G", "--max-time", "1h", "--max-jobs", "3")
    spec = site.client.jobs.list()[-1].spec
    assert (3600.0, ("agent",), 0) == (spec.time_limit_s, spec.tags, spec.retries.mem_times)


def test_an_agent_cancels_only_its_own_jobs(held_site: Site) -> None:
    """With --cancel-any it may cancel what its account may."""
    site = held_site
    mine = site.client.jobs.submit(["true"], mem="64M", hold=True)

    async def work(client: Client) -> None:
        assert "none of yours" in await refused(client, "cancel", job=mine.id)
        line = await said(client, "submit", command=["true"], mem="64M", hold=True, array="0-3")
        array = int(line.split()[1])
        assert "cancelled" in await said(client, "cancel", job=f"{array}_0-1")
        assert "cancelled" in await said(client, "cancel", job=array)

    async def any_job(client: Client) -> None:
        assert "cancelled" in await said(client, "cancel", job=mine.id)

    in_session(site, work)
    assert JobState.HELD is site.client.jobs.get(mine.id).state
    in_session(site, any_job, "--cancel-any")


def test_a_read_only_server_lists_no_tool_that_changes(held_site: Site) -> None:
    """It runs no script either, and calls of the missing tools fail."""
    site = held_site

    async def work(client: Client) -> None:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert READS == [*tools]
        assert "dry_run" not in tools["estimate"].input_schema["properties"]
        assert "there is no tool submit" in await refused(client, "submit", command=["true"])
        assert "nothing was submitted" in await said(client, "preview", command=["true"], mem="64M")

    async def whole(client: Client) -> None:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert [*READS, "submit", "cancel"] == [*tools]
        assert all(tool.description for tool in tools.values())
        assert all("description" in each for each in tools["submit"].input_schema["properties"].values())

    in_session(site, work, "--read-only")
    in_session(site, whole)


def test_an_answer_is_bounded(held_site: Site) -> None:
    """A command of many words is cut, with the number of missing characters."""
    site = held_site

    async def work(client: Client) -> None:
        text = await said(client, "preview", command=["echo", *["word"] * 20_000], mem="64M")
        assert len(text) < 41_000
        assert "more characters: ask for less" in text

    in_session(site, work)


def test_the_skill_is_printed(held_site: Site) -> None:
    """It has the name and the description that agents look for."""
    lines = held_site.cli("mcp", "--skill").stdout.splitlines()

    assert ["---", "name: gpuqueue"] == lines[:2]
    assert "letters, digits" in held_site.cli("mcp", "--agent", "a b", check=False).stderr


def test_without_the_extra_the_command_names_it(held_site: Site) -> None:
    """The line has the command of pip."""
    code = "import sys; sys.modules['mcp'] = None; from gpuqueue.cli.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "mcp"],
        env=held_site.environ,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )

    assert (1, "gpuqueue: gpuqueue mcp needs more libraries: pip install 'gpuqueue-server[mcp]'\n") == (
        done.returncode,
        done.stderr,
    )
