"""Finds files that look like secrets, so that they do not leave the submitter's machine by accident.

They are found by their names, and by their beginnings: those of a private key or a file of credentials. The user allows
both in the same way.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase, translate
from functools import cache

from gpuqueue.files.errors import SnapshotRefused
from gpuqueue.files.limits import IGNORE_FILE, ignore_line
from gpuqueue.files.names import quoted
from gpuqueue.lazy.imports import pattern

#: Names of files with keys, passwords or tokens, in lower case. Names with a slash are ends of paths.
SECRET = (
    *(".env", ".env.*", "*.env", ".envrc"),
    *("*.pem", "*.key", "*.p12", "*.pfx", "*.jks", "*.keystore", "*.ppk", "*.kdbx", "*.ovpn", "*.keytab"),
    *("id_rsa*", "id_dsa*", "id_ecdsa*", "id_ed25519*", "id_xmss*"),
    *(".netrc", "_netrc", ".pgpass", ".my.cnf", ".mylogin.cnf", ".pypirc", ".git-credentials", ".htpasswd", ".npmrc"),
    *("credentials.json", "client_secret*.json", "service_account*.json", "service-account*.json"),
    *("application_default_credentials.json", "kaggle.json", "secrets.toml", "secrets.yaml", "secrets.yml"),
    *("secrets.json", ".vault-token", ".dockercfg", ".s3cfg", ".boto", "kubeconfig", "*.kubeconfig", ".ssh/*"),
    *(".aws/credentials", ".docker/config.json", ".kube/config", ".huggingface/token", ".config/gh/hosts.yml"),
)
#: Names of those above that are public by custom.
PUBLIC = (
    *(".env.example", ".env.sample", ".env.template", ".env.dist", ".env.defaults"),
    *("example.env", "sample.env", "template.env", "*.pub"),
)
#: Most files that the message names.
_NAMED = 10
#: How much of a file is checked, in bytes.
START_BYTES = 4096
#: Words of which a file with a key has at least one. Most files have none, and need no regular expression.
_WORDS = (b"PRIVATE KEY", b"PuTTY-User-Key-File", b"aws_secret_access_key")
#: What begins a line: a key in PEM, of OpenSSH or of PGP; a key of PuTTY; a key of a Google service account in JSON.
_KEY = (
    rb"^(?:\xef\xbb\xbf)?-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)?-----"
    rb"|^(?:\xef\xbb\xbf)?PuTTY-User-Key-File-[0-9]"
    rb'|"private_key"\s*:\s*"-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY-----'
)
_SECTION, _AWS = rb"^[ \t]*\[[^\]\n]+\]", rb"^[ \t]*aws_secret_access_key[ \t]*=[ \t]*[^\s]"


def _at_end(patterns: tuple[str, ...]) -> re.Pattern[str]:
    """Return the regular expression of paths that end with the name or path of one of *patterns*."""
    return pattern(r"(?s:.*/)?(?:" + "|".join(translate(each) for each in patterns) + ")")


_SECRET, _PUBLIC = _at_end(SECRET), _at_end(PUBLIC)


def may_be_secret(path: str) -> bool:
    """Return whether the file at *path* probably holds a secret, by its name."""
    lower = path.lower()
    return bool(_SECRET.match(lower) and not _PUBLIC.match(lower))


def check_secrets(paths: Iterable[str], allowed: Sequence[str], option: str) -> None:
    """Check that no path looks like a secret, except those that a pattern in *allowed* names.

    A pattern is one of the shell's, for the name or the whole path. *option* is how the caller's user allows one.

    Raises:
        SnapshotRefused: there are such files; the message names them.

    """
    _refuse("look like secrets", [path for path in paths if may_be_secret(path)], allowed, option)


def check_keys(paths: Iterable[str], allowed: Sequence[str], option: str) -> None:
    """Check that no file with a private key is among *paths*, as :func:`check_secrets` does for names.

    Raises:
        SnapshotRefused: there are such files; the message names them.

    """
    _refuse("hold private keys or passwords", paths, allowed, option)


def is_allowed(path: str, allowed: Sequence[str]) -> bool:
    """Return whether a pattern in *allowed* names *path*."""
    name = path.rpartition("/")[2]
    return any(path == each or fnmatchcase(path, each) or fnmatchcase(name, each) for each in allowed)


def _refuse(what: str, paths: Iterable[str], allowed: Sequence[str], option: str) -> None:
    found = [path for path in paths if not is_allowed(path, allowed)]
    if not found:
        return
    named = ", ".join(quoted(each) for each in found[:_NAMED])
    more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
    raise SnapshotRefused(
        f"these files {what} and would be sent: {named}{more}. Leave them out by lines in {IGNORE_FILE}, "
        f"for example {ignore_line(found[0])}, or allow them: {option} {quoted(found[0])}"
    )


def begins_like_key(start: bytes) -> bool:
    """Return whether a file whose first bytes are *start* holds a private key or credentials of AWS.

    Code that only names such keys, in the middle of a line, is none.
    """
    start = start[:START_BYTES]
    if not any(word in start for word in _WORDS):
        return False
    key, section, aws = _compiled()
    return bool(key.search(start) or (section.search(start) and aws.search(start)))


@cache
def _compiled() -> tuple[re.Pattern[bytes], ...]:
    return tuple(re.compile(each, re.MULTILINE) for each in (_KEY, _SECTION, _AWS))
