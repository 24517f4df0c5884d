"""The whole page, run by Streamlit's own test bench, and what a reader finds on it. No browser: nothing ticks by itself."""

from pathlib import Path
from typing import Any

from streamlit.testing.v1 import AppTest
from support.page_html import Node, tree

PAGE = Path(__file__).parents[2] / "dashboards" / "leaderboard.py"


def opened(**query: str) -> AppTest:
    """The page as a link opens it; without an exception."""
    app = AppTest.from_file(str(PAGE), default_timeout=60)
    for key, value in query.items():
        app.query_params[key] = value
    return again(app)


def again(app: AppTest) -> AppTest:
    """The page a tick later."""
    app.run()
    assert not app.exception, app.exception[0].value
    return app


def html(app: AppTest) -> str:
    """All live parts, one after the other."""
    parts: list[Any] = list(app.get("bidi_component"))
    return "".join(part.proto.bytes.decode() for part in parts)


def page(app: AppTest) -> Node:
    return tree(html(app))


def board(app: AppTest) -> Node:
    return page(app).one("table", id="board")


def ranking(app: AppTest) -> list[tuple[str | None, str | None]]:
    """(rank, host) from the top."""
    rows = board(app).one("tbody", id="standings").all("tr")
    return [(row.get("data-rank"), row.get("data-host")) for row in rows]


def hosts(app: AppTest) -> list[str | None]:
    return [name for _, name in ranking(app)]


def figure(app: AppTest, host: str, column: str) -> str:
    return board(app).one("tr", data_host=host).one(class_=f"c-{column}").text


def fact(app: AppTest, name: str) -> str:
    """One entry of the strip."""
    return page(app).one("header", class_="strip").one("li", class_=name).one(class_="value").text


def charts(app: AppTest) -> set[str | None]:
    return {chart["data-chart"] for chart in page(app).all("figure", class_="chart")}
