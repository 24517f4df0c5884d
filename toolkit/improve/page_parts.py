"""What the pages of this room have in common: one HTML file that fetches nothing, runs no script, and prints as it looks."""

from collections.abc import Callable, Sequence

from toolkit.markup import Markup, tag
from toolkit.plot import Frame, Look, Scale, chart, grid_x, grid_y, line, linear_ticks
from toolkit.wording import span
from toolkit.wording import tick as plain_tick

COLOURS = ("var(--c0)", "var(--c1)", "var(--c2)", "var(--c3)", "var(--c4)", "var(--c5)")
STROKES = ("", "9 5", "2 5", "12 4 2 4")
HEADROOM = 1.08
"""An axis ends a little above its highest point."""

STYLE = """
:root { color-scheme: light dark; --ink: #14181d; --soft: #5a6572; --line: #d7dde3; --paper: #fff; --accent: #0b6bcb;
  --good: #0a6b3f; --bad: #b3261e; --open: #7a5a00; --faint: #9fb4c8;
  --c0: #0072b2; --c1: #d55e00; --c2: #007a5a; --c3: #a3386f; --c4: #7a6a00; --c5: #5b4bb5; }
@media (prefers-color-scheme: dark) { :root { --ink: #e8edf2; --soft: #9aa7b4; --line: #2f3842; --paper: #14181d;
  --accent: #5cb0ff; --good: #4fd08c; --bad: #ff8a80; --open: #e8c14a; --faint: #4a5f75;
  --c0: #56b4e9; --c1: #ff8c42; --c2: #2fc49a; --c3: #e58bc0; --c4: #d9c84a; --c5: #a99bf5; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 74rem; padding: 1.6rem 1.2rem 4rem; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, sans-serif; font-variant-numeric: tabular-nums; }
h1 { font-size: 1.15rem; font-weight: 500; color: var(--soft); margin: 0; } h2 { font-size: 1.15rem; margin: 2.4rem 0 .8rem; }
h3 { font-size: 1rem; margin: 1.6rem 0 .6rem; } h3 small { color: var(--soft); font-weight: 400; margin-left: .5rem; }
.headline { font-size: 1.9rem; line-height: 1.25; font-weight: 650; margin: .3rem 0 .4rem; text-wrap: balance; }
.told { color: var(--soft); margin: 0 0 1.4rem; }
dl { display: grid; grid-template-columns: repeat(auto-fill, minmax(15rem, 1fr)); gap: 1.1rem 1.6rem; margin: 0; }
dt { color: var(--soft); font-size: .9rem; } dd { margin: 0; font-size: 1.25rem; } dd small { display: block; font-size: .85rem;
  color: var(--soft); line-height: 1.35; }
.table { overflow-x: auto; } .table + .table { margin-top: 1.8rem; } table { border-collapse: collapse; width: 100%; }
th { text-align: left; font-weight: 500; color: var(--soft); font-size: .9rem; } td, th { padding: .5rem .9rem .5rem 0;
  border-bottom: 1px solid var(--line); vertical-align: top; } .right { text-align: right; white-space: nowrap; }
td small { color: var(--soft); display: block; } td { overflow-wrap: anywhere; }
.mark { white-space: nowrap; font-weight: 650; } .mark.met { color: var(--good); } .mark.not { color: var(--bad); }
.mark.unknown { color: var(--open); } .settle { color: var(--soft); } code { font-size: .92em; }
.settle::before { content: "\\2192\\a0"; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(27rem, 100%), 1fr)); gap: 2rem 2.4rem; }
figure { margin: 0; min-width: 0; } figcaption b { font-weight: 650; margin-right: .6rem; } figcaption small { color: var(--soft); }
.unseen { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); }
.plot { position: relative; height: 14rem; margin: .6rem 1.6rem 2rem 3.9rem; }
.plot svg { position: absolute; inset: 0; width: 100%; height: 100%; overflow: visible; }
.plot path { fill: none; vector-effect: non-scaling-stroke; stroke-linejoin: round; stroke-linecap: round; }
.plot .grid { stroke: var(--line); } .plot .line .ink { stroke: var(--host); stroke-width: 2; } .plot .reach { stroke: transparent;
  stroke-width: 14; pointer-events: stroke; } .plot .bar { fill: var(--accent); stroke: none; } .plot .bar.first { fill: var(--soft); }
.plot .bar.equal { fill: var(--faint); } .plot .whisker { stroke: var(--ink); stroke-width: 2; }
.plot .rule .ink { stroke: var(--soft); stroke-width: 1.2; stroke-dasharray: 4 4; }
.plot > span { position: absolute; white-space: nowrap; font-size: .82rem; line-height: 1.1; color: var(--soft); }
.tick.x { transform: translate(-50%, .55rem); } .tick.y { transform: translate(calc(-100% - .5rem), -50%); }
.key { display: flex; flex-wrap: wrap; gap: .2rem 1.2rem; padding: 0 0 0 3.9rem; margin: 0; list-style: none; font-size: .9rem; }
.key i { display: inline-block; width: 1.6em; border-top: 3px solid; vertical-align: middle; margin-right: .4em; }
.key i.dashed { border-top-style: dashed; } .nothing, .notes { color: var(--soft); } .notes li { margin: .25rem 0; } p { max-width: 62rem; }
.notes { padding-left: 1.2rem; } .notes b { color: var(--ink); font-weight: 500; }
.bars { display: grid; grid-template-columns: minmax(0, 1fr); gap: .9rem; overflow-wrap: anywhere; } .bars .name { font-weight: 600; } .bars .what { color: var(--soft); margin-left: .6rem; }
.bars .rail { position: relative; height: 1.15rem; margin-top: .25rem; background: color-mix(in srgb, var(--line) 45%, transparent); }
.bars .rail span { position: absolute; inset-block: 0; left: 0; background: var(--accent); } .bars .first .rail span { background: var(--soft); }
.bars .equal .rail span { background: var(--faint); } .bars .rail i { position: absolute; top: .25rem; bottom: .25rem;
  border-inline: 2px solid var(--ink); background: linear-gradient(var(--ink), var(--ink)) center / 100% 2px no-repeat; min-width: 2px; }
.bars .rail i.cut { border-right: 0; }
h1, h2, .headline, dd, h3, p, li { overflow-wrap: anywhere; }
@media (max-width: 44rem) { .headline { font-size: 1.5rem; } thead { display: none; } tr { display: block; border-bottom: 1px solid var(--line);
  padding: .6rem 0; } td { display: block; border: 0; padding: 0 0 .15rem; } td.right { text-align: left; white-space: normal; }
  td[data-title]::before { content: attr(data-title) ": "; color: var(--soft); } .plot { margin-left: 3.4rem; } .key { padding-left: 0; }
  .bars .what { display: block; margin: 0; } }
@media print { body { max-width: none; } figure, tr, .bars > div { break-inside: avoid; } * { print-color-adjust: exact; } }
"""


