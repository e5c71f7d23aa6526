"""Accounts that this process takes for accounts of the machine, as if a directory service had them."""

from __future__ import annotations

import pwd
from collections.abc import Mapping

#: The accounts of tokens in the tests, by their user ids. Some tests have accounts of one name, made one after another.
#: The ids are none that a person of the machine may have, who runs the tests: accounts of people begin at 1000.
ACCOUNTS: Mapping[int, str] = {
    54201: "ada",
    54320: "ada",
    54321: "bob",
    777: "bob",
    54322: "dora",
    54323: "carl",
    54108: "alice",
    54110: "ann",
    54111: "bob",
}


def know() -> None:
    """Let ``pwd.getpwuid`` find ACCOUNTS as well, until the end of this process."""
    of_machine = pwd.getpwuid

    def by_uid(uid: int) -> pwd.struct_passwd:
        name = ACCOUNTS.get(uid)
        return of_machine(uid) if name is None else pwd.struct_passwd((name, "x", uid, uid, "", "/", "/bin/sh"))

    pwd.getpwuid = by_uid
