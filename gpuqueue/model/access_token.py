"""Access tokens: their form, their lifetime, and why one is not valid. Pure, except for the random numbers.

A token is ``gq_<id>_<secret>``: the id of 8 characters finds it, and the secret of 43 characters, 256 random bits,
proves it. The history keeps the SHA-256 of the secret. So many random bits need no slow hash.
"""

from __future__ import annotations

from dataclasses import field
from datetime import datetime
from enum import Enum
from typing import TYPE_CHECKING

from gpuqueue.errors import BadRequest
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.lazy.imports import later, pattern
from gpuqueue.model.caller import Caller, CallerKind, Scope, Via
from gpuqueue.model.job_spec import Account
from gpuqueue.text.units import MAX_S

if TYPE_CHECKING:
    import hashlib
    import hmac
    import secrets
else:
    hashlib, hmac, secrets = later("hashlib"), later("hmac"), later("secrets")

#: Letters and digits that are not mistaken for each other.
_ALPHABET = "abcdefghjkmnpqrstuvwxyz23456789"
_ID_LENGTH = 8
_SECRET_BYTES = 32
_TOKEN = pattern(r"gq_([a-z0-9]{8})_([A-Za-z0-9_-]{43})")
#: What a token has whose maker names no scopes.
USUAL_SCOPES = frozenset({Scope.READ, Scope.SUBMIT})
#: How long a token is valid whose maker does not say.
USUAL_LIFETIME_S = 90 * 86400.0
#: Longest name of a token, in characters.
MAX_TOKEN_NAME = 64
#: The digest that an unknown id is compared with, so that it takes as long as a known one.
_NO_DIGEST = "0" * 64


class NotValid(str, Enum):
    """Why a token is not valid. Only the service's log says which; a caller reads one text for all."""

    MALFORMED = "it has not the form of a token"
    UNKNOWN = "there is no token with this id"
    WRONG_SECRET = "its secret is wrong"  # noqa: S105 - a sentence
    REVOKED = "it was revoked"
    EXPIRED = "it has expired"
    NO_ACCOUNT = "its account is not on this machine any more, under this name and user id"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True, kw_only=True, slots=True)
class NewToken:
    """A new token with its secret, which is shown once."""

    id: str
    secret: str

    def __str__(self) -> str:
        return f"gq_{self.id}_{self.secret}"

    def __repr__(self) -> str:
        return f"NewToken(id={self.id!r})"


@dataclass(frozen=True, kw_only=True, slots=True)
class AccessToken:
    """What is known of a token, without its secret and its digest. ``account`` is a host's name for a host's token.

    ``expires_at`` is None for a token that does not expire.
    """

    id: str
    kind: CallerKind
    account: str
    uid: int | None
    scopes: frozenset[Scope]
    name: str
    made_by: str
    made_at: datetime
    expires_at: datetime | None = None
    last_used_at: datetime | None = None
    revoked_at: datetime | None = None

    @property
    def owner(self) -> Account | None:
        """Return the account whose token it is, None for the token of a host."""
        return None if self.uid is None else Account(name=self.account, uid=self.uid, host="")

    def not_valid(self, now: datetime) -> NotValid | None:
        """Return why the token is not valid at *now*, or None."""
        if self.revoked_at is not None:
            return NotValid.REVOKED
        return NotValid.EXPIRED if self.expires_at is not None and self.expires_at <= now else None

    def caller(self, address: str, groups: frozenset[str] = frozenset()) -> Caller:
        """Return the caller that this token proves."""
        return Caller(
            account=self.account,
            uid=self.uid,
            via=Via.TOKEN,
            groups=groups,
            scopes=self.scopes,
            kind=self.kind,
            token_id=self.id,
            address=address,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenRequest:
    """A token that is asked for. None for *account* is the caller's own. A *host* is a worker host's name.

    ``lifetime_s`` is None for a token that does not expire.
    """

    account: str | None = None
    host: str | None = None
    name: str = ""
    scopes: frozenset[Scope] = USUAL_SCOPES
    lifetime_s: float | None = USUAL_LIFETIME_S

    def __post_init__(self) -> None:
        """Check the fields.

        Raises:
            BadRequest: a field has a value that no token can have.

        """
        if self.account is not None and self.host is not None:
            raise BadRequest("a token is of a user or of a worker host: leave out one of them")
        if len(self.name) > MAX_TOKEN_NAME:
            raise BadRequest(f"the name of a token has at most {MAX_TOKEN_NAME} characters, not {len(self.name)}")
        if self.host is None and not self.scopes:
            raise BadRequest(f"a token without a scope is of no use: name some of {', '.join(Scope)}")
        if self.lifetime_s is not None and not 0 < self.lifetime_s <= MAX_S:
            raise BadRequest("a token is valid for more than 0 seconds and at most ten years")


@dataclass(frozen=True, kw_only=True, slots=True)
class MadeToken:
    """A token that was just made. ``text`` is the whole token, which nobody can read again."""

    token: AccessToken
    text: str = field(repr=False)


def new_token() -> NewToken:
    """Return a new random token."""
    token_id = "".join(secrets.choice(_ALPHABET) for _ in range(_ID_LENGTH))
    return NewToken(id=token_id, secret=secrets.token_urlsafe(_SECRET_BYTES))


def parts_of(text: str) -> NewToken | None:
    """Return the id and the secret of *text*, None if it has not the form of a token."""
    found = _TOKEN.fullmatch(text)
    return None if found is None else NewToken(id=found[1], secret=found[2])


def digest_of(secret: str) -> str:
    """Return the SHA-256 of *secret*, in hexadecimal digits."""
    return hashlib.sha256(secret.encode("ascii")).hexdigest()


def is_secret_of(secret: str, digest: str | None) -> bool:
    """Return whether *digest* is that of *secret*, in a time that depends on neither. None is nobody's digest."""
    same = hmac.compare_digest(digest_of(secret), digest or _NO_DIGEST)
    return same and digest is not None