def document(title: str, body: Markup) -> str:
    """The whole file."""
    head = tag(
        "head",
        Markup('<meta charset="utf-8">'),
        Markup('<meta name="viewport" content="width=device-width, initial-scale=1">'),
        # whatever a host's name or an error's text holds, nothing is asked of anybody
        Markup(
            "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        ),
        tag("title", title),
        Markup(f"<style>{STYLE}</style>"),
    )
    return f"<!doctype html>\n{tag('html', head, tag('body', body), lang='en')}\n"


def rows_table(
    titles: Sequence[tuple[str, str | None]],
    rows: Sequence[Sequence[object]],
    *,
    on_phone: bool = True,
) -> Markup:
    """A table; (title, class) a column. On a phone each cell bears its title, where `on_phone` says so."""
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
        )
        for row in rows
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


def notes_list(lines: Sequence[object], otherwise: str) -> Markup:
    """Lines below each other, or that there is none."""
    if not lines:
        return tag("p", otherwise, class_="nothing")
    told = [one if isinstance(one, Markup) else said(str(one)) for one in lines]
    return tag("ul", [tag("li", one) for one in told], class_="notes")


Series = tuple[str, Sequence[float | None], Look]
"""A line's name, its values at the times, and how it is drawn."""


def time_chart(
    frame: Frame,
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


def legend(lines: Sequence[tuple[str, Look]]) -> Markup:
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
