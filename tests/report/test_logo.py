"""A logo in a page: which files are taken, and that nothing else is."""

import base64
import os
from pathlib import Path

import pytest

from toolkit.errors import ToolkitError
from toolkit.report.logo import MOST_BYTES, data_address

SVG = b"<svg xmlns='http://www.w3.org/2000/svg'/>"


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b"\x89PNG\r\n\x1a\n and so on", "image/png"),
        (b"\xff\xd8\xff\xe0 and so on", "image/jpeg"),
        (SVG, "image/svg+xml"),
        (
            b"\xef\xbb\xbf<?xml version='1.0'?>\n<!-- a -->\n<!DOCTYPE svg>\n<!-- b -->" + SVG,
            "image/svg+xml",
        ),
        (SVG.ljust(MOST_BYTES), "image/svg+xml"),
    ],
)
def test_a_picture_is_known_by_its_content_and_all_of_it_stands_in_the_address(
    content: bytes, kind: str, tmp_path: Path
) -> None:
    file = tmp_path / "logo.txt"
    file.write_bytes(content)
    head, _, body = data_address(file).partition(",")
    assert head == f"data:{kind};base64"
    assert base64.b64decode(body) == content


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "is no PNG, JPEG or SVG picture"),
        (b"<html><svg></svg></html>", "is no PNG, JPEG or SVG picture"),
        (b"GIF89a", "is no PNG, JPEG or SVG picture"),
        # many comments and no picture: refused at once
        (b"<!-- -->" * 30_000, "is no PNG, JPEG or SVG picture"),
        (SVG.ljust(MOST_BYTES + 1), "is larger than 256 KiB"),
    ],
)
def test_what_is_no_small_picture_is_refused(content: bytes, why: str, tmp_path: Path) -> None:
    file = tmp_path / "logo.svg"
    file.write_bytes(content)
    with pytest.raises(ToolkitError, match=why):
        data_address(file)


def test_what_is_no_file_is_refused_and_nobody_waits_for_a_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name in ("pipe", "nothing.png", "."):
        with pytest.raises(ToolkitError, match="is no file"):
            data_address(tmp_path / name)
