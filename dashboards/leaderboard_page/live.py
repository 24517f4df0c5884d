"""The one component that puts the server's HTML on screen (live.js), and the page's style (page.css).

Both files are read once per server. It knows nothing of boards.
"""

from functools import cache
from pathlib import Path

import streamlit as st

from leaderboard_page.address import Theme

_HERE = Path(__file__).parent


@cache
def _component() -> object:
    # Without a shadow root: the page's own style reaches inside, and so do tests and readers.
    return st.components.v2.component(
        "toolkit_live", js=(_HERE / "live.js").read_text(), isolate_styles=False
    )


def show(html: bytes, *, key: str) -> None:
    """Put HTML where this is called; the same key changes what was there instead of making it anew."""
    mount = _component()
    mount(data=html, key=key, width="stretch", height="content")  # type: ignore[operator]


@cache
def _css(name: str) -> str:
    return (_HERE / name).read_text()


def style(theme: Theme | None) -> None:
    """The page's style; with a theme asked for, that one, whatever the browser prefers."""
    forced = ""
    if theme is not None:
        forced = f":root,.stApp{{color-scheme:{theme} !important}}\n{_css('forced.css')}"
    st.html(f"<style>{_css('page.css')}\n{forced}</style>")
