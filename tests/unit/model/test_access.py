from __future__ import annotations

from dataclasses import replace
from itertools import chain, combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuqueue.errors import BadRequest, NotAuthenticated
from gpuqueue.model.access import RULES, AccessPolicy, Action, Audience, Forbidden, Me, may, require
from gpuqueue.model.caller import ALL_SCOPES, Caller, CallerKind, Scope, Via, anonymous
from gpuqueue.model.job_spec import Account

ADA = Account(name="ada", uid=1001, host="nodeA")
POLICY = AccessPolicy.parse("ann,%gpu-admins", "")

#: Who may what at a site that changes nothing, and with which scopes. Written by hand: the table of the code is held
#: to this one. In the columns: a scope is what an access token needs, "-" is never, "all" needs no scope.
EXPECTED = """
                 anonymous  host  another       owner    admin
see-site         -          -     read          read     read
see-metrics      -          -     read          read     read
see-jobs         -          -     read          read     read
see-arguments    -          -     -             read     read,admin
see-environment  -          -     -             read     read,admin
see-logs         -          -     -             read     read,admin
submit           -          -     submit        submit   submit
change-job       -          -     -             submit   submit,admin
retry            -          -     -             submit   submit,admin
attach           -          -     -             submit   -
exec             -          -     -             submit   -
forward          -          -     -             submit   -
drain            -          -     -             -        submit,admin
reserve          -          -     -             -        submit,admin
lose-host        -          -     -             -        admin
set-rules        -          -     -             -        admin
make-token       -          -     -             kernel   -
see-tokens       -          -     -             read     read,admin
revoke-token     -          -     -             submit   submit,admin
see-audit        -          -     -             -        read,admin
serve-jobs       -          all   -             -        -
"""
HEAD, *LINES = [line.split() for line in EXPECTED.strip().splitlines()]
TABLE = {(line[0], role): cell for line in LINES for role, cell in zip(HEAD, line[1:], strict=True)}
SUBSETS = [frozenset(some) for some in chain.from_iterable(combinations(Scope, n) for n in range(4))]


def person(account: str, uid: int, scopes: frozenset[Scope], via: Via = Via.TOKEN, *groups: str) -> Caller:
    """Return a caller with *scopes*."""
    return Caller(account=account, uid=uid, via=via, scopes=scopes, groups=frozenset(groups))


def callers(role: str, scopes: frozenset[Scope]) -> list[Caller]:
    """Return the callers that stand for one column of the table, with one set of scopes."""
    if role == "anonymous":
        return [anonymous("10.0.0.7")]
    if role == "host":
        return [Caller(account="nodeB", uid=None, via=Via.TOKEN, kind=CallerKind.HOST, scopes=scopes)]
    if role == "another":
        same_name = person("ada", 1234, scopes)
        return [person("bob", 1002, scopes), same_name, person("bobby", 1001, scopes)]
    if role == "owner":
        return [person("ada", 1001, scopes)]
    return [person("ann", 1003, scopes), person("cy", 1004, scopes, Via.TOKEN, "gpu-admins", "users")]


def expected_of(cell: str, scopes: frozenset[Scope]) -> bool:
    """Return whether a cell of the table allows a token with *scopes*."""
    if cell in {"-", "kernel"}:
        return False
    return cell == "all" or frozenset(map(Scope, cell.split(","))) <= scopes


@pytest.mark.parametrize("action", Action)
@pytest.mark.parametrize("role", HEAD)
def test_the_table_of_rights(action: Action, role: str) -> None:
    """Every action is allowed to exactly the callers and scopes of the table above."""
    owner = (
        ADA
        if action not in {Action.SEE_SITE, *(Action.DRAIN, Action.RESERVE), Action.LOSE_HOST, Action.SET_RULES}
        else None
    )
    for scopes in SUBSETS:
        for caller in callers(role, scopes):
            allowed = may(caller, action, owner, POLICY) is None
            assert expected_of(TABLE[str(action), role], scopes) == allowed, (
                caller,
                may(caller, action, owner, POLICY),
            )


@pytest.mark.parametrize("via", [Via.SOCKET, Via.DIRECT])
@pytest.mark.parametrize("action", Action)
def test_a_user_who_is_logged_in_needs_no_scope(action: Action, via: Via) -> None:
    """Over the socket the rights of owner and admin are those of a token with every scope, and they make tokens."""
    for caller, role in (
        (person("ada", 1001, ALL_SCOPES, via), "owner"),
        (person("ann", 1003, ALL_SCOPES, via), "admin"),
    ):
        assert (TABLE[str(action), role] != "-") == (may(caller, action, ADA, POLICY) is None)


