"""The steps of an installation, in their order: of a site with its service, and of a worker host that joins one."""

from __future__ import annotations

import os
import re
import stat
import tokenize
import warnings
from collections.abc import Iterator
from dataclasses import field, replace
from importlib.util import cache_from_source
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

from gpuqueue.errors import Refused
from gpuqueue.installation.accounts import ServiceAccount, UsersGroup
from gpuqueue.installation.files import Directory, File, Owned, State, Step
from gpuqueue.installation.site import (
    CONFIG,
    ETC,
    NO_HOME,
    NOTIFIER_ACCOUNT,
    RUNS,
    STATE,
    STORE,
    TICKET_KEY,
    UNITS,
    WORKERS_CONFIG,
    SystemSite,
)
from gpuqueue.installation.units import config_text, unit_texts, workers_config_text
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.lazy.imports import later
from gpuqueue.model.joining import Joined, common_of, lines_of

if TYPE_CHECKING:
    import compileall
    from importlib import metadata
else:
    compileall = later("compileall")
    metadata = later("importlib.metadata")

#: The directory in which gpuqueue is installed.
SITE = Path(__file__).resolve().parents[2]
#: The name of gpuqueue's distribution, and the extras for servers.
_OURS, _EXTRAS = "gpuqueue-server", {"notify", "plot", "postgres", "service"}
#: The name in an entry of ``Requires-Dist``, and the extra that needs it.
_REQUIREMENT = re.compile(r"([\w.-]+)(?:.*\bextra\s*==\s*[\"']([\w-]+)[\"'])?")


def steps_of(site: SystemSite, *, force: bool = False) -> list[Step]:
    """Return what a site in system mode consists of, in the order in which it is made, without the running units."""
    of_service, of_workers = (Owned(group=name, mode=0o640) for name in (site.account, site.runner))
    settings, workers_settings = config_text(site), workers_config_text(site)
    files = (
        (CONFIG, settings, of_service, "settings of store, recorder and service; yours to change"),
        (WORKERS_CONFIG, workers_settings, of_workers, "settings of the workers; yours to change"),
    )
    configs = [
        File(path=path, text=text, owned=owned, purpose=purpose, editable=True) for path, text, owned, purpose in files
    ]
    key = ticket_key_of_site(site.account)
    return [*_accounts_and_places(site), *configs, key, Bytecode(SITE), *_units(site, force=force)]


def steps_of_host(site: SystemSite, joining: Joining | None, *, force: bool = False) -> list[Step]:
    """Return what a worker host that joins a service consists of, as above. To remove it, *joining* is not needed."""
    secret = Owned(owner=site.account, group=site.account, mode=0o600)
    settings, public = Owned(group=site.account, mode=0o640), Owned(mode=0o644)
    token = "" if joining is None else f"{joining.token}\n"
    service_ca = "" if joining is None else joining.ca
    store_ca = "" if joining is None else joining.found.redis_ca
    steps: list[Step] = [
        *_accounts_and_places(site),
        File(path=TOKEN, text=token, owned=secret, purpose="access token of this host", forced=True),
    ]
    for path, text, whose in ((SERVICE_CA, service_ca, "service"), (STORE_CA, store_ca, "store")):
        if text is not None:
            about = f"certificate of the authority of the {whose}"
            steps.append(File(path=path, text=text, owned=public, purpose=about, forced=True))
    config = File(
        path=CONFIG,
        text="" if joining is None else host_config_text(joining),
        owned=settings,
        purpose="settings, with the password of the store; yours to change",
        editable=True,
        keeps_changes=False,
    )
    has_key = joining is None or site.has_ticket_key
    key = [ticket_key_of_host(None if joining is None else joining.ticket_key)] if has_key else []
    return [*steps, config, *key, Bytecode(SITE), *_units(site, force=force)]


def _accounts_and_places(site: SystemSite) -> list[Step]:
    account, runner = site.account, site.runner
    of_workers = Owned(owner=runner, group=runner, mode=0o700)
    steps: list[Step] = [ServiceAccount(runner, site.runner_state, "workers")]
    if site.serves:
        own, shared = Owned(owner=account, group=account, mode=0o700), Owned(owner=account, group=runner, mode=0o750)
        steps += [
            ServiceAccount(account, STATE, "store, recorder and service"),
            # It owns nothing, so uninstall removes it.
            ServiceAccount(NOTIFIER_ACCOUNT, NO_HOME, "messages to URLs of users", lasting=False),
            Directory(path=STATE, owned=own, purpose="store, history, logs of the services"),
            Directory(path=STORE, owned=shared, purpose="socket of the store, for the workers"),
        ]
    return [
        *steps,
        UsersGroup(site.group),
        Directory(path=site.runner_state, owned=of_workers, purpose="locks and logs of the workers"),
        Directory(path=RUNS, owned=replace(of_workers, mode=0o711), purpose="directories and logs of the runs"),
    ]


def _units(site: SystemSite, *, force: bool) -> list[File]:
    return [
        File(path=unit_path(name), text=text, owned=Owned(mode=0o644), purpose="unit of systemd", forced=force)
        for name, text in unit_texts(site).items()
    ]


