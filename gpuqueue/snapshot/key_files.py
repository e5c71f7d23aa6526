"""Finds files that begin like a private key or a file of credentials, whatever their names are. Pure."""

from __future__ import annotations

import re
from functools import cache

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
