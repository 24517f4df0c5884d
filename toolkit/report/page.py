"""Every page that is a file: one HTML file that fetches nothing, runs no script, and prints as it looks (its style: page.css)."""

from collections.abc import Callable, Sequence
from pathlib import Path

from toolkit.report.charts import (
    ChartFrame,
    LineStyle,
    Scale,
    chart,
    grid_x,
    grid_y,
    line,
    linear_ticks,
)
from toolkit.report.html import Markup, tag
from toolkit.units import span
from toolkit.units import tick as plain_tick

COLOURS = ("var(--c0)", "var(--c1)", "var(--c2)", "var(--c3)", "var(--c4)", "var(--c5)")
STROKES = ("", "9 5", "2 5", "12 4 2 4")
HEADROOM = 1.08
"""An axis ends a little above its highest point."""


def document(
    title: str,
    *,
    heading: object,
    found: str,
    about: str | None = None,
    sections: object,
    notes: Sequence[object],
    no_notes: str,
) -> str:
    """The whole file: what was found, of what, the sections, and what that rests on; `no_notes`, where nothing is to be said of it."""
    head = tag(
        "head",
        Markup('<meta charset="utf-8">'),
        Markup('<meta name="viewport" content="width=device-width, initial-scale=1">'),
        # whatever a host's name, a prompt or an error's text holds, nothing is asked of anybody
        Markup(
            "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        ),
        tag("title", title),
        Markup(f"<style>\n{Path(__file__).with_name('page.css').read_text()}</style>"),
    )
    main = tag(
        "main",
        tag("h1", heading),
        tag("p", found, class_="headline"),
        tag("p", about, class_="told") if about is not None else None,
        sections,
        tag("h2", "Methodology"),
        notes_list(notes, no_notes),
    )
    return f"<!doctype html>\n{tag('html', head, tag('body', main), lang='en')}\n"


def rows_table(
    titles: Sequence[tuple[str, str | None]],
    rows: Sequence[Sequence[object]],
    *,
    on_phone: bool = True,
    faint: Sequence[bool] = (),
) -> Markup:
    """A table; (title, class) a column. On a phone each cell bears its title, where `on_phone` says so; `faint` marks rows."""
    head = tag("tr", [tag("th", title, class_=class_) for title, class_ in titles])
    body = [
        tag(
            "tr",
            [
                tag(
                    "td",
                    cell,
                    class_=class_,
                    data_title=title if on_phone and place and cell else None,
                )
                for place, (cell, (title, class_)) in enumerate(zip(row, titles, strict=True))
            ],
            class_="faint" if number < len(faint) and faint[number] else None,
        )
        for number, row in enumerate(rows)
    ]
    return tag("div", tag("table", tag("thead", head), tag("tbody", body)), class_="table")


def said(text: str | None) -> Markup | None:
    """A sentence, with what stands between backticks as code."""
    if text is None:
        return None
    parts = text.split("`")
    if len(parts) % 2 == 0:  # one without its other half
        return Markup.joined([text])
    return Markup.joined(
        tag("code", part) if place % 2 else part for place, part in enumerate(parts)
    )


def figures_list(figures: Sequence[tuple[str, str, str | None]]) -> Markup:
    """(name, value, what it is) side by side."""
    return tag(
        "dl",
        [
            tag("div", tag("dt", name), tag("dd", value, tag("small", more) if more else None))
            for name, value, more in figures
        ],
    )


def notes_list(lines: Sequence[object], otherwise: str) -> Markup:
    """Lines below each other, or that there is none."""
    if not lines:
        return tag("p", otherwise, class_="nothing")
    items = [one if isinstance(one, Markup) else said(str(one)) for one in lines]
    return tag("ul", [tag("li", one) for one in items], class_="notes")


Series = tuple[str, Sequence[float | None], LineStyle]
"""A line's name, its values at the times, and how it is drawn."""


def time_chart(
    frame: ChartFrame,
    times: Sequence[float],
    series: Sequence[Series],
    high: float,
    *,
    tick: Callable[[float], str] = plain_tick,
    rules: Sequence[Markup] = (),
) -> Markup:
    """Lines over a run's time, from 0 upwards; `tick` writes a value of the axis."""
    length = (
        (times[-1] + times[0]) if times else 1.0
    )  # middles of stretches: as much behind the last
    scale = Scale(0.0, (high or 1.0) * HEADROOM)
    grid, words = grid_y((scale.at(value), tick(value)) for value in linear_ticks(high or 1.0, 4))
    upright, names = grid_x((place / 4, span(length * place / 4)) for place in range(5))
    drawn = [
        line(
            name,
            [
                None if value is None else (t_s / length, scale.at(value))
                for t_s, value in zip(times, values, strict=True)
            ],
            look,
        )
        for name, values, look in series
    ]
    below = legend([(name, look) for name, _, look in series]) if len(series) > 1 else None
    return chart(frame, [grid, upright, *rules, *drawn], [*words, *names], below)


def legend(lines: Sequence[tuple[str, LineStyle]]) -> Markup:
    """Which line is which."""
    return tag(
        "ul",
        [
            tag(
                "li",
                tag(
                    "i",
                    class_="dashed" if look.stroke else None,
                    style=f"border-color:{look.colour}",
                ),
                name,
            )
            for name, look in lines
        ],
        class_="key",
    )
