"""Which accounts may submit to a service in system mode, with real accounts of this machine."""

from __future__ import annotations

import json
import os
import pwd
from collections.abc import Iterator
from pathlib import Path

import pytest
from service_fixtures import ServedSite, ask, serving
from submitters import People
from template_history import make_tables

from gpuqueue.errors import Refused
from gpuqueue.model.job_spec import Account
from gpuqueue.service.identity import site_identity
from gpuqueue.service.identity.site_identity import SUBMITTER_S, SiteIdentity
from gpuqueue.settings.settings import Settings
from gpuqueue.system import account


@pytest.fixture(scope="module")
def system_site() -> Iterator[ServedSite]:
    """Return a service where jobs run as their submitters."""
    with serving(GPUQUEUE_RUN_AS="submitter") as site:
        yield site


def identity_of(tmp_path: Path, **environ: str) -> SiteIdentity:
    """Return the identity of a service where jobs run as their submitters."""
    url = f"sqlite:///{tmp_path / 'history.db'}"
    make_tables(url)
    own = {"GPUQUEUE_CONFIG": os.devnull, "GPUQUEUE_STATE_DIR": str(tmp_path), "GPUQUEUE_DATABASE_URL": url}
    return SiteIdentity(Settings.load({**own, "GPUQUEUE_RUN_AS": "submitter", **environ}))


def account_of(person: pwd.struct_passwd) -> Account:
    """Return the account of *person*, as a caller has it."""
    return Account(name=person.pw_name, uid=person.pw_uid, host="here")


def reason_against(identity: SiteIdentity, person: pwd.struct_passwd) -> str:
    """Return why jobs of *person* are refused, nothing if they are not."""
    try:
        identity.must_run(account_of(person))
    except Refused as error:
        return str(error)
    return ""


def test_the_submit_of_a_system_account_is_refused(system_site: ServedSite) -> None:
    """It learns why at once, and the queue has no job of it. The form says the same, and no code is kept."""
    system = next(each for each in pwd.getpwall() if 0 < each.pw_uid < 1000)
    why = f"no job runs as {system.pw_name}: its user id {system.pw_uid} is that of a system account"
    path = system_site.directory / "system"
    path.write_text(system_site.token(system.pw_name, system.pw_uid))
    path.chmod(0o600)
    with system_site.client("https", "system") as client:
        with pytest.raises(Refused, match=why):
            client.jobs.submit(["true"], mem="1M")
        assert [] == client.jobs.list()
        asked = [ask(system_site, "/web/form", path.read_text())]
        for where, body in (("/snapshots", {"manifest": "{}"}), ("/snapshots/contents", {"parts": []})):
            asked.append(ask(system_site, where, path.read_text(), method="POST", body=body))
    assert [(409, True)] * 3 == [(status, why in str(answer)) for status, answer in asked]


def test_root_submits_nothing(system_site: ServedSite) -> None:
    """Jobs of root would be root."""
    if os.getuid() != 0:
        pytest.skip("only root can be refused as root")
    with system_site.client("unix") as client, pytest.raises(Refused, match="no job runs as root: it is root"):
        client.jobs.submit(["true"], mem="1M")


@pytest.mark.full
def test_who_may_run_nothing_may_submit_nothing(
    people: People, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The group, the shell, a lock and a removal count, by the same rules as at the launcher."""
    installed = tmp_path / "installed.json"
    installed.write_text(json.dumps({"group": people.group}))
    monkeypatch.setattr(account, "INSTALLED", installed)
    monkeypatch.setattr(site_identity, "SUBMITTER_S", 0.0)
    identity = identity_of(tmp_path)
    eve = people.add("eve")
    git = people.add("git", "-G", people.group)

    assert "" == reason_against(identity, people.alice)
    assert f"it is not in the group {people.group}" in reason_against(identity, eve)
    assert "system account" in reason_against(identity, people.service)
    for shell, why in (("/usr/bin/git-shell", "restricted"), ("/usr/sbin/nologin", "its login shell is")):
        people.change(git.pw_name, "-s", shell)
        assert why in reason_against(identity, git)
    people.change(git.pw_name, "-s", "/bin/sh", "-p", "$6$salt$hash")
    assert "" == reason_against(identity, git)
    people.change(git.pw_name, "-L")
    assert "it is locked" in reason_against(identity, git)
    identity.close()


def test_an_answer_is_used_again_for_a_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files of the accounts are not read at each submit; memory for the answers is bounded."""
    looked: list[str] = []
    monkeypatch.setattr(site_identity, "permitted", lambda name, *_, **__: looked.append(name))
    monkeypatch.setattr(site_identity, "MOST_SUBMITTERS", 3)
    identity = identity_of(tmp_path)
    for name in ("a", "a", "b", "c", "d", "e", "a"):
        identity.must_run(Account(name=name, uid=2000, host="here"))
    identity.close()

    assert ["a", "b", "c", "d", "e", "a"] == looked
    assert SUBMITTER_S <= 5


@pytest.mark.full
def test_the_token_of_a_removed_or_renamed_account_ends_at_once(served: ServedSite, people: People) -> None:
    """Accounts of this machine, made and removed with its own programs; the token was used right before."""
    kim, lee = people.add("kim"), people.add("lee")
    tokens = {each.pw_name: served.token(each.pw_name, each.pw_uid) for each in (kim, lee)}
    assert [200, 200] == [ask(served, "/me", token)[0] for token in tokens.values()]

    people.delete(kim.pw_name)
    people.change(lee.pw_name, "-l", f"{lee.pw_name}x")
    try:
        assert [401, 401] == [ask(served, "/me", token)[0] for token in tokens.values()]
    finally:
        people.change(f"{lee.pw_name}x", "-l", lee.pw_name)
    assert 200 == ask(served, "/me", tokens[lee.pw_name])[0]
