"""The ``token`` command."""

from __future__ import annotations

from datetime import datetime, timezone

import click

from gpuqueue.cli.options.json_option import json_option, print_json
from gpuqueue.cli.output.render import Column, table_of, terminal_width
from gpuqueue.client import Client
from gpuqueue.console import print_message
from gpuqueue.model import validation
from gpuqueue.model.access_token import USUAL_SCOPES, AccessToken, TokenRequest
from gpuqueue.model.caller import CallerKind, Scope
from gpuqueue.text.sanitize import plain
from gpuqueue.text.units import parse_duration
from gpuqueue.words import values


@click.group()
def token() -> None:
    """Make, list and revoke the access tokens with which other machines use the service of this site.

    The commands work on the machine of the service: over its socket, or, without a service, on the history database of
    a site of your own.

    \b
    Examples:
      gpuqueue token create
      gpuqueue token list
      gpuqueue token revoke k3v9m2xq
    """  # noqa: D301 - \b is click's mark for lines to keep


@token.command()
@click.option("--name", metavar="TEXT", help="What the token is for, to find it in the list.")
@click.option(
    "--scope",
    "scopes",
    multiple=True,
    type=click.Choice([*map(str, Scope)]),
    help="What the token may do; may be given several times. Default: read and submit.",
)
@click.option(
    "--expires", metavar="TIME", default="90d", show_default=True, help="How long it is valid: 12h, 30d, or never."
)
@click.option("--user", metavar="NAME", help="Make it for another account of the machine. Only for root of it.")
@click.option("--host", metavar="NAME", help="Make it for a worker host, which has no scopes. Only for admins.")
def create(name: str | None, scopes: tuple[str, ...], expires: str, user: str | None, host: str | None) -> None:
    """Make an access token, and print it. It is shown this once.

    \b
    Examples:
      gpuqueue token create --name laptop
      gpuqueue token create --name dashboard --scope read --expires never
      gpuqueue token create --host nodeB --expires 365d
    """  # noqa: D301 - \b is click's mark for lines to keep
    wanted = TokenRequest(
        account=user,
        host=host,
        name="" if name is None else validation.name(name),
        scopes=frozenset(map(Scope, scopes)) or USUAL_SCOPES,
        lifetime_s=None if expires == "never" else parse_duration(expires),
    )
    with Client() as client:
        made = client.access.make_token(wanted)
    until = "does not expire" if made.token.expires_at is None else f"expires {values.when(made.token.expires_at)}"
    print_message("gpuqueue", f"token {made.token.id} of {_whose(made.token)} {until}; it is not shown again")
    if host is not None:
        print_message("gpuqueue", f"on {plain(host)}, as root: gpuqueue join https://HOST:PORT --token-file FILE")
    click.echo(made.text)


@token.command("list")
@click.option("--user", metavar="NAME", help="The tokens of another account. Only for admins.")
@click.option("--all", "everybody", is_flag=True, help="The tokens of all accounts and worker hosts. Only for admins.")
@json_option
def list_tokens(user: str | None, *, everybody: bool, as_json: bool) -> None:
    """List your access tokens, without their secrets.

    \b
    Examples:
      gpuqueue token list
      gpuqueue token list --all --json
    """  # noqa: D301 - \b is click's mark for lines to keep
    with Client() as client:
        found = client.access.tokens(user, everybody=everybody)
    if as_json:
        print_json(found)
    else:
        click.echo(
            table_of(COLUMNS, found, terminal_width()) if found else "no tokens: see gpuqueue token create --help"
        )


@token.command()
@click.argument("token_ids", metavar="ID…", nargs=-1, required=True)
def revoke(token_ids: tuple[str, ...]) -> None:
    """Revoke access tokens for good. The service refuses them within 5 seconds.

    ID is the first part of the token, as in the list: k3v9m2xq of gq_k3v9m2xq_….

    \b
    Examples:
      gpuqueue token revoke k3v9m2xq
    """  # noqa: D301 - \b is click's mark for lines to keep
    with Client() as client:
        for token_id in token_ids:
            revoked = client.access.revoke_token(token_id)
            click.echo(f"token {revoked.id} of {_whose(revoked)}: revoked at {values.when(revoked.revoked_at)}")


def _whose(found: AccessToken) -> str:
    return f"{'host ' if found.kind is CallerKind.HOST else ''}{plain(found.account)}"


def _state(found: AccessToken) -> str:
    trouble = found.not_valid(datetime.now(timezone.utc))
    return "valid" if trouble is None else trouble.name.lower()


#: Columns of the list, from left to right.
COLUMNS: tuple[Column[AccessToken], ...] = (
    Column(head="ID", cell=lambda each, _: each.id),
    Column(head="OF", cell=lambda each, _: _whose(each), least=6, narrows=1),
    Column(head="NAME", cell=lambda each, _: plain(each.name) or "-", least=6, narrows=0),
    Column(head="SCOPES", cell=lambda each, _: ",".join(sorted(map(str, each.scopes))) or "-", keep=1),
    Column(head="STATE", cell=lambda each, _: _state(each)),
    Column(head="EXPIRES", cell=lambda each, _: values.when(each.expires_at) if each.expires_at else "never"),
    Column(head="LAST USED", cell=lambda each, _: values.when(each.last_used_at) if each.last_used_at else "-", keep=0),
)
