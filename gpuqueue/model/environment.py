"""The environment of a job as the history keeps it, and the names that look like secrets. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

from gpuqueue.lazy.frozen import dataclass
from gpuqueue.lazy.imports import pattern

#: Names of variables that look like secrets, in capital letters. docs/reference/submit.md lists them.
_SECRET = pattern(
    r".*(TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL|APIKEY).*"
    r"|.*_(KEY|PASS|PWD|AUTH)|KEY|REDISCLI_AUTH|(AWS|AZURE|GOOGLE|GCP|GCLOUD)_.*",
    re.DOTALL,
)
#: Names that look like secrets and are none.
_NONE = frozenset(
    {
        *("TOKENIZERS_PARALLELISM", "AWS_CA_BUNDLE", "AWS_CONFIG_FILE", "AWS_DEFAULT_REGION", "AWS_PAGER"),
        *("AWS_PROFILE", "AWS_REGION"),
    }
)


@lru_cache(maxsize=4096)
def is_secret(name: str) -> bool:
    """Return whether the variable *name* looks like a secret."""
    upper = name.upper()
    return _SECRET.fullmatch(upper) is not None and upper not in _NONE


@dataclass(frozen=True, kw_only=True, slots=True)
class Environment:
    """What the history still has of a job's environment. ``removed`` are the names of secrets that it removed."""

    variables: Mapping[str, str]
    removed: tuple[str, ...] = ()
