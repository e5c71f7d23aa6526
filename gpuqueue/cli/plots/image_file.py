"""Writes a figure to a file atomically, and the option ``--plot``.

Modules for drawing are imported only when a figure is written: matplotlib is an optional dependency, and ``show``
without ``--plot`` must start fast.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpuqueue.cli.completion.candidates import files
from gpuqueue.console import say
from gpuqueue.errors import BadRequest, GpuQueueError
from gpuqueue.text.sanitize import brief

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KINDS = (".png", ".svg", ".html")


def picture_option(what: str) -> Callable[[Any], Any]:
    """Return the option ``--plot``, which checks the suffix and the directory of its file before the command runs."""

    def judged(_context: click.Context, _parameter: click.Parameter, path: str | None) -> str | None:
        if path is not None and Path(path).suffix.lower() not in KINDS:
            raise BadRequest(f"--plot cannot write {brief(path)}: name a file that ends in {', '.join(KINDS)}")
        if path is not None:
            _must_be_writable(Path(path))
        return path

    reported = f"Write {what}: .png, .svg or .html."
    return click.option("--plot", metavar="FILE", callback=judged, help=reported, shell_complete=files)


def _must_be_writable(path: Path) -> None:
    """Check that a file can be created at *path*; other errors are reported when it is written.

    Raises:
        BadRequest: No file can be created there.

    """
    wrong = 0
    try:
        if stat.S_ISDIR(path.stat().st_mode):
            wrong = errno.EISDIR
    except FileNotFoundError:
        if not path.parent.is_dir():
            wrong = errno.ENOENT
        elif not os.access(path.parent, os.W_OK):
            wrong = errno.EACCES
    except OSError as error:  # a parent that is a file, a name that is too long, no permission
        wrong = error.errno or errno.EACCES
    if wrong:
        raise BadRequest(_unwritten(path, os.strerror(wrong)))


def _unwritten(path: Path, why: str) -> str:
    return f"cannot write {brief(str(path))}: {why}: name a file in a directory that you may write to"


def check() -> None:
    """Check that matplotlib is installed; called before the history is queried.

    Raises:
        GpuQueueError: matplotlib is not installed.

    """
    from importlib.util import find_spec  # noqa: PLC0415 - only for drawing

    if find_spec("matplotlib") is None:
        raise GpuQueueError("--plot needs matplotlib, which is not installed: pip install 'gpuqueue-server[plot]'")


def write(path: str, title: str, figure: Figure, text: str) -> None:
    """Write *figure* to *path* in the format of its suffix; an HTML page also contains *text*.

    Raises:
        GpuQueueError: The file cannot be written. An existing file is unchanged.

    """
    import io  # noqa: PLC0415 - only for drawing

    from gpuqueue.cli.plots.charts import style  # noqa: PLC0415 - only for drawing

    kind = Path(path).suffix.lower()
    drawn = io.BytesIO()
    with style():
        if kind == ".png":
            figure.savefig(drawn, format="png")
        else:
            figure.savefig(drawn, format="svg", metadata={"Date": None})
    content = _page(title, drawn.getvalue().decode(), text) if kind == ".html" else drawn.getvalue()
    try:
        _replace(Path(path), content)
    except OSError as error:
        raise GpuQueueError(_unwritten(Path(path), str(error.strerror))) from error
    say("gpuqueue", f"{path} written")


def _page(title: str, svg: str, text: str) -> bytes:
    """Return a self-contained HTML page."""
    import html  # noqa: PLC0415 - only for drawing

    drawing = svg[svg.index("<svg") :]
    name = html.escape(title)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{name}</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 1200px; padding: 0 1rem; color: #222 }}
svg {{ width: 100%; height: auto }}
pre {{ overflow-x: auto; font-size: 14px }}
</style>
</head>
<body>
<main role="img" aria-label="{name}">
{drawing}
</main>
<pre>{html.escape(click.unstyle(text))}</pre>
</body>
</html>
""".encode("utf-8", errors="replace")


def _replace(path: Path, content: bytes) -> None:
    """Write *content* to a temporary file beside *path*, then rename it to *path*, so that readers see a whole file."""
    if path.exists() and not path.is_file():  # such as /dev/stdout, which cannot be replaced
        path.write_bytes(content)
        return
    import secrets  # noqa: PLC0415 - only for drawing

    beside = path.with_name(f".{secrets.token_hex(8)}.part")  # without the file's own name, which may be very long
    try:
        beside.write_bytes(content)
        beside.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            beside.unlink()
        error.filename = str(path)
        raise
