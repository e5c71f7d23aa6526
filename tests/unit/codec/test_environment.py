"""The environment of a request, taken out of it and put back. Secrets are known by their names."""

from __future__ import annotations

import os

import pytest
from factories import make_spec

from gpuqueue.codec.request import (
    decode_environment,
    encode_environment,
    encode_spec,
    of_member,
    with_environment,
    without_environment,
)
from gpuqueue.errors import Unreadable
from gpuqueue.model.array import Array, Indexes, Member
from gpuqueue.model.environment import is_secret

ENV = {"PATH": "/bin", "HF_TOKEN": "hunter2", "ODD": os.fsdecode(b"\xff\n\"'"), "aws_secret_id": "x", "EMPTY": ""}
ARRAY = Array(indexes=Indexes.parse("0-9"), at_once=None, axes=())


@pytest.mark.parametrize("member", [None, Member(7, 3)])
def test_a_request_comes_back_letter_by_letter(member: Member | None) -> None:
    """A request without its environment holds no value of it. With it, it is the same text as before.

    The store compares texts to recognise a job, so the order of the variables is kept as well.
    """
    payload = encode_spec(make_spec(env=ENV, time_limit_s=60.5, array=ARRAY if member else None))
    payload = payload if member is None else of_member(payload, member)

    bare, env = without_environment(payload)
    kept = decode_environment(*encode_environment(env))

    assert "hunter2" not in bare
    assert payload == with_environment(bare, kept.variables)
    assert () == kept.removed


def test_removed_secrets_have_their_names() -> None:
    """Of removed secrets the names stay, and all other variables. The text of the variables never has a secret."""
    variables, secrets = encode_environment(ENV)
    kept = decode_environment(variables, None)

    assert ("HF_TOKEN", "aws_secret_id") == kept.removed
    assert {name: ENV[name] for name in ("PATH", "ODD", "EMPTY")} == kept.variables
    assert "hunter2" not in variables
    assert secrets is not None
    assert encode_environment({"PATH": "/bin"})[1] is None


@pytest.mark.parametrize("payload", ["", "{", "[]", '{"env":3}', '{"env":{"A":1}}', "{}", None])
def test_a_request_that_cannot_be_read_is_not_taken_apart(payload: str | None) -> None:
    """A damaged request raises Unreadable."""
    with pytest.raises(Unreadable):
        without_environment(payload)


@pytest.mark.parametrize(
    "name",
    [
        *("HF_TOKEN", "WANDB_API_KEY", "GITHUB_TOKEN", "DB_PASSWORD", "PGPASSWORD", "REDISCLI_AUTH", "my_secret_word"),
        *("AWS_ACCESS_KEY_ID", "AWS_SESSION_TOKEN", "AZURE_CLIENT_ID", "GOOGLE_APPLICATION_CREDENTIALS", "SMTP_PASS"),
    ],
)
def test_a_secret_is_known_by_its_name(name: str) -> None:
    """Tokens, keys, passwords and the variables of clouds are secrets, in any case of letters."""
    assert is_secret(name)
    assert is_secret(name.lower())


@pytest.mark.parametrize(
    "name",
    [
        "PATH",
        "HOME",
        "CONDA_PREFIX",
        "OMP_NUM_THREADS",
        "TOKENIZERS_PARALLELISM",
        "KEYBOARD",
        "SSH_AUTH_SOCK",
        "PWD",
        "AWS_REGION",
    ],
)
def test_an_ordinary_variable_is_no_secret(name: str) -> None:
    """The usual variables of a shell and of training programs are no secrets."""
    assert not is_secret(name)
