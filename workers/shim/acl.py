"""Shares a file of the account of the workers with one submitter, by an access control list. Standard library only.

See acl(5) and linux/posix_acl_xattr.h. A file system without such lists shares nothing: the job still writes its log,
through the descriptor that it was started with.
"""

from __future__ import annotations

import contextlib
import os
import struct

READ, WRITE, ENTER = 4, 2, 1
ACCESS, DEFAULT = "system.posix_acl_access", "system.posix_acl_default"
#: Tags of the entries: the owner, a named user, the group, the mask that limits all but the owner, all others.
OWNER, USER, GROUP, MOST, OTHERS = 0x01, 0x02, 0x04, 0x10, 0x20
VERSION, NO_ID = 2, 0xFFFFFFFF


def share(name: str, uid: int, rights: int) -> None:
    """Give the account *uid* these *rights* to the file *name* of this account, and no rights to others."""
    with contextlib.suppress(OSError, struct.error):  # struct.error: a user id out of range; the launcher refuses it
        os.setxattr(name, ACCESS, entries(rights | READ | WRITE, uid, rights))


def share_folder(name: str, uid: int) -> None:
    """Make the directory *name*, in which the account *uid* may make files that this account may read."""
    with contextlib.suppress(OSError, struct.error):
        os.mkdir(name, 0o700)
        os.setxattr(name, DEFAULT, entries(READ | WRITE | ENTER, os.getuid(), READ | ENTER))
        os.setxattr(name, ACCESS, entries(READ | WRITE | ENTER, uid, READ | WRITE | ENTER))


def entries(owner: int, uid: int, rights: int) -> bytes:
    """Return the access control list: *owner* are the rights of the owner, *rights* those of the account *uid*."""
    plain = [(OWNER, owner, NO_ID), (USER, rights, uid), (GROUP, 0, NO_ID), (MOST, rights, NO_ID), (OTHERS, 0, NO_ID)]
    return struct.pack("<I", VERSION) + b"".join(struct.pack("<HHI", *entry) for entry in plain)
