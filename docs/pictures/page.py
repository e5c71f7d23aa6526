"""Takes pictures of the web page into the documentation: those that the tests in tests/browser have just made.

Run ``python -m pytest tests/browser`` first. Usage: python docs/pictures/page.py [DIRECTORY]
"""

from __future__ import annotations

import sys
from pathlib import Path

from PIL import Image

HERE = Path(__file__).parent
#: Where the tests put their pictures.
MADE = HERE.parents[1] / "build" / "pictures"
#: The picture in the documentation -> that of a test.
PICTURES = {
    "page-devices.png": "overview-light.png",
    "page-queue.png": "queue-dark.png",
    "page-job.png": "job-running-light.png",
    "page-statistics.png": "statistics-light.png",
}
#: The page has few colours. With so many, a picture is a third of its size, and looks the same.
COLOURS = 64


def main(directory: Path) -> None:
    """Write the pictures into *directory*."""
    for name, source in PICTURES.items():
        with Image.open(MADE / source) as picture:
            small = picture.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
        small.save(directory / name, optimize=True)
        print(f"{directory / name}: {(directory / name).stat().st_size} bytes")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE)
