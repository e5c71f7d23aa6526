"""The ``join`` command."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from gpuqueue.cli.commands.install import confirm, planned, refuse_unless_root, report_done, show_all
from gpuqueue.client import joining
from gpuqueue.client.first_call import ServiceAddress
from gpuqueue.client.remote.credentials import token_in
from gpuqueue.console import print_message
from gpuqueue.errors import BadRequest, Refused
from gpuqueue.installation import plan
from gpuqueue.installation.services import listening
from gpuqueue.installation.site import CONFIG, TICKET_KEY, SystemSite
from gpuqueue.installation.steps import Joining, steps_of_host
from gpuqueue.model.access_token import parts_of
from gpuqueue.model.joining import Joined
from gpuqueue.settings.credentials import origin_of
from gpuqueue.settings.parsers import read_host
from gpuqueue.system.process import installed

#: Most characters that are read as a token, and most bytes as a certificate.
_MOST, _MOST_CA_BYTES = 1000, 1024 * 1024
USERS_GROUP = "gpuqueue-users"


@click.command()
@click.argument("url", metavar="URL")
@click.option("--token-file", type=click.Path(path_type=Path), metavar="FILE", help="File with the token of this host.")
@click.option("--token", metavar="TEXT", help="The token, which other users can then see; - reads standard input.")
@click.option("--ca", type=click.Path(path_type=Path), metavar="FILE", help="Certificate of the service's authority.")
@click.option(
    "--ticket-key",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Copy of the service's key: only jobs that it has signed start here.",
)
@click.option("--account", default="gpuqueue", show_default=True, help="Account of the workers.")
@click.option("--group", help=f"Group whose members may run jobs. [default: that of the site, or {USERS_GROUP}]")
@click.option("--pam-service", metavar="NAME", help="PAM service that opens a session for each run; none: no session.")
@click.option("--dry-run", is_flag=True, help="Print what would be done, and do nothing.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@click.option("--force", is_flag=True, help="Replace units that differ.")
def join(  # noqa: PLR0913 - one for each option
    url: str,
    token_file: Path | None,
    token: str | None,
    ca: Path | None,
    ticket_key: Path | None,
    account: str,
    group: str | None,
    pam_service: str | None,
    *,
    dry_run: bool,
    yes: bool,
    force: bool,
) -> None:
    """Add this machine, as root, to the GPU hosts of the service at URL, which is https://HOST:PORT.

    Prints what it will do, and asks. What is there is left alone: a second join changes nothing, and with another token
    only the token. The host gets its name from the token: make one with gpuqueue token create --host NAME, on the
    machine of the service. Without an option, the token is asked for, or read from standard input.

    \b
    Examples:
      gpuqueue join https://gpu.example.org:8443 --token-file token --dry-run
      gpuqueue join https://gpu.example.org:8443 --token-file token
      gpuqueue join https://gpu:8443 --token-file token --ca ca.pem --yes
    """  # noqa: D301 - \b is click's mark for lines to keep
    origin_of(url)
    if not dry_run:
        refuse_unless_root("join")
    service = ServiceAddress(
        url=url.rstrip("/"), token=_token(token_file, token), ca=ca, naming="give --ca, a file with"
    )
    ca_text = None if ca is None else _certificate(ca)
    found = joining.join(service, dry_run=True)
    read_host(found.settings.host)
    pam = plan.pam_service(pam_service)
    key = None if ticket_key is None else _key(ticket_key)
    site = _site(account, group or found.settings.group or USERS_GROUP, pam, service.url, has_key=key is not None)
    states = planned(site, steps_of_host(site, _joining(service, ca_text, found, key), force=force))
    if not show_all(states) or dry_run:
        return
    confirm(yes=yes)
    found = joining.join(service, dry_run=False)
    steps = steps_of_host(site, _joining(service, ca_text, found, key), force=force)
    plan.install(site, planned(site, steps), joined=service.url)
    report_done(site)
    print_message("gpuqueue", f"this is host {found.settings.host}; gpuqueue gpus lists its devices once it is up")


def _joining(service: ServiceAddress, ca_text: str | None, found: Joined, key: str | None) -> Joining:
    return Joining(url=service.url, token=service.token, ca=ca_text, found=found, ticket_key=key)


def _key(path: Path) -> str:
    """Return the text of the key in *path*.

    Raises:
        BadRequest: it cannot be read, or is no key.

    """
    from gpuqueue.model.ticket import read_key  # noqa: PLC0415 - only with --ticket-key

    try:
        return f"{read_key(path).hex()}\n"
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise BadRequest(f"{path} is no copy of the {TICKET_KEY} of the service: {reason}") from None


def _site(account: str, group: str, pam: str, url: str, *, has_key: bool) -> SystemSite:
    """Return what this machine will be.

    Raises:
        BadRequest: a name cannot be used.
        Refused: this machine runs a service, has another installation, or cannot run jobs as their submitters.

    """
    programs = Path(installed("gpuqueue-worker")).parent
    signs = has_key or TICKET_KEY.exists()  # a host keeps the key that an earlier join has brought
    site = SystemSite(
        account=account, group=group, programs=programs, pam_service=pam, serves=False, has_ticket_key=signs
    )
    site.check()
    plan.refuse_unsafe(site.programs)
    plan.refuse_other_installation(site, url)
    record = plan.Record.load()
    if "the service" in listening():
        raise Refused("a service of gpuqueue runs on this machine: only other machines join it")
    if CONFIG.exists() and (record is None or not record.joined):
        raise Refused(f"{CONFIG} is there, and is not of a host that has joined: move it away")
    return site


def _token(path: Path | None, text: str | None) -> str:
    """Return the token from a file, from the command line, from standard input or as it is typed.

    Raises:
        BadRequest: it is no token, it is given twice, or others may read its file.

    """
    if path is not None and text is not None:
        raise BadRequest("--token-file and --token exclude each other: give one of them")
    if path is not None and str(path) != "-":
        found = token_in(path)
    elif text is not None and text != "-":
        print_message("gpuqueue", "other users can see the token among the words of this command: use --token-file")
        found = text
    elif path is None and text is None and sys.stdin.isatty():
        found = str(click.prompt("Access token of this host", hide_input=True, err=True))
    else:
        found = sys.stdin.read(_MOST)
    if parts_of(found.strip()) is None:
        raise BadRequest("that is no access token: it begins with gq_ and has 55 characters")
    return found.strip()


def _certificate(path: Path) -> str:
    """Return the certificate in *path*.

    Raises:
        BadRequest: it cannot be read, or is no certificate.

    """
    import ssl  # noqa: PLC0415 - slow to import, and not needed for --help

    try:
        with path.open("rb") as file:
            text = file.read(_MOST_CA_BYTES).decode("ascii")
        ssl.create_default_context().load_verify_locations(cadata=text)
    except (OSError, ValueError) as error:
        raise BadRequest(f"{path} is no certificate (PEM) that can be used: {error}") from None
    return text
