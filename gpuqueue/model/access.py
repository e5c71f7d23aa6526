"""What callers may do: actions, and the one table of rights. Pure. :mod:`gpuqueue.model.caller` says who is calling.

The service and its clients ask :func:`may` before each act. ``RULES`` is the only place with who may do what. The
site's settings ``admins`` and ``access`` fill an :class:`AccessPolicy`, within what each rule allows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from enum import Enum
from types import MappingProxyType

from gpuqueue.errors import BadRequest, NotAuthenticated, Refused
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.model.caller import Caller, CallerKind, Scope, Via
from gpuqueue.model.job_spec import Account
from gpuqueue.text.sanitize import brief


class Forbidden(Refused):
    """The caller has no right to do this. Clients of the service see the class Refused."""


class Audience(str, Enum):
    """Who may do something, from the smallest to the largest audience."""

    #: Worker hosts only.
    HOSTS = "hosts"
    #: The owner only, not even an admin.
    OWNER_ALONE = "owner alone"
    #: Admins of the site.
    ADMINS = "admins"
    #: The owner, and root of this machine, but no other admin. Of what belongs to nobody: admins.
    OWNER_OR_ROOT = "owner or root"
    #: The owner and the admins.
    OWNER = "owner"
    #: Every account.
    EVERYBODY = "everybody"
    #: Every account, and callers that are not authenticated.
    ANONYMOUS = "anonymous"

    def __str__(self) -> str:
        return self.value


class Action(str, Enum):
    """An act of the service that needs a right. The value is its name in the setting ``access``."""

    #: Devices, limits, statistics, and the number of waiting jobs.
    SEE_SITE = "see-site"
    #: The figures of the site for monitoring: devices, hosts, the queue, and the service itself.
    SEE_METRICS = "see-metrics"
    #: A job's name, owner, size, state, times, peak memory, tags and note.
    SEE_JOBS = "see-jobs"
    #: A job's command, script, directory and git checkout.
    SEE_ARGUMENTS = "see-arguments"
    SEE_ENVIRONMENT = "see-environment"
    #: A job's output, and the files of its run directory.
    SEE_LOGS = "see-logs"
    SUBMIT = "submit"
    #: Cancel, hold, release, edit, move, tag and note.
    CHANGE_JOB = "change-job"
    #: Submit a job again. It becomes the caller's job, with the environment of the first.
    RETRY = "retry"
    #: Read and write the terminal of a job, which acts as its owner.
    ATTACH = "attach"
    #: Run a command in a job that runs, which acts as its owner.
    EXEC = "exec"
    #: Connect to a port at which a job listens, as programs of its host can.
    FORWARD = "forward"
    #: Drain and resume devices.
    DRAIN = "drain"
    #: Reserve devices by the calendar, for oneself; admins also for others.
    RESERVE = "reserve"
    #: Declare a silent host lost.
    LOSE_HOST = "lose-host"
    #: Change limits, shares and other rules of the site.
    SET_RULES = "set-rules"
    #: Make an access token, which acts as its account. A token without an owner is that of a worker host.
    MAKE_TOKEN = "make-token"  # noqa: S105 - a word
    SEE_TOKENS = "see-tokens"
    REVOKE_TOKEN = "revoke-token"  # noqa: S105 - a word
    SEE_AUDIT = "see-audit"
    #: Serve jobs: the calls of a worker host.
    SERVE_JOBS = "serve-jobs"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """The right that one action needs.

    - ``audience`` is the default. A site may choose another one of ``choices``.
    - ``scope`` is what the caller's token must have, besides ``admin`` where an admin uses the rights of one.
    - ``verb`` completes "only ... may".
    - ``changes``: the action changes something. No choice opens such an action to anonymous callers.
    - ``by_kernel``: a token or a browser is not enough, so that a stolen one cannot make tokens that outlive it.
    """

    audience: Audience
    scope: Scope | None
    verb: str
    choices: tuple[Audience, ...] = ()
    changes: bool = True
    by_kernel: bool = False


def _seen(audience: Audience, verb: str, *choices: Audience) -> Rule:
    return Rule(audience=audience, scope=Scope.READ, verb=verb, choices=choices, changes=False)


RULES: Mapping[Action, Rule] = MappingProxyType(
    {
        Action.SEE_SITE: _seen(
            Audience.EVERYBODY, "see the devices of this site", Audience.EVERYBODY, Audience.ANONYMOUS
        ),
        Action.SEE_METRICS: _seen(
            Audience.EVERYBODY, "read the metrics", Audience.ADMINS, Audience.EVERYBODY, Audience.ANONYMOUS
        ),
        Action.SEE_JOBS: _seen(
            Audience.EVERYBODY, "see this job", Audience.OWNER, Audience.EVERYBODY, Audience.ANONYMOUS
        ),
        Action.SEE_ARGUMENTS: _seen(Audience.OWNER, "see the command of this job", Audience.OWNER, Audience.EVERYBODY),
        Action.SEE_ENVIRONMENT: _seen(
            Audience.OWNER, "see the environment of this job", Audience.OWNER, Audience.EVERYBODY
        ),
        Action.SEE_LOGS: _seen(Audience.OWNER, "see the output of this job", Audience.OWNER, Audience.EVERYBODY),
        Action.SUBMIT: Rule(
            audience=Audience.EVERYBODY,
            scope=Scope.SUBMIT,
            verb="submit jobs",
            choices=(Audience.ADMINS, Audience.EVERYBODY),
        ),
        Action.CHANGE_JOB: Rule(audience=Audience.OWNER, scope=Scope.SUBMIT, verb="change this job"),
        Action.RETRY: Rule(
            audience=Audience.OWNER, scope=Scope.SUBMIT, verb="retry this job, for it runs with its environment"
        ),
        Action.ATTACH: Rule(audience=Audience.OWNER_ALONE, scope=Scope.SUBMIT, verb="use the terminal of this job"),
        Action.EXEC: Rule(audience=Audience.OWNER_ALONE, scope=Scope.SUBMIT, verb="run a command in this job"),
        Action.FORWARD: Rule(audience=Audience.OWNER_ALONE, scope=Scope.SUBMIT, verb="reach the ports of this job"),
        Action.DRAIN: Rule(
            audience=Audience.ADMINS,
            scope=Scope.SUBMIT,
            verb="drain and resume devices",
            choices=(Audience.ADMINS, Audience.EVERYBODY),
        ),
        Action.RESERVE: Rule(
            audience=Audience.ADMINS,
            scope=Scope.SUBMIT,
            verb="reserve devices",
            choices=(Audience.ADMINS, Audience.EVERYBODY),
        ),
        Action.LOSE_HOST: Rule(audience=Audience.ADMINS, scope=Scope.ADMIN, verb="declare a host lost"),
        Action.SET_RULES: Rule(audience=Audience.ADMINS, scope=Scope.ADMIN, verb="change the rules of this site"),
        Action.MAKE_TOKEN: Rule(
            audience=Audience.OWNER_OR_ROOT, scope=Scope.SUBMIT, verb="make tokens of this account", by_kernel=True
        ),
        Action.SEE_TOKENS: _seen(Audience.OWNER, "see the tokens of this account"),
        Action.REVOKE_TOKEN: Rule(audience=Audience.OWNER, scope=Scope.SUBMIT, verb="revoke this token"),
        Action.SEE_AUDIT: _seen(Audience.ADMINS, "read the audit log"),
        Action.SERVE_JOBS: Rule(audience=Audience.HOSTS, scope=None, verb="serve jobs"),
    }
)


@dataclass(frozen=True, kw_only=True, slots=True)
class AccessPolicy:
    """The site's settings about rights.

    ``admins`` are accounts, ``admin_groups`` Unix groups. ``everybody_is_admin`` is ``admins = "*"``. ``chosen`` holds
    the audiences that the site chose instead of the defaults.
    """

    admins: frozenset[str] = frozenset()
    admin_groups: frozenset[str] = frozenset()
    everybody_is_admin: bool = False
    chosen: Mapping[Action, Audience] = field(default_factory=dict)

    @classmethod
    def parse(cls, admins: str, access: str) -> AccessPolicy:
        """Return the policy of the settings: ``ann,%gpu-admins`` and ``see-logs=everybody see-site=anonymous``.

        Raises:
            BadRequest: *access* names an unknown action, or an audience that its rule does not allow.

        """
        names = [name.strip() for name in admins.split(",") if name.strip()]
        return cls(
            admins=frozenset(name for name in names if name != "*" and not name.startswith("%")),
            admin_groups=frozenset(name[1:] for name in names if name.startswith("%")),
            everybody_is_admin="*" in names,
            chosen=parse_access(access),
        )

    def audience(self, action: Action) -> Audience:
        """Return who may do *action* at this site."""
        return self.chosen.get(action, RULES[action].audience)

    def is_admin(self, caller: Caller) -> bool:
        """Return whether *caller* has the rights of an admin now: the account is one, and the token allows it.

        Root of this machine is an admin, because it could read and change everything anyway.
        """
        if caller.kind is not CallerKind.PERSON or caller.uid is None or Scope.ADMIN not in caller.scopes:
            return False
        named = caller.account in self.admins or bool(self.admin_groups & caller.groups)
        return caller.superuser or named or self.everybody_is_admin


#: The actions that concern the site, not what belongs to somebody: to see jobs means those of everybody.
ON_SITE = (
    Action.SEE_SITE,
    Action.SEE_JOBS,
    Action.SUBMIT,
    Action.DRAIN,
    Action.RESERVE,
    Action.LOSE_HOST,
    Action.SET_RULES,
    Action.SEE_AUDIT,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Me:
    """Who a caller is, for the caller itself. ``admin``: the caller has the rights of an admin now.

    ``may`` are the actions on the site that the caller may do, such as ``drain``.
    """

    account: str
    uid: int | None
    via: str
    scopes: tuple[str, ...] = ()
    admin: bool = False
    token_id: str | None = None
    may: tuple[str, ...] = ()

    @classmethod
    def of(cls, caller: Caller, policy: AccessPolicy) -> Me:
        """Return what *caller* may know of itself."""
        return cls(
            account=caller.account,
            uid=caller.uid,
            via=str(caller.via),
            scopes=tuple(sorted(map(str, caller.scopes))),
            admin=policy.is_admin(caller),
            token_id=caller.token_id,
            may=tuple(str(each) for each in ON_SITE if may(caller, each, None, policy) is None),
        )


def parse_access(text: str) -> dict[Action, Audience]:
    """Return the audiences that *text*, the setting ``access``, chooses: ``see-logs=everybody drain=everybody``.

    Raises:
        BadRequest: *text* names an unknown action, or an audience that its rule does not allow.

    """
    chosen = {}
    for word in text.replace(",", " ").split():
        name, _, audience = word.partition("=")
        choices = {str(action): rule.choices for action, rule in RULES.items() if rule.choices}
        if name not in choices:
            raise BadRequest(f"{brief(name)} is no right that a site can change: there are {', '.join(choices)}")
        if audience not in set(map(str, choices[name])):
            raise BadRequest(f"{name} can be {' or '.join(map(str, choices[name]))}, not {brief(audience)}")
        chosen[Action(name)] = Audience(audience)
    return chosen


def may(caller: Caller, action: Action, owner: Account | None, policy: AccessPolicy) -> str | None:
    """Return None if *caller* may do *action* to what belongs to *owner*, else the reason why not.

    *owner* is the submitter of a job or the account of a token. It is None for acts on the site.
    """
    rule, audience = RULES[action], policy.audience(action)
    if audience is Audience.ANONYMOUS and not rule.changes:
        return None
    if caller.via is Via.ANONYMOUS:
        return "log in first: gpuqueue login URL"
    return _refused_by_proof(caller, rule, audience) or _refused_by_role(caller, audience, owner, rule, policy)


def require(caller: Caller, action: Action, owner: Account | None, policy: AccessPolicy) -> None:
    """Check that *caller* may do *action* to what belongs to *owner*.

    Raises:
        NotAuthenticated: the action needs an account of a person, and the caller has none.
        Forbidden: the caller has no right to the action.

    """
    reason = may(caller, action, owner, policy)
    if reason is not None:
        has_account = caller.via is not Via.ANONYMOUS and caller.kind is CallerKind.PERSON
        raise Forbidden(reason) if has_account else NotAuthenticated(reason)


def _refused_by_proof(caller: Caller, rule: Rule, audience: Audience) -> str | None:
    """Return why the kind of the caller, or its token, does not allow an action, regardless of whose it is."""
    if (caller.kind is CallerKind.HOST) != (audience is Audience.HOSTS):
        return f"a {caller.kind} cannot {rule.verb}"
    if rule.scope is not None and rule.scope not in caller.scopes:
        return f"this token has no scope {rule.scope}: make one with gpuqueue token create --scope {rule.scope}"
    if rule.by_kernel and caller.via in {Via.TOKEN, Via.SESSION}:
        what = "token" if caller.via is Via.TOKEN else "browser"
        return f"only a user who is logged in on the machine of the service may {rule.verb}, and no {what}"
    return None


def _refused_by_role(
    caller: Caller, audience: Audience, owner: Account | None, rule: Rule, policy: AccessPolicy
) -> str | None:
    """Return why the account does not allow an action: it is neither the owner nor an admin, as *audience* wants."""
    if audience in {Audience.HOSTS, Audience.EVERYBODY}:
        return None
    if audience is not Audience.ADMINS and caller.owns(owner):
        return None
    if audience is Audience.OWNER_OR_ROOT and owner is not None:
        is_root = caller.superuser and policy.is_admin(caller)
        return None if is_root else f"only {owner.name} may {rule.verb}, or root on the machine of the service"
    if audience is not Audience.OWNER_ALONE and policy.is_admin(caller):
        return None
    if audience is Audience.ADMINS or owner is None:
        return f"only an administrator of this site may {rule.verb} (setting admins)"
    whose = f"only {owner.name} may {rule.verb}"
    return whose if audience is Audience.OWNER_ALONE else f"{whose}, or an administrator of this site (setting admins)"
