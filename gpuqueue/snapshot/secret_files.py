"""Finds files that look like secrets by their names, so that they do not leave the submitter's machine by accident.

``key_files.py`` finds those that look like secrets by their content. The user allows both in the same way.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase, translate

from gpuqueue.lazy.imports import pattern
from gpuqueue.snapshot.errors import SnapshotRefused
from gpuqueue.snapshot.limits import IGNORE_FILE, ignore_line
from gpuqueue.snapshot.names import quoted

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


def _at_end(patterns: tuple[str, ...]) -> re.Pattern[str]:
    """Return the regular expression of paths that end with the name or path of one of *patterns*."""
    return pattern(r"(?s:.*/)?(?:" + "|".join(translate(each) for each in patterns) + ")")


_SECRET, _PUBLIC = _at_end(SECRET), _at_end(PUBLIC)
#: Most files that the message names.
_NAMED = 10


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
