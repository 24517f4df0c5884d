"""Whose event it is: the page's title and logo, as `--title` and `--logo` say. It reads one file, once."""

import sys
from functools import cache
from typing import NamedTuple

from toolkit.errors import ToolkitError
from toolkit.report.html import Markup, tag
from toolkit.report.logo import data_address


class Branding(NamedTuple):
    """What a visitor sees first."""

    title: str = "Leaderboard"
    logo: Markup | None = None


@cache
def branding(title: str, logo: str | None) -> Branding:
    """For all viewers of this process; a logo that cannot be shown is left out, and its log says why."""
    picture = None
    if logo:
        try:
            picture = tag("img", src=data_address(logo), class_="logo", alt="")
        except ToolkitError as error:
            print(f"Warning: the page has no logo: {error.message}", file=sys.stderr)
    return Branding(title, picture)
