"""The key with which the service signs jobs (:mod:`gpuqueue.model.ticket`)."""

from __future__ import annotations

import os
import stat
from dataclasses import field

from gpuqueue.errors import Refused
from gpuqueue.installation.files import File, Owned
from gpuqueue.installation.site import TICKET_KEY
from gpuqueue.installation.step import State
from gpuqueue.lazy.frozen import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class TicketKey:
    """The file with the key. Without *text* a new one is made, and one that is there stays.

    It is *lasting* where it was made: with another key, no job that waits could start.
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
        is_right = self.owned.fits(found) and (self.text is None or self.text == _content())
        return State.THERE if is_right else State.DIFFERS

    def make(self) -> None:
        """Write it, or change its owner and mode."""
        self._file(self.text or _content() or _new()).make()

    def remove(self) -> None:
        """Remove it."""
        self._file("").remove()

    def _file(self, text: str) -> File:
        purpose = "key of the service: launchers start what it has signed"
        return File(path=TICKET_KEY, text=text, owned=self.owned, purpose=purpose, forced=True)


def of_site(account: str) -> TicketKey:
    """Return the key on the machine of the service. The service has the account *account*."""
    return TicketKey(owned=Owned(owner=account, mode=0o400))


def of_host(text: str | None) -> TicketKey:
    """Return the copy of the key on a worker host, which only root can read. Without *text*, the one there stays."""
    return TicketKey(owned=Owned(mode=0o400), text=text, lasting=False)


def _new() -> str:
    from gpuqueue.model.ticket import KEY_BYTES  # noqa: PLC0415 - it imports hashlib, and a second install needs none

    return f"{os.urandom(KEY_BYTES).hex()}\n"


def _content() -> str | None:
    try:
        return TICKET_KEY.read_text(encoding="ascii", errors="replace")
    except FileNotFoundError:
        return None
    except PermissionError:
        raise Refused(f"{TICKET_KEY} cannot be read by this account: use sudo") from None
