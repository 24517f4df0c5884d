"""What a viewer can set, as Streamlit's own widgets: read from the link at first, written back into it.

Everything stands outside the fragments, so a tick never touches a widget. Keys are stable: tests and styles name them.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from urllib.parse import urlencode

import streamlit as st

from leaderboard_page.address import MOST_COMPARED, RANK_BY, USUAL, Address, parsed, query
from leaderboard_page.standings_table import RANKINGS
from toolkit.records import Run
from toolkit.units import day, span, time_of_day

WINDOWS_S = (60, 300, 900, 1800, 3600)
TOPS = (5, 10, 20, 50)
SPEED = 30
"""How fast a replay plays."""
THEMES = {"": "as the browser prefers", "dark": "dark", "light": "light"}


# --- state ----------------------------------------------------------------------------------------


def current() -> Address:
    """What is set: what the link says when it is new, else each widget's word."""
    state, link = st.session_state, st.query_params.to_dict()
    if "presenter" in link:
        # this tab keeps what it may do; live.js takes the word out of the address bar, which a hall can read, and out of the
        # browser's history, where it would stay if it were set from here
        state["presenter"] = link.pop("presenter")
    if state.get("link") != link:
        # the page was opened, a link of its own was followed, or the browser went back: widgets begin anew from there
        state["link"], state["address"] = link, parsed(link)
        for key in (*_FIELDS, "cmp", "live"):
            state.pop(key, None)
        _forget_moment()
    address: Address = state["address"]
    if address.kiosk:
        return address
    # a select box has no None of its own: 0 and "" stand for it
    chosen = {name: state[key] or None for key, name in _FIELDS.items() if key in state}
    if "cmp" in state:
        chosen["compare"] = tuple(state["cmp"])
    if state.get("live") is True:
        chosen["t"] = None
    elif "t" in state:
        chosen["t"] = int(state["t"].timestamp())
    if "honest" in chosen:
        chosen["honest"] = bool(chosen["honest"])
    return replace(address, **chosen)


_FIELDS = {
    "rank": "rank",
    "window": "window_s",
    "top": "top",
    "honest": "honest",
    "run": "run",
    "theme": "theme",
}
"""Widget key -> field of Address, where they say the same."""


def remember(address: Address) -> None:
    """Keep what is set, and write it into the link, unless that says it already, in whatever words."""
    st.session_state["address"] = address
    if parsed(st.query_params.to_dict()) != address:
        st.query_params.from_dict(query(address))
    link = st.query_params.to_dict()
    link.pop("presenter", None)
    st.session_state["link"] = link


def moment(address: Address, last_s: int | None) -> Address:
    """The same, at the moment that a replay under way has come to."""
    played = st.session_state.get("playing")
    if played is None or address.t is None:
        return address
    from_s, began = played
    at_s = int(from_s + SPEED * (time.monotonic() - began))
    return replace(address, t=at_s if last_s is None else min(at_s, last_s))


# --- widgets --------------------------------------------------------------------------------------


def ranking(address: Address, usual_s: int) -> None:
    """How to rank: by what, over which window, and whether tricks count."""
    st.session_state.setdefault("rank", address.rank)
    st.selectbox(
        "Rank by",
        RANK_BY,
        key="rank",
        format_func=lambda rank: f"by {RANKINGS[rank].name}",
        label_visibility="collapsed",
        width=190,
    )
    st.session_state.setdefault("window", address.window_s or 0)
    windows = sorted({*WINDOWS_S, address.window_s or 0} - {0, usual_s})
    st.selectbox(
        "Window",
        [0, *windows],
        key="window",
        format_func=lambda window_s: f"over {span(window_s or usual_s)}",
        label_visibility="collapsed",
        width=150,
    )
    st.session_state.setdefault("honest", address.honest)
    st.toggle(
        "Honest",
        key="honest",
        help="Leaves out hosts whose answers are cut short, whose usage is inflated or whose work others do",
    )


