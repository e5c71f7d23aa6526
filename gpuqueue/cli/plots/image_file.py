"""Writes a drawing into a file, whole or not at all.

matplotlib is an extra, and it and all else that drawing takes is imported when one draws: ``show`` is mostly asked for
text, and that must come at once.
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
    """Return the option ``--plot``, whose file's ending and place are judged before anything else is done."""

    def judged(_context: click.Context, _parameter: click.Parameter, path: str | None) -> str | None:
        if path is not None and Path(path).suffix.lower() not in KINDS:
            raise BadRequest(f"--plot cannot write {brief(path)}: name a file that ends in {', '.join(KINDS)}")
        if path is not None:
            _must_be_writable(Path(path))
        return path

    told = f"Write {what}: .png, .svg or .html."
    return click.option("--plot", metavar="FILE", callback=judged, help=told, shell_complete=files)


def _must_be_writable(path: Path) -> None:
    """Refuse a place where no file can be made; what else may go wrong is told when it is written.

    Raises:
        BadRequest: there is none.

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
    except OSError as error:  # a file on the way to it, a name that is too long, a directory that is not ours
        wrong = error.errno or errno.EACCES
    if wrong:
        raise BadRequest(_unwritten(path, os.strerror(wrong)))


def _unwritten(path: Path, why: str) -> str:
    return f"cannot write {brief(str(path))}: {why}: name a file in a directory that you may write to"


def check() -> None:
    """Refuse to draw where the library for it is missing, before anything is asked of the book.

    Raises:
        GpuQueueError: it is missing.

    """
    from importlib.util import find_spec  # noqa: PLC0415 - see above

    if find_spec("matplotlib") is None:
        raise GpuQueueError("--plot needs matplotlib, which is not installed: pip install 'gpuqueue-server[plot]'")


def write(path: str, title: str, figure: Figure, text: str) -> None:
    """Write *figure* to *path* in the format of its ending; a page also gets *text*, which must suit a terminal.

    Raises:
        GpuQueueError: it cannot be written; what was there is as it was.

    """
    import io  # noqa: PLC0415 - see above

    from gpuqueue.cli.plots.charts import style  # noqa: PLC0415 - see above

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
    """Return a page that needs nothing from anywhere else."""
    import html  # noqa: PLC0415 - see above

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
    """Write beside *path* and then take its place: nobody finds half a picture there."""
    if path.exists() and not path.is_file():  # such as /dev/stdout: there is no place to take
        path.write_bytes(content)
        return
    import secrets  # noqa: PLC0415 - see above

    beside = path.with_name(f".{secrets.token_hex(8)}.part")  # not after its own name: that may be as long as can be
    try:
        beside.write_bytes(content)
        beside.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            beside.unlink()
        error.filename = str(path)
        raise