def unit_path(name: str) -> Path:
    """Return the path of the unit *name*."""
    return UNITS / f"{name}.service"


@dataclass(frozen=True, kw_only=True, slots=True)
class TicketKey:
    """The file with the key with which the service signs jobs (:mod:`gpuqueue.model.ticket`).

    Without *text* a new one is made, and one that is there stays. It is *lasting* where it was made: with another key,
    no job that waits could start.
    """

    owned: Owned
    text: str | None = field(default=None, repr=False)
    lasting: bool = True

    @property
    def name(self) -> str:
        """The name in the record of what was made."""
        return str(TICKET_KEY)

    @property
    def what(self) -> str:
        """The thing and its purpose, in words."""
        return self._file("").what

    def state(self) -> State:
        """Return whether it is there as it should be.

        Raises:
            Refused: something else is in its place.

        """
        try:
            found = TICKET_KEY.lstat()
        except FileNotFoundError:
            return State.MISSING
        if not stat.S_ISREG(found.st_mode):
            raise Refused(f"{TICKET_KEY} is there and is no file: move it away")
        is_right = self.owned.fits(found) and (self.text is None or self.text == _ticket_key_there())
        return State.THERE if is_right else State.DIFFERS

    def make(self) -> None:
        """Write it, or change its owner and mode."""
        self._file(self.text or _ticket_key_there() or _new_ticket_key()).make()

    def remove(self) -> None:
        """Remove it."""
        self._file("").remove()

    def _file(self, text: str) -> File:
        purpose = "key of the service: launchers start what it has signed"
        return File(path=TICKET_KEY, text=text, owned=self.owned, purpose=purpose, forced=True)


def ticket_key_of_site(account: str) -> TicketKey:
    """Return the key on the machine of the service. The service has the account *account*."""
    return TicketKey(owned=Owned(owner=account, mode=0o400))


def ticket_key_of_host(text: str | None) -> TicketKey:
    """Return the copy of the key on a worker host, which only root can read. Without *text*, the one there stays."""
    return TicketKey(owned=Owned(mode=0o400), text=text, lasting=False)


def _new_ticket_key() -> str:
    from gpuqueue.model.ticket import KEY_BYTES  # noqa: PLC0415 - it imports hashlib, and a second install needs none

    return f"{os.urandom(KEY_BYTES).hex()}\n"


def _ticket_key_there() -> str | None:
    try:
        return TICKET_KEY.read_text(encoding="ascii", errors="replace")
    except FileNotFoundError:
        return None
    except PermissionError:
        raise Refused(f"{TICKET_KEY} cannot be read by this account: use sudo") from None


@dataclass(frozen=True, slots=True)
class Bytecode:
    """The bytecode of gpuqueue, and of the libraries that are installed in the same directory *site*.

    An account that cannot write beside a module compiles it at each command. pip compiles what it installs, uv does not
    without ``--compile-bytecode``. It is no part of what ``uninstall`` removes: it goes with the packages.
    """

    site: Path
    lasting: bool = False

    @property
    def name(self) -> str:
        """The name in the record of what was made. It is never written there."""
        return f"bytecode in {self.site}"

    @property
    def what(self) -> str:
        """The thing and its purpose, in words."""
        return f"{self.site}: bytecode of gpuqueue and its libraries, so that commands start sooner"

    def state(self) -> State:
        """Return whether each module that can be compiled has bytecode. Some libraries have files that cannot."""
        return State.DIFFERS if any(map(_can_be_compiled, self._uncompiled())) else State.THERE

    def make(self) -> None:
        """Compile what is missing, for every account to read. Where this account may not write, nothing changes."""
        umask = os.umask(0o022)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about the code of libraries
                for path in self._uncompiled():
                    compileall.compile_file(path, quiet=2)
        finally:
            os.umask(umask)

    def remove(self) -> None:
        """Leave it."""

    def _uncompiled(self) -> Iterator[Path]:
        for path in self._modules():
            if not Path(cache_from_source(path)).exists():
                yield path

    def _modules(self) -> Iterator[Path]:
        for package in ("gpuqueue", "workers"):  # an editable installation has no list of them
            yield from (self.site / package).rglob("*.py")
        for library in _libraries():
            for file in library.files or ():
                path = Path(str(library.locate_file(file)))
                if path.suffix == ".py" and self.site in path.parents and path.exists():
                    yield path


def _libraries() -> Iterator[metadata.Distribution]:
    """Yield the installed distributions that gpuqueue needs, and those that they need."""
    seen, todo = {_OURS}, [_OURS]
    while todo:
        name = todo.pop()
        try:
            found = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue  # of an extra, or of another platform
        yield found
        extras = _EXTRAS if name == _OURS else set()
        for entry in map(_REQUIREMENT.match, found.requires or ()):
            if entry is not None and entry[1] not in seen and entry[2] in {None, *extras}:
                seen.add(entry[1])
                todo.append(entry[1])


def _can_be_compiled(path: Path) -> bool:
    try:
        with tokenize.open(path) as file, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(file.read(), path, "exec", dont_inherit=True)
    except (OSError, SyntaxError, ValueError):
        return False
    return True


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


def host_config_text(joining: Joining) -> str:
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
