"""Draws the screen of a terminal as SVG: one screen, or a film of several. Uses only shapes and text.

The columns are right in every viewer and with every font: text is split at wider gaps, each piece has its own place,
and its width is given. Spaces within a piece are kept by ``xml:space``, which viewers without CSS know too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from xml.sax.saxutils import escape

CELL, LINE, SIZE = 8.4, 19, 14
MARGIN, BAR = 16, 36
#: Overlap of two lines of one background, so that there is no seam between them at any size.
OVERLAP = 0.6
BACKGROUND, FOREGROUND, FRAME = "#16191f", "#d5d9e0", "#3a404c"
#: A terminal's named colours; other colours are hexadecimal digits.
COLOURS = {
    "black": "#3a404c",
    "red": "#f07178",
    "green": "#8fce72",
    "brown": "#e6c265",
    "yellow": "#e6c265",
    "blue": "#6fb3f2",
    "magenta": "#c79bf2",
    "cyan": "#5fd0c5",
    "white": "#d5d9e0",
}
FONT = "ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono','Liberation Mono',monospace"
#: Characters that a font may lack, with the opacity of the rectangle that is drawn for each.
BLOCKS = {"█": 1.0, "▓": 0.7, "▒": 0.42, "░": 0.2}


@dataclass(frozen=True)
class Cell:
    """One place on a screen."""

    text: str
    colour: str = "default"
    behind: str = "default"
    bold: bool = False


#: A whole screen, from top to bottom.
Frame = Sequence[Sequence[Cell]]


def still(frame: Frame, title: str) -> str:
    """Return the picture of one screen."""
    return _document(title, _size([frame]), _drawn(frame), "")


def film(frames: Sequence[tuple[Frame, float]], title: str, *, shown: int = 0) -> str:
    """Return a picture that shows each screen for its number of seconds, in a loop.

    A viewer without animation shows only the frame *shown*.
    """
    whole_s = sum(seconds for _, seconds in frames)
    rules = [".f{visibility:hidden}", f".f{shown}{{visibility:visible}}"]
    moving, drawn, start_s = [], [], 0.0
    for at, (frame, seconds) in enumerate(frames):
        begin, end = 100 * start_s / whole_s, 100 * (start_s + seconds) / whole_s
        hidden = "0%{visibility:hidden}" if at else ""
        moving.append(
            f"@keyframes k{at}{{{hidden}{begin:.2f}%{{visibility:visible}}{end:.2f}%,100%{{visibility:hidden}}}}"
            f".f{at}{{animation:k{at} {whole_s:g}s step-end infinite}}"
        )
        drawn.append(f'<g class="f f{at}">{_drawn(frame)}</g>')
        start_s += seconds
    rules.append(f"@media (prefers-reduced-motion:no-preference){{{''.join(moving)}}}")
    return _document(title, _size([frame for frame, _ in frames]), "\n".join(drawn), "".join(rules))


def _size(frames: Sequence[Frame]) -> tuple[int, int]:
    """Return columns and rows of the largest frame."""
    return max(len(row) for frame in frames for row in frame), max(len(frame) for frame in frames)


def _document(title: str, size: tuple[int, int], body: str, rules: str) -> str:
    width, height = size[0] * CELL + 2 * MARGIN, size[1] * LINE + BAR + MARGIN
    dots = "".join(
        f'<circle cx="{MARGIN + 6 + 20 * at}" cy="{BAR / 2:g}" r="6" fill="{colour}"/>'
        for at, colour in enumerate(("#ec6a5e", "#f4bf4f", "#61c554"))
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" '
        f'width="{width:g}" height="{height:g}" role="img" xml:space="preserve">\n'
        f"<title>{escape(title)}</title>\n"
        f"<style>text{{font-family:{FONT};font-size:{SIZE}px;fill:{FOREGROUND}}}"
        f".b{{font-weight:bold}}{rules}</style>\n"
        f'<rect x=".5" y=".5" width="{width - 1:g}" height="{height - 1:g}" rx="9" fill="{BACKGROUND}" '
        f'stroke="{FRAME}"/>\n{dots}\n{body}\n</svg>\n'
    )


def _drawn(frame: Frame) -> str:
    return "\n".join(piece for at, row in enumerate(frame) for piece in _row(row, BAR + at * LINE))


def _row(row: Sequence[Cell], top: float) -> Iterator[str]:
    """Yield the shapes of a line: what is behind the text first."""
    places = list(enumerate(row))
    for behind, cells in groupby(places, key=lambda place: place[1].behind):
        if behind != "default":
            yield _rectangle(list(cells), top, _colour(behind), 1.0)
    for style, cells in groupby(places, key=lambda place: _style(place[1])):
        yield from _run(list(cells), top, *style)


def _style(cell: Cell) -> tuple[str, bool, str]:
    return cell.colour, cell.bold, cell.text if cell.text in BLOCKS else ""


def _run(cells: list[tuple[int, Cell]], top: float, colour: str, bold: bool, block: str) -> Iterator[str]:  # noqa: FBT001
    if block:
        yield _rectangle(cells, top, _colour(colour), BLOCKS[block])
        return
    text = "".join(cell.text for _, cell in cells)
    for piece in re.finditer(r"\S+(?: \S+)*", text):
        attributes: Mapping[str, str] = {
            "x": f"{MARGIN + (cells[0][0] + piece.start()) * CELL:g}",
            "y": f"{top + 0.74 * LINE:g}",
            "textLength": f"{len(piece[0]) * CELL:g}",
            "lengthAdjust": "spacingAndGlyphs",
            **({"class": "b"} if bold else {}),
            **({"style": f"fill:{_colour(colour)}"} if colour != "default" else {}),
        }
        marks = " ".join(f'{name}="{value}"' for name, value in attributes.items())
        yield f"<text {marks}>{escape(piece[0])}</text>"


def _rectangle(cells: list[tuple[int, Cell]], top: float, colour: str, opacity: float) -> str:
    faint = f' opacity="{opacity:g}"' if opacity < 1 else ""
    inset = 3 if opacity < 1 or cells[0][1].text in BLOCKS else 0
    return (
        f'<rect x="{MARGIN + cells[0][0] * CELL:g}" y="{top + inset:g}" width="{len(cells) * CELL:g}" '
        f'height="{LINE - 2 * inset if inset else LINE + OVERLAP:g}" fill="{colour}"{faint}/>'
    )


def _colour(name: str) -> str:
    plain = name.removeprefix("bright")
    return COLOURS.get(plain) or (FOREGROUND if plain == "default" else f"#{plain}")
