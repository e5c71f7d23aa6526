"""The settings of a worker host that has joined the service of a site on another machine. Pure."""

from __future__ import annotations

from dataclasses import field
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

from gpuqueue.installation.site import ETC, RUNS, STATE
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.model.joining import Joined, common_of, lines_of

#: The token of this host, and the certificates of the authorities of service and store.
TOKEN, SERVICE_CA, STORE_CA = ETC / "host-token", ETC / "service-ca.pem", ETC / "store-ca.pem"
#: The parameter of a store's address that names the certificate of its authority.
_CA_PARAMETER = "ssl_ca_certs"

_HEAD = """\
# Settings of gpuqueue on this host, which has joined a service. Written once by `gpuqueue join`, then yours.
# After a change: systemctl restart gpuqueue
"""
_SHARED = "\n# The same on all hosts of the site:\n"


@dataclass(frozen=True, kw_only=True, slots=True)
class Joining:
    """What a host needs to join: the service's address, the host's token, and what the service has said.

    ``ca`` is the certificate (PEM) of the authority of the service. None: an authority that this machine trusts.
    ``ticket_key`` is the key of the service, which root has copied. None: the one that is here stays, if there is one.
    """

    url: str
    token: str = field(repr=False)
    ca: str | None
    found: Joined
    ticket_key: str | None = field(default=None, repr=False)


def config_text(joining: Joining) -> str:
    """Return the settings file."""
    shared = joining.found.settings
    own = {
        "host": shared.host,
        "state_dir": str(STATE),
        "runs_dir": str(RUNS),
        "run_as": "submitter",
        **({"redis_url": redis_url(joining.found)} if joining.found.redis_url else {}),
        "record": False,
        "service_url": joining.url,
        "service_token_file": str(TOKEN),
        **({} if joining.ca is None else {"service_ca": str(SERVICE_CA)}),
    }
    return f"{_HEAD}{lines_of(own)}{_SHARED}{lines_of(common_of(shared))}"


def redis_url(found: Joined) -> str:
    """Return the address of the store for this host: it names the copy of the authority's certificate here."""
    if found.redis_ca is None:
        return found.redis_url
    parts = urlsplit(found.redis_url)
    given = [(name, value) for name, value in parse_qsl(parts.query) if name != _CA_PARAMETER]
    query = urlencode([*given, (_CA_PARAMETER, str(STORE_CA))], safe="/", quote_via=quote)
    return urlunsplit(parts._replace(query=query))
