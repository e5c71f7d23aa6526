"""Accounts that this process takes for accounts of the machine, as if a directory service had them."""

from __future__ import annotations

import pwd
from collections.abc import Mapping

#: The accounts of tokens in the tests.
ACCOUNTS: Mapping[str, int] = {"ada": 1001, "bob": 54321, "dora": 54322, "carl": 54323}


def know() -> None:
    """Let ``pwd`` find ACCOUNTS as well, until the end of this process."""
    by_name, by_uid = pwd.getpwnam, pwd.getpwuid
    entries = {name: pwd.struct_passwd((name, "x", uid, uid, "", "/", "/bin/sh")) for name, uid in ACCOUNTS.items()}
    uids = {each.pw_uid: each for each in entries.values()}
    pwd.getpwnam = lambda name: entries.get(name) or by_name(name)
    pwd.getpwuid = lambda uid: uids.get(uid) or by_uid(uid)
