"""A picture from a file, to stand in a page as an address that holds all of it; the page asks nobody for it. Reads the file."""

import base64
import re
from pathlib import Path

from toolkit.errors import ToolkitError, reason_of
from toolkit.units import size

MOST_BYTES = 256 * 1024
"""Every viewer gets it with the page."""
_BEGINNINGS = {
    "image/png": re.compile(rb"\x89PNG\r\n\x1a\n"),
    "image/jpeg": re.compile(rb"\xff\xd8\xff"),
    # declaration, comments and document type come before the first element
    "image/svg+xml": re.compile(
        rb"(?:\xef\xbb\xbf)?(?>\s+|<\?xml[^>]*>|<!--.*?-->|<!DOCTYPE[^>]*>)*+<svg[\s>]", re.DOTALL
    ),
}


def data_address(file: str | Path) -> str:
    """`data:image/...` of a PNG, JPEG or SVG file. Raises ToolkitError.

    In an `<img>` no script of an SVG runs and nothing that it names is fetched.
    """
    path = Path(file)
    try:
        if not path.is_file():
            raise ToolkitError(f"`{file}` is no file", "Name a PNG, JPEG or SVG file")
        with path.open("rb") as opened:
            content = opened.read(MOST_BYTES + 1)
    except OSError as error:
        raise ToolkitError(f"`{file}` cannot be read: {reason_of(error)}") from error
    if len(content) > MOST_BYTES:
        raise ToolkitError(
            f"`{file}` is larger than {size(MOST_BYTES)}",
            "Save it smaller: it is shown 60 pixels high",
        )
    for kind, beginning in _BEGINNINGS.items():
        if beginning.match(content):
            return f"data:{kind};base64,{base64.b64encode(content).decode()}"
    raise ToolkitError(f"`{file}` is no PNG, JPEG or SVG picture")