def more(address: Address, runs: Sequence[Run], csv: Callable[[], bytes]) -> None:
    """What is set rarely: rows, run, theme; the link to share, and the figures as CSV."""
    tops = sorted({*TOPS, address.top or 0, 0} - {USUAL.rows})
    st.session_state.setdefault("top", address.top or 0)
    st.selectbox(
        "Hosts shown",
        tops,
        key="top",
        format_func=lambda top: f"up to {top or USUAL.rows} hosts",
    )
    st.session_state.setdefault("theme", address.theme or "")
    st.selectbox("Theme", list(THEMES), key="theme", format_func=THEMES.__getitem__)
    st.session_state.setdefault("run", address.run or "")
    named = {run.id: f"{day(run.started_at)}, {time_of_day(run.started_at)}" for run in runs}
    named[""] = "the newest"
    offered = list(dict.fromkeys(["", *named, address.run or ""]))
    st.selectbox("Blast", offered, key="run", format_func=lambda run: named.get(run, run))
    st.download_button(
        "Standings as CSV",
        csv,
        file_name="leaderboard.csv",
        mime="text/csv",
        icon=":material/download:",
        key="csv",
        on_click="ignore",
        width="stretch",
    )
    st.caption("Link to this view")
    base = (st.context.url or "").partition("?")[0]
    words = urlencode(query(address), safe=",%")
    st.code(f"{base}?{words}" if words else base, language=None, wrap_lines=True)
    st.caption(
        f"For a television: [kiosk](?{urlencode(query(replace(address, kiosk=True, host=None, event=None)))})"
    )


def comparison(address: Address, names: Sequence[str]) -> None:
    """Which hosts stand side by side."""
    offered = sorted({*names, *address.compare})
    st.session_state.setdefault("cmp", list(address.compare))
    st.multiselect(
        "Compare two to four hosts",
        offered,
        key="cmp",
        max_selections=MOST_COMPARED,
        placeholder="Choose hosts",
    )


# --- the replay -----------------------------------------------------------------------------------


def live(address: Address, last_s: int) -> None:
    """Now, or a moment of the past."""
    st.session_state.setdefault("live", address.t is None)
    st.toggle(
        "Live",
        key="live",
        on_change=_switch,
        args=(last_s,),
        help="Off: look at any moment of the blast",
    )


def _switch(last_s: int) -> None:
    """Into a replay, which begins at the end; or out of it."""
    _forget_moment()
    # when the browser went back twice at once, the link has the word: the run that read it ended before it made this switch
    if st.session_state.get("live") is False:
        st.session_state["t"] = _moment(last_s)


def replay(address: Address, first_s: int, last_s: int, step_s: int) -> None:
    """Any moment of the blast; played at thirty times its speed."""
    state = st.session_state
    if state["live"] or last_s <= first_s:
        _forget_moment()
        return
    playing = state.get("playing") is not None
    with st.container(horizontal=True, vertical_alignment="center", key="replay"):
        st.button(
            "Pause" if playing else f"Play {SPEED}x",
            key="play",
            icon=":material/pause:" if playing else ":material/play_arrow:",
            on_click=_pause if playing else _play,
            args=(last_s,) if playing else (first_s, last_s),
        )
        # the end that was there when the replay began: a slider that grows would move under the hand
        first, last = _moment(first_s), _moment(state.setdefault("replay_end", last_s))
        chosen = _moment(address.t) if address.t is not None else last
        state["t"] = min(max(state.get("t", chosen), first), last)
        st.slider(
            "Moment of the blast",
            min_value=first,
            max_value=last,
            step=timedelta(seconds=step_s),
            key="t",
            format="HH:mm:ss",
            disabled=playing,
            label_visibility="collapsed",
            width="stretch",
        )


def _forget_moment() -> None:
    for key in ("t", "replay_end", "playing"):
        st.session_state.pop(key, None)


def _play(first_s: int, last_s: int) -> None:
    at_s = int(st.session_state["t"].timestamp())
    # from the very end there is nothing to play: begin anew
    from_s = first_s if at_s >= last_s - SPEED else at_s
    st.session_state["playing"] = (from_s, time.monotonic())


def _pause(last_s: int) -> None:
    from_s, began = st.session_state.pop("playing")
    at_s = int(from_s + SPEED * (time.monotonic() - began))
    st.session_state["t"] = _moment(min(at_s, last_s))


def _moment(at_s: int) -> datetime:
    """A moment for the slider, which shows what it is given and knows no zones."""
    return datetime.fromtimestamp(at_s).astimezone().replace(tzinfo=None)