def test_every_action_has_one_rule_and_one_line() -> None:
    """No action is without a rule, and the table of this test leaves none out."""
    assert set(Action) == set(RULES)
    assert list(map(str, Action)) == [line[0] for line in LINES]


def test_root_is_an_admin_only_where_its_kernel_says_so() -> None:
    """Root of the machine of the service is an admin. A token of uid 0, or root elsewhere, is not."""
    root = Caller(account="root", uid=0, via=Via.SOCKET, scopes=ALL_SCOPES, superuser=True)
    elsewhere = Caller(account="root", uid=0, via=Via.TOKEN, scopes=ALL_SCOPES)

    assert may(root, Action.CHANGE_JOB, ADA, POLICY) is None
    assert may(elsewhere, Action.CHANGE_JOB, ADA, POLICY) is not None


def test_everybody_can_be_an_admin() -> None:
    """With admins = "*", every account changes every job, and an anonymous caller still none."""
    policy = AccessPolicy.parse("*", "")

    assert may(person("bob", 1002, ALL_SCOPES), Action.CHANGE_JOB, ADA, policy) is None
    assert may(anonymous("10.0.0.7"), Action.CHANGE_JOB, ADA, policy) is not None


def test_a_group_is_no_account() -> None:
    """An admin group makes its members admins, and no account of that name."""
    assert may(person("gpu-admins", 1009, ALL_SCOPES), Action.SEE_AUDIT, None, POLICY) is not None
    assert may(person("ann", 1009, ALL_SCOPES, Via.TOKEN), Action.SEE_AUDIT, None, POLICY) is None
    assert may(person("x", 1010, ALL_SCOPES, Via.TOKEN, "ann"), Action.SEE_AUDIT, None, POLICY) is not None


def test_a_site_opens_and_closes() -> None:
    """The setting access shows logs to everybody, hides others' jobs, and lets callers without an account look."""
    policy = AccessPolicy.parse("", "see-logs=everybody, see-jobs=owner see-site=anonymous submit=admins")
    bob, nobody = person("bob", 1002, ALL_SCOPES), anonymous("10.0.0.7")

    assert may(bob, Action.SEE_LOGS, ADA, policy) is None
    assert may(bob, Action.SEE_JOBS, ADA, policy) is not None
    assert may(bob, Action.SUBMIT, None, policy) is not None
    assert may(nobody, Action.SEE_SITE, None, policy) is None
    assert may(nobody, Action.SEE_LOGS, ADA, policy) is not None
    assert ("see-jobs" in Me.of(bob, POLICY).may, "see-jobs" in Me.of(bob, policy).may) == (True, False)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("see-all=everybody", "is no right that a site can change"),
        ("change-job=everybody", "is no right that a site can change"),
        ("see-logs=anonymous", "see-logs can be owner or everybody, not 'anonymous'"),
        ("see-logs", "see-logs can be owner or everybody, not ''"),
        ("submit=anonymous", "submit can be admins or everybody, not"),
    ],
)
def test_what_a_site_cannot_change_is_refused(text: str, says: str) -> None:
    """A wrong word of the setting access is refused, and a right that must not be opened cannot be."""
    with pytest.raises(BadRequest, match=says):
        AccessPolicy.parse("", text)


def test_a_reason_names_the_owner_and_what_to_do() -> None:
    """A refusal says who may, or which scope the token lacks."""
    bob = person("bob", 1002, ALL_SCOPES)

    assert may(bob, Action.CHANGE_JOB, ADA, POLICY) == (
        "only ada may change this job, or an administrator of this site (setting admins)"
    )
    assert may(person("ada", 1001, frozenset({Scope.READ})), Action.CHANGE_JOB, ADA, POLICY) == (
        "this token has no scope submit: make one with gpuqueue token create --scope submit"
    )


POLICIES = st.builds(
    lambda admins, chosen: AccessPolicy.parse(admins, " ".join(chosen)),
    st.sampled_from(["", "ann", "ann,%gpu-admins", "*"]),
    st.lists(st.sampled_from([f"{action}={audience}" for action, rule in RULES.items() for audience in rule.choices])),
)
OWNERS = st.none() | st.builds(
    Account, name=st.sampled_from(["ada", "bob"]), uid=st.integers(1001, 1002), host=st.just("")
)
CALLERS = st.builds(
    Caller,
    account=st.sampled_from(["ada", "bob", "ann", "root"]),
    uid=st.none() | st.integers(0, 1003),
    via=st.sampled_from([Via.SOCKET, Via.TOKEN, Via.DIRECT]),
    groups=st.sampled_from([frozenset(), frozenset({"gpu-admins"})]),
    scopes=st.frozensets(st.sampled_from(Scope)),
    kind=st.sampled_from(CallerKind),
    superuser=st.booleans(),
)


