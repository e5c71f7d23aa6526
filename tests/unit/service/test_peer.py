from __future__ import annotations

import os
import pwd

import pytest

from gpuqueue.errors import BadRequest, NotAuthenticated
from gpuqueue.model.caller import ALL_SCOPES, CallerKind, Via
from gpuqueue.service.identity.authenticate import Workers, caller_of_peer
from gpuqueue.settings.settings import Settings
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


def test_the_account_of_the_workers_is_a_host_and_no_person() -> None:
    """It has the name of the host and no uid, groups or scopes. Other accounts are themselves."""
    me = pwd.getpwuid(os.getuid())
    named = {"GPUQUEUE_CONFIG": os.devnull, "GPUQUEUE_HOST": "nodeA"}
    workers = Workers.of(Settings.load({**named, "GPUQUEUE_WORKERS_ACCOUNT": me.pw_name}))

    host, other = caller_of_peer(me.pw_uid, 1, workers=workers), caller_of_peer(me.pw_uid + 1, 1, workers=workers)

    assert (CallerKind.HOST, "nodeA", None) == (host.kind, host.account, host.uid)
    assert (frozenset(), frozenset(), False) == (host.groups, host.scopes, host.superuser)
    assert (CallerKind.PERSON, me.pw_uid + 1) == (other.kind, other.uid)
    assert Workers.of(Settings.load(named)) is None
    with pytest.raises(BadRequest, match="setting workers_account: this machine has no account 'nobody-has-this'"):
        Workers.of(Settings.load({**named, "GPUQUEUE_WORKERS_ACCOUNT": "nobody-has-this"}))


def test_the_uid_for_all_unknown_accounts_is_refused() -> None:
    """Unmapped accounts of a user namespace share one uid: it proves nothing."""
    with open("/proc/sys/kernel/overflowuid", encoding="ascii") as file:  # noqa: PTH123 - of the kernel
        overflow = int(file.read())

    with pytest.raises(NotAuthenticated, match="stands for every account that this machine does not know"):
        caller_of_peer(overflow, 1)
