"""The accounts that jobs may run as, without any account of this machine."""

from __future__ import annotations

import grp
import os
import pwd
from pathlib import Path
from typing import Any

import pytest

from gpuqueue.system import login_account
from gpuqueue.system.login_account import AccountRules, NotPermitted, least_uid
from workers.launcher.account import Refused, Rules, permitted

RULES = Rules(service_uid=990, group="users-of-the-queue", least_uid=1000, runs="/runs")
#: Name, user id, group id and shell of the accounts of these tests.
ACCOUNTS = {
    name: pwd.struct_passwd((name, "x", uid, gid, "", f"/home/{name}", shell))
    for name, uid, gid, shell in (
        ("ada", 1001, 1001, "/bin/bash"),
        ("bob", 1002, 1002, ""),
        ("twin", 1001, 1001, "/bin/bash"),  # a second name of ada's user id
        ("root", 0, 0, "/bin/bash"),
        ("toor", 1003, 0, "/bin/bash"),
        ("daemon", 2, 2, "/bin/sh"),
        ("queue", 1990, 1990, "/bin/bash"),
        ("nobody", 65534, 65534, "/bin/sh"),
        ("bot", 1004, 1004, "/usr/sbin/nologin"),
        ("eve", 1005, 1005, "/bin/bash"),  # not in the group
        ("adm", 1008, 1008, "/bin/bash"),  # in root's group besides
        ("loc", 1006, 1006, "/bin/bash"),
        ("old", 1007, 1007, "/bin/bash"),
    )
}
SHADOW = """ada:!:19000:0:99999:7:::
bob:*:19000:0:99999:7:::
loc:!$6$salt$hash:19000:0:99999:7:::
old:$6$salt$hash:19000:0:99999:7::7000:
"""


@pytest.fixture(autouse=True)
def _accounts(monkeypatch: pytest.MonkeyPatch) -> None:
    def by_uid(uid: int) -> pwd.struct_passwd:
        return next((each for each in ACCOUNTS.values() if each.pw_uid == uid), None) or {}[uid]

    def group(name: str) -> Any:
        return {RULES.group: grp.struct_group((name, "x", 500, []))}[name]

    monkeypatch.setattr(pwd, "getpwnam", ACCOUNTS.__getitem__)
    monkeypatch.setattr(pwd, "getpwuid", by_uid)
    monkeypatch.setattr(grp, "getgrnam", group)
    monkeypatch.setattr(
        os, "getgrouplist", lambda name, gid: {"eve": [gid], "adm": [gid, 500, 0]}.get(name, [gid, 500])
    )


@pytest.fixture
def shadow(tmp_path: Path) -> str:
    """Return a shadow file."""
    path = tmp_path / "shadow"
    path.write_text(SHADOW)
    return str(path)


@pytest.mark.parametrize(("name", "uid"), [("ada", 1001), ("bob", 1002)])
def test_a_person_of_the_group_may(shadow: str, name: str, uid: int) -> None:
    """A person of the group may run jobs, also one who logs in by a key only and has no password."""
    assert uid == permitted(name, uid, RULES, shadow).pw_uid


@pytest.mark.parametrize(
    ("name", "uid", "reason"),
    [
        ("root", 0, "root"),
        ("toor", 1003, "root"),
        ("daemon", 2, "system account"),
        ("nobody", 65534, "system account"),
        ("ada", 1002, "the user id 1002 is bob"),
        ("bob", 1001, "bob has the user id 1002"),
        ("twin", 1001, "the user id 1001 is ada"),
        ("zoe", 1001, "there is no account zoe"),
        ("ada", 4242, "no account ada with the user id 4242"),
        ("bot", 1004, "its login shell is /usr/sbin/nologin"),
        ("eve", 1005, "it is not in the group users-of-the-queue"),
        ("adm", 1008, "it is in root's group"),
        ("loc", 1006, "it is locked"),
        ("old", 1007, "it has expired"),
    ],
)
def test_everybody_else_is_refused_with_a_reason(shadow: str, name: str, uid: int, reason: str) -> None:
    """Root, system accounts, mismatches, and accounts that may not log in are refused."""
    with pytest.raises(Refused, match=reason):
        permitted(name, uid, RULES, shadow)


