"""Tests of which files look like secrets."""

from __future__ import annotations

import pytest

from gpuqueue.snapshot.errors import SnapshotRefused
from gpuqueue.snapshot.secret_files import check_secrets, may_be_secret


@pytest.mark.parametrize(
    "path",
    [
        *(".env", ".env.local", "a/b/.env", "prod.env", ".ENV", ".envrc", "server.pem", "tls/server.KEY", "id_rsa"),
        *(".ssh/id_ed25519", "id_rsa.bak", "id_ecdsa_sk", ".netrc", "_netrc", ".pgpass", ".pypirc", "credentials.json"),
        *("client_secret_123.json", "service-account-prod.json", ".aws/credentials", "x/.docker/config.json"),
        *("kaggle.json", ".kube/config", ".streamlit/secrets.toml", "keys.p12", ".git-credentials"),
    ],
)
def test_a_secret(path: str) -> None:
    """Files with keys, passwords or tokens are recognised by their names, in any directory and case."""
    assert may_be_secret(path)


@pytest.mark.parametrize(
    "path",
    [
        *(".env.example", ".env.sample", "a/.env.template", "example.env", "id_rsa.pub", "server.pem.pub", "id_map.py"),
        *("id_list.txt", "environment.yml", "env.py", "keys.py", "credentials.py", "config.json", "config"),
        *("docs/credentials", "monkey.py", "tokenizer.json", "secrets.py", "ids_rsa.txt"),
    ],
)
def test_no_secret(path: str) -> None:
    """Examples, public keys and code are none."""
    assert not may_be_secret(path)


def test_the_message_names_the_files_and_how_to_allow_them() -> None:
    """The refusal says which files, how to leave them out, and how to send them."""
    with pytest.raises(SnapshotRefused) as raised:
        check_secrets(["a.py", ".env", "tls/a.key"], (), "--snapshot-allow")

    assert (
        "these files look like secrets and would be sent: '.env', 'tls/a.key'. Leave them out by lines in "
        ".gpuqueueignore, for example /.env, or allow them: --snapshot-allow '.env'"
    ) == str(raised.value)


def test_only_some_of_many_are_named() -> None:
    """A message about many files stays short."""
    with pytest.raises(SnapshotRefused, match="and 90 more"):
        check_secrets([f"{n}.pem" for n in range(100)], (), "--allow")


@pytest.mark.parametrize("allowed", [[".env", "*.key"], ["*"], [".env", "tls/*"], [".env", "tls/a.key"]])
def test_named_files_are_allowed(allowed: list[str]) -> None:
    """A pattern names a file by its name or by its path."""
    check_secrets(["a.py", ".env", "tls/a.key"], allowed, "--allow")


def test_an_allowed_file_allows_no_other() -> None:
    """What no pattern names is still refused, also beside an allowed file; a path with brackets names itself."""
    with pytest.raises(SnapshotRefused, match=r"sent: 'b\.pem'\."):
        check_secrets(["a.pem", "b.pem", "[c].pem"], ["a.pem", "[c].pem"], "--allow")
