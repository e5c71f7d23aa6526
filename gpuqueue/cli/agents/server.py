"""Speaks the Model Context Protocol at standard input and output, with the official SDK. Needs the extra ``mcp``."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import anyio
import mcp_types as types
from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server

from gpuqueue.cli.agents.limits import AgentLimits
from gpuqueue.cli.agents.tools import CHANGES, Agent, Tool, bounded, tools
from gpuqueue.client import Client
from gpuqueue.errors import BadRequest, DryRunFailed, GpuQueueError
from gpuqueue.text.sanitize import in_one_line
from gpuqueue.version import VERSION


def serve(limits: AgentLimits, instructions: str) -> None:
    """Serve one agent until it closes standard input. *instructions* say to it how to use the tools."""
    anyio.run(_serve, server(limits, tools(limits), instructions))


def server(limits: AgentLimits, known: Mapping[str, Tool], instructions: str) -> Any:
    """Return the server of the tools *known*."""
    listed = [
        types.Tool(
            name=name,
            description=tool.purpose,
            input_schema=tool.parameters,
            annotations=types.ToolAnnotations(read_only_hint=name not in CHANGES, destructive_hint=name == "cancel"),
        )
        for name, tool in known.items()
    ]

    async def list_tools(_context: Any, _params: Any) -> Any:
        return types.ListToolsResult(tools=listed)

    async def call_tool(_context: Any, params: Any) -> Any:
        work = partial(called, known, limits, params.name, params.arguments or {})
        text, failed = await anyio.to_thread.run_sync(work, abandon_on_cancel=True)
        return types.CallToolResult(content=[types.TextContent(text=text)], is_error=failed)

    about = {"version": VERSION, "instructions": instructions}
    return Server("gpuqueue", **about, on_list_tools=list_tools, on_call_tool=call_tool)


def called(known: Mapping[str, Tool], limits: AgentLimits, name: str, arguments: Mapping[str, Any]) -> tuple[str, bool]:
    """Return the answer of the tool *name*, and whether it is an error: then it is one line."""
    try:
        if name not in known:
            raise BadRequest(f"there is no tool {name}: there are {', '.join(known)}")
        wrong = best_match(Draft202012Validator(known[name].parameters).iter_errors(arguments))
        if wrong is not None:
            raise BadRequest(f"{'.'.join(map(str, wrong.path)) or 'the arguments'}: {wrong.message}")
        with Client() as client:
            return bounded(known[name].call(Agent(client, limits), **arguments)), False
    except (GpuQueueError, OSError) as error:
        trace = f"{error.trace}\n" if isinstance(error, DryRunFailed) and error.trace else ""
        return bounded(trace + in_one_line(str(error))), True


async def _serve(served: Any) -> None:
    async with stdio_server() as (incoming, outgoing):
        await served.run(incoming, outgoing, served.create_initialization_options())