def test_the_account_of_the_queue_is_refused(shadow: str) -> None:
    """No job runs as the service account, which could read everything, whatever its user id."""
    with pytest.raises(Refused, match="the account of the queue itself"):
        permitted("queue", 1990, RULES._replace(service_uid=1990), shadow)


def test_a_group_that_does_not_exist_admits_nobody(shadow: str) -> None:
    """A misspelt group refuses everybody and says so."""
    with pytest.raises(Refused, match="the group nobodies does not exist"):
        permitted("ada", 1001, RULES._replace(group="nobodies"), shadow)


def test_the_smallest_user_id_is_that_of_the_host(tmp_path: Path) -> None:
    """UID_MIN of /etc/login.defs counts; without it 1000."""
    file = tmp_path / "login.defs"
    file.write_text("# UID_MIN 3\nSYS_UID_MIN 100\nUID_MIN\t\t 500\n")

    assert (500, 1000) == (least_uid(str(file)), least_uid(str(tmp_path / "none")))


@pytest.mark.parametrize(
    ("shell", "chosen", "reason"),
    [
        ("/bin/bash", None, ""),
        ("", None, ""),  # /bin/sh
        ("/usr/bin/zsh", None, "its login shell /usr/bin/zsh is not in .*/shells"),
        ("/bin/rbash", None, "its login shell /bin/rbash is a restricted one"),
        ("/usr/bin/git-shell", None, "restricted"),
        ("/usr/bin/scponly", None, "restricted"),
        ("/usr/bin/rssh", None, "restricted"),
        ("/usr/sbin/nologin", None, "its login shell is /usr/sbin/nologin"),
        ("/usr/bin/zsh", "/usr/bin/zsh", ""),
        ("/bin/rbash", "/bin/rbash", ""),
        ("/bin/bash", "/usr/bin/zsh", "its login shell /bin/bash is not one of the setting login_shells"),
        ("/bin/false", "/bin/false", "its login shell is /bin/false"),
        ("/sbin/nologin", "/sbin/nologin", "its login shell is /sbin/nologin"),
    ],
)
def test_only_login_shells_of_people_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shell: str, chosen: str | None, reason: str
) -> None:
    """Those of /etc/shells, less restricted ones, or those that root has chosen; never nologin and false."""
    shells = tmp_path / "shells"
    listed = ("/bin/sh", "/bin/bash", "/bin/rbash", "/usr/bin/git-shell", "/usr/bin/scponly", "/usr/bin/rssh")
    shells.write_text("# valid login shells\n" + "\n".join((*listed, "/usr/sbin/nologin", "/bin/false")))
    ada = pwd.struct_passwd(("ada", "x", 1001, 1001, "", "/home/ada", shell))
    monkeypatch.setitem(ACCOUNTS, "ada", ada)
    rules = AccountRules(frozenset(), RULES.group, 1000, frozenset([chosen]) if chosen else None)

    def ask() -> pwd.struct_passwd:
        return login_account.permitted("ada", 1001, rules, shadow=None, shells=str(shells))

    if not reason:
        assert ada == ask()
        return
    with pytest.raises(NotPermitted, match=f"no job runs as ada: .*{reason}"):
        ask()


def test_a_machine_without_a_list_of_shells_admits_all_but_restricted_ones(tmp_path: Path) -> None:
    """There is no list to go by."""
    rules = AccountRules(frozenset(), RULES.group, 1000)

    assert "ada" == login_account.permitted("ada", 1001, rules, shadow=None, shells=str(tmp_path / "no")).pw_name
