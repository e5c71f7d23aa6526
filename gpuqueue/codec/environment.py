"""The environment of a request, which the history keeps apart from the request."""

from __future__ import annotations

from collections.abc import Mapping

from gpuqueue.codec.text import dump
from gpuqueue.errors import Unreadable
from gpuqueue.model.environment import Environment, is_secret
from gpuqueue.text.json_fields import loaded

_REQUEST, _ENVIRONMENT = "a job's request", "a job's environment"
#: Written in place of a request that cannot be read, because it may hold secrets.
NOT_KEPT = "(not kept: it cannot be read, and may hold secrets)"


def without_environment(payload: object) -> tuple[str, dict[str, str]]:
    """Return the request in *payload* with an empty environment, and its environment.

    Raises:
        Unreadable: *payload* has no request, or its environment has a value that is no text.

    """
    request = loaded(payload, _REQUEST)
    env = request.below("env", _ENVIRONMENT).all_texts()
    return dump({**request.whole_object(), "env": {}}), env


def with_environment(payload: str, env: Mapping[str, str]) -> str:
    """Return the request in *payload* with *env*: the reverse of :func:`without_environment`, letter by letter.

    A request that cannot be read is returned unchanged.
    """
    try:
        return dump({**loaded(payload, _REQUEST).whole_object(), "env": dict(env)})
    except Unreadable:
        return payload


def shown_request(payload: object) -> str:
    """Return *payload* as it may be stored anywhere: without its environment, or NOT_KEPT if it cannot be read."""
    try:
        return without_environment(payload)[0]
    except Unreadable:
        return NOT_KEPT


def encode_environment(env: Mapping[str, str]) -> tuple[str, str | None]:
    """Return *env* as the texts of two columns: all variables, with null for a secret, and the secrets, if any.

    The first text keeps the order, so that the request can be put together again as it was.
    """
    secrets = {name: value for name, value in env.items() if is_secret(name)}
    if not secrets:
        return dump(dict(env)), None
    return dump({name: None if name in secrets else value for name, value in env.items()}), dump(secrets)


def decode_environment(variables: str, secrets: str | None) -> Environment:
    """Return the environment in the two texts of :func:`encode_environment`; without *secrets* their names.

    Raises:
        Unreadable: the texts are no such environment.

    """
    known = loaded(variables, _ENVIRONMENT)
    apart = {} if secrets is None else loaded(secrets, _ENVIRONMENT).all_texts()
    values: dict[str, str] = {}
    for name in known:
        if known.has(name):
            values[name] = known.text(name)
        elif name in apart:
            values[name] = apart[name]
    return Environment(variables=values, removed=tuple(name for name in known if name not in values))