@given(caller=CALLERS, dropped=st.sampled_from(Scope), action=st.sampled_from(Action), owner=OWNERS, policy=POLICIES)
def test_fewer_scopes_never_give_more(
    caller: Caller, dropped: Scope, action: Action, owner: Account | None, policy: AccessPolicy
) -> None:
    """What a caller may do without a scope, it may do with it."""
    fewer = replace(caller, scopes=caller.scopes - {dropped})
    if may(fewer, action, owner, policy) is None:
        assert may(caller, action, owner, policy) is None


@given(action=st.sampled_from(Action), owner=OWNERS, policy=POLICIES)
def test_an_anonymous_caller_never_changes_anything(
    action: Action, owner: Account | None, policy: AccessPolicy
) -> None:
    """However a site is opened, a caller without an account changes nothing, and sees no environment and no log."""
    if may(anonymous("10.0.0.7"), action, owner, policy) is None:
        assert action in {Action.SEE_SITE, Action.SEE_METRICS, Action.SEE_JOBS}
        assert policy.audience(action) is Audience.ANONYMOUS


@given(caller=CALLERS, action=st.sampled_from(Action), owner=OWNERS, policy=POLICIES)
def test_an_account_may_all_that_an_anonymous_caller_may(
    caller: Caller, action: Action, owner: Account | None, policy: AccessPolicy
) -> None:
    """Nobody loses a right by logging in."""
    if may(anonymous("10.0.0.7"), action, owner, policy) is None:
        assert may(caller, action, owner, policy) is None


@given(caller=CALLERS, action=st.sampled_from(Action), owner=OWNERS, policy=POLICIES)
def test_only_owner_and_admin_change_a_job(
    caller: Caller, action: Action, owner: Account | None, policy: AccessPolicy
) -> None:
    """Under no policy does anybody but the owner and an admin change, retry or attach to a job, or act on its token."""
    of_the_owner = {Action.CHANGE_JOB, Action.RETRY, Action.ATTACH, Action.EXEC, Action.MAKE_TOKEN, Action.REVOKE_TOKEN}
    if action in of_the_owner and may(caller, action, owner, policy) is None:
        assert caller.kind is CallerKind.PERSON
        by_admin = policy.is_admin(caller) and action not in {Action.ATTACH, Action.EXEC}
        needs_root = action is Action.MAKE_TOKEN and owner is not None
        assert caller.owns(owner) or (by_admin and (caller.superuser or not needs_root))


def test_only_root_makes_tokens_of_others() -> None:
    """A token of ada gives all rights of ada, so an admin cannot make one. Root can act as ada without a token.

    Admins make the tokens of worker hosts, which belong to nobody.
    """
    root = Caller(account="root", uid=0, via=Via.SOCKET, scopes=ALL_SCOPES, superuser=True)
    admin, bob = person("ann", 1003, ALL_SCOPES, Via.SOCKET), person("bob", 1002, ALL_SCOPES, Via.SOCKET)

    assert None is may(root, Action.MAKE_TOKEN, ADA, POLICY)
    assert "only ada may make tokens of this account, or root on the machine of the service" == may(
        admin, Action.MAKE_TOKEN, ADA, POLICY
    )
    assert None is not may(replace(root, via=Via.TOKEN), Action.MAKE_TOKEN, ADA, POLICY)
    assert None is not may(replace(root, superuser=False), Action.MAKE_TOKEN, ADA, AccessPolicy.parse("*", ""))
    assert None is may(admin, Action.MAKE_TOKEN, None, POLICY)
    assert None is not may(bob, Action.MAKE_TOKEN, None, POLICY)
    assert None is may(admin, Action.REVOKE_TOKEN, ADA, POLICY)


@pytest.mark.parametrize(
    ("caller", "error"),
    [
        (anonymous("10.0.0.7"), NotAuthenticated),
        (Caller(account="nodeB", uid=None, via=Via.TOKEN, kind=CallerKind.HOST), NotAuthenticated),
        (person("bob", 1002, ALL_SCOPES), Forbidden),
    ],
)
def test_a_refusal_says_whether_to_log_in(caller: Caller, error: type[Exception]) -> None:
    """A caller without an account, and a worker host, must log in as a person; another person has no right."""
    with pytest.raises(error):
        require(caller, Action.CHANGE_JOB, ADA, POLICY)
    require(person("ada", 1001, ALL_SCOPES), Action.CHANGE_JOB, ADA, POLICY)
