"""Tests of which contents look like private keys."""

from __future__ import annotations

import pytest

from gpuqueue.snapshot.errors import SnapshotRefused
from gpuqueue.snapshot.key_files import START_BYTES, begins_like_key
from gpuqueue.snapshot.secret_files import check_keys

PEM = b"-----BEGIN PRIVATE " + b"KEY-----\nMIIE"  # in parts, so that this file holds none itself


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
