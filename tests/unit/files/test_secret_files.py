"""Tests of which files look like secrets, by their names and by their beginnings."""

from __future__ import annotations

import pytest

from gpuqueue.files.errors import SnapshotRefused
from gpuqueue.files.secret_files import START_BYTES, begins_like_key, check_keys, check_secrets, may_be_secret

PEM = b"-----BEGIN PRIVATE " + b"KEY-----\nMIIE"  # in parts, so that this file holds none itself


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


@pytest.mark.parametrize(
    "start",
    [
        PEM,
        PEM.replace(b"BEGIN ", b"BEGIN RSA "),
        PEM.replace(b"BEGIN ", b"BEGIN OPENSSH "),
        PEM.replace(b"BEGIN ", b"BEGIN EC "),
        PEM.replace(b"BEGIN ", b"BEGIN ENCRYPTED "),
        PEM.replace(b"BEGIN ", b"BEGIN PGP ").replace(b"KEY-", b"KEY BLOCK-"),
        b"\xef\xbb\xbf" + PEM,
        b"Bag Attributes\r\n    localKeyID: 01\r\n" + PEM,
        b"-----BEGIN CERTIFICATE-----\nMIID\n-----END CERTIFICATE-----\n" + PEM,
        b"#" * (START_BYTES - len(PEM) - 1) + b"\n" + PEM,
        b"PuTTY-User-Key-File-3: ssh-ed25519\nEncryption: none\n",
        b'{"type": "service_account", "private_key": "' + PEM.replace(b"\n", b"\\n") + b'"}',
        b"[default]\naws_access_key_id = AKIA\naws_secret_access_key = wJal\n",
        b"; mine\n[profile a]\r\n  aws_secret_access_key=wJal\r\n",
    ],
)
def test_a_key(start: bytes) -> None:
    """Keys and credentials are recognised in each usual form, also behind other text at the begin of the file."""
    assert begins_like_key(start)


@pytest.mark.parametrize(
    "start",
    [
        b"",
        PEM.replace(b"PRIVATE", b"PUBLIC"),
        b"-----BEGIN CERTIFICATE-----\nMIID\n",
        b'KEY = "' + PEM + b'"\n',
        b"# " + PEM,
        b"grep 'PuTTY-User-Key-File-2' *.txt\n",
        b"#" * START_BYTES + b"\n" + PEM,
        b"import os\nkey = os.environ['aws_secret_access_key']\n",
        b"[default]\n# aws_secret_access_key = wJal\naws_secret_access_key = \n\nregion = eu\n",
        b"aws_secret_access_key = secret  # without a section, as in code\n",
        bytes(range(256)) * 20,
    ],
)
def test_no_key(start: bytes) -> None:
    """Public keys, certificates, and code about keys are none, nor is what comes late in a file."""
    assert not begins_like_key(start)


def test_a_key_is_refused_unless_allowed() -> None:
    """The refusal names the file and both ways out; the pattern of ``--snapshot-allow`` names it as for names."""
    with pytest.raises(SnapshotRefused) as raised:
        check_keys(["tests/data.txt"], (), "--snapshot-allow")

    assert (
        "these files hold private keys or passwords and would be sent: 'tests/data.txt'. Leave them out by lines in "
        ".gpuqueueignore, for example /tests/data.txt, or allow them: --snapshot-allow 'tests/data.txt'"
    ) == str(raised.value)
    check_keys(["tests/data.txt"], ["tests/*"], "--snapshot-allow")
