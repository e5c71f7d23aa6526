"""The code of a job that travelled with it: unpacked before the job's program starts, by the same process and account.

Standard library only. The worker writes the file ``bundle`` into the run directory: the stream of the snapshot (see
:mod:`gpuqueue.files.manifest`). The files are unpacked into ``code/tree``, and ``code/manifest`` says which they were.
The directory ``code`` belongs to the account of the job, and nobody else enters it.
"""

from __future__ import annotations

import errno
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

#: The names of the packed code and of the directory for the files, in the run directory.
BUNDLE, DIRECTORY = "bundle", "code"
#: The names in that directory: the files, and the manifest of the snapshot that they were made from.
TREE, MANIFEST = "tree", "manifest"


def unpack(bundle: int, code: dict[str, Any]) -> None:
    """Unpack the open file *bundle* as *code* says: ``directory``, ``address`` and ``cwd``.

    Raises:
        OSError: the files cannot be made, or the bundle is damaged.

    """
    # Few jobs need these, and every shim would have them in memory. The launcher has loaded them.
    from gpuqueue.errors import GpuQueueError  # noqa: PLC0415
    from gpuqueue.files.unpack import unpack_stream  # noqa: PLC0415

    try:
        with open(bundle, "rb", closefd=False) as stream:
            unpack_stream(
                stream,
                os.path.join(code["directory"], TREE),
                address=code["address"],
                cwd=code["cwd"],
                copy=os.path.join(code["directory"], MANIFEST),
            )
    except GpuQueueError as error:
        raise OSError(errno.EIO, str(error)) from error
