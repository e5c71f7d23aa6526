"""The ``serve`` command."""

from __future__ import annotations

from pathlib import Path

import click

from gpuqueue.console import print_message
from gpuqueue.errors import BadRequest, GpuQueueError, install_extra
from gpuqueue.settings.settings import SYSTEM_SOCKET, Settings

PORTS = range(65536)


@click.command()
@click.option("--socket", "path", metavar="PATH", help=f"Unix socket to listen at. Default: {SYSTEM_SOCKET}.")
@click.option("--no-socket", is_flag=True, help="Listen at no unix socket.")
@click.option("--listen", metavar="HOST:PORT", help="TCP address to listen at, besides the socket.")
@click.option("--tls-cert", metavar="FILE", type=click.Path(path_type=Path), help="Certificate chain for --listen.")
@click.option("--tls-key", metavar="FILE", type=click.Path(path_type=Path), help="Private key of the certificate.")
@click.option("--behind-proxy", is_flag=True, help="A proxy adds TLS: plain HTTP is accepted at --listen.")
def serve(
    path: str | None,
    listen: str | None,
    tls_cert: Path | None,
    tls_key: Path | None,
    *,
    no_socket: bool,
    behind_proxy: bool,
) -> None:
    """Run the HTTP service in the foreground until SIGTERM or Ctrl-C.

    Every account of this machine may connect to the socket; the kernel says which account it is. Calls over TCP need an
    access token.

    \b
    Examples:
      gpuqueue serve
      gpuqueue serve --socket /tmp/gpuqueue.sock
      gpuqueue serve --listen 0.0.0.0:8443 --tls-cert host.pem --tls-key host.key
    """  # noqa: D301 - \b is click's mark for lines to keep
    host, port = _address(listen)
    try:
        from gpuqueue.service import server  # noqa: PLC0415 - needs the extra, and is slow to import
        from gpuqueue.service.identity.site_identity import SiteIdentity  # noqa: PLC0415 - as above
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("gpuqueue"):
            raise
        raise GpuQueueError(f"the service needs more libraries: {install_extra('service')}") from error
    where = server.Listen(
        path=None if no_socket else Path(path or SYSTEM_SOCKET),
        host=host,
        port=port,
        certificate=tls_cert,
        key=tls_key,
        behind_proxy=behind_proxy,
    )
    places = [*([f"unix://{where.path}"] if where.path else []), *([f"{host}:{port}"] if host else [])]
    settings = Settings.load()
    server.serve(settings, SiteIdentity(settings), where, lambda: _report(places))


def _report(places: list[str]) -> None:
    print_message("gpuqueue", f"the service listens at {' and '.join(places)}")


def _address(text: str | None) -> tuple[str, int]:
    """Return the host and the port of ``--listen``, empty without it."""
    if text is None:
        return "", 0
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or int(port) not in PORTS:
        raise BadRequest(f"--listen {text}: write HOST:PORT, such as 127.0.0.1:8080")
    return host.strip("[]"), int(port)
