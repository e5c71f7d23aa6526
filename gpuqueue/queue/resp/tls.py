"""TLS: checks the certificate of the store, and presents a client certificate if the URL names one."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Mapping


def wrapped(plain: socket.socket, host: str, files: Mapping[str, str]) -> socket.socket:
    """Return *plain* with TLS, after a check of the store's certificate for *host*.

    Raises:
        OSError: the certificate is not valid, or *files* cannot be read; ssl.SSLError is a subclass.

    """
    context = ssl.create_default_context()
    if "ssl_ca_certs" in files or "ssl_ca_path" in files:
        context.load_verify_locations(cafile=files.get("ssl_ca_certs"), capath=files.get("ssl_ca_path"))
    if "ssl_certfile" in files:
        context.load_cert_chain(files["ssl_certfile"], files.get("ssl_keyfile"), files.get("ssl_password"))
    plain.getpeername()  # Python's ssl module would not close the socket of a connection that was reset before this
    return context.wrap_socket(plain, server_hostname=host)
