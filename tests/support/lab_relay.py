"""Carries connections from an address of a network namespace to a unix socket; with a certificate, it speaks TLS.

Run as a program: ADDRESS PORT SOCKET [CERTIFICATE KEY].
"""

from __future__ import annotations

import asyncio
import ssl
import sys
from contextlib import suppress


async def carry(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    """Carry bytes in one direction until the end."""
    with suppress(OSError):
        while chunk := await source.read(65536):
            sink.write(chunk)
            await sink.drain()
    with suppress(OSError, RuntimeError):
        sink.close()


async def serve(address: str, port: int, path: str, context: ssl.SSLContext | None) -> None:
    """Accept connections for ever."""

    async def meet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_unix_connection(path)
        except OSError:
            writer.close()
            return
        await asyncio.gather(carry(reader, far_writer), carry(far_reader, writer))

    server = await asyncio.start_server(meet, address, port, ssl=context)
    print("ready", flush=True)  # noqa: T201 - the lab waits for it
    async with server:
        await server.serve_forever()


def main(address: str, port: str, path: str, *certificate: str) -> None:
    """Serve one socket."""
    context = None
    if certificate:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*certificate)
    asyncio.run(serve(address, int(port), path, context))


if __name__ == "__main__":
    main(*sys.argv[1:])
