from __future__ import annotations

import os
import pwd

import pytest

from gpuqueue.errors import NotAuthenticated
from gpuqueue.model.caller import ALL_SCOPES, Via
from gpuqueue.service.identity.peer import caller_of_peer
from gpuqueue.system.account import groups_of


def test_the_caller_is_the_account_of_the_uid() -> None:
    """Name and groups come from the uid, and not from the environment."""
    me = pwd.getpwuid(os.getuid())

    caller = caller_of_peer(me.pw_uid, 4242)

    assert (me.pw_name, me.pw_uid, Via.SOCKET) == (caller.account, caller.uid, caller.via)
    assert ALL_SCOPES == caller.scopes
    assert caller.address == "pid 4242"
    assert caller.superuser == (me.pw_uid == 0)
    assert groups_of(me.pw_name) == caller.groups != frozenset()


def test_a_uid_without_a_name_has_one_of_its_own() -> None:
    """A uid that no account has is nobody else, and no root."""
    caller = caller_of_peer(987654, 1)

    assert ("uid987654", frozenset(), False) == (caller.account, caller.groups, caller.superuser)


def test_the_uid_for_all_unknown_accounts_is_refused() -> None:
    """Unmapped accounts of a user namespace share one uid: it proves nothing."""
    with open("/proc/sys/kernel/overflowuid", encoding="ascii") as file:  # noqa: PTH123 - of the kernel
        overflow = int(file.read())

    with pytest.raises(NotAuthenticated, match="stands for every account that this machine does not know"):
        caller_of_peer(overflow, 1)
