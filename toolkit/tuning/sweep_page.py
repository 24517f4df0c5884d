"""A sweep as one HTML file: how far each configuration and each lever moved. Numbers and words come from the table."""

from collections.abc import Sequence

from toolkit.report.html import Markup, tag
from toolkit.report.page import document, notes_list, rows_table, said
from toolkit.tuning.metrics import meant, metric
from toolkit.tuning.sweep_file import SweepPlan
from toolkit.tuning.sweep_table import NO_DIFFERENCE, Moved, SweepRow
from toolkit.tuning.sweep_words import difference, figure, lever, progression
from toolkit.units import span

ROOM = 1.25
"""Of the longest bar: an interval that reaches farther is cut there."""
COMPARED = (
    "Differences: against the first configuration of the same list, block by block; geometric means over blocks, and Student's "
    "intervals of them that hold together with 95 % in each list (Bonferroni). Where an interval holds no change, no "
    "difference is shown."
)


def page(plan: SweepPlan, rows: Sequence[SweepRow], levers: Sequence[Moved]) -> str:
    """The whole document."""
    stages = [
        [row for row in rows if row.stage == stage] for stage in sorted({row.stage for row in rows})
    ]
    name = plan.look_at[0]
    lines = [line for stage in stages if (line := progression(stage, name))]
    body = tag(
        "main",
        tag("h1", "Sweep: ", plan.summary or plan.name),
        tag("p", _arrows(lines[0]) if lines else "Nothing to compare", class_="headline"),
        tag("p", f"{meant(name).title}; {_load(plan)}", class_="told"),
        [
            (
                tag("h2", "Around the best of them" if number else "One after the other"),
                _bars(stage, name),
                tag("p", _arrows(lines[number])) if number and number < len(lines) else None,
            )
            for number, stage in enumerate(stages)
        ],
        tag("h2", "How far each lever moved"),
        notes_list([lever(one, name) for one in levers], "No lever has two positions to compare."),
        tag("h2", "All figures"),
        [_table(plan, stage) for stage in stages],
        tag("h2", "What the figures are"),
        notes_list(_definitions(plan), ""),
        tag("h2", "What this rests on"),
        notes_list(
            [f"{row.name}: {note}" for row in rows for note in row.notes],
            "Nothing is known that speaks against these figures.",
        ),
    )
    return document(f"Sweep: {plan.summary or plan.name}", body)


def _arrows(line: str) -> str:
    """The line as a page has it: real arrows, and no line's end before a per cent sign."""
    return line.replace("->", "\N{RIGHTWARDS ARROW}").replace(" %", "\N{NO-BREAK SPACE}%")


def _load(plan: SweepPlan) -> str:
    load = plan.load
    rate = f" at {load.rate:g} request{'s' * (load.rate != 1)} a second" if load.rate else ""
    return (
        f"{_blocks(plan.blocks)} of {span(load.duration_s)}, {load.users} users{rate}, "
        f"the prompts of {plan.profile}"
    )


def _blocks(count: int) -> str:
    return f"{count} interleaved blocks" if count > 1 else "one block"


def _bars(rows: Sequence[SweepRow], name: str) -> Markup:
    """Lying bars with their names above: a phone has room for them, too."""
    most = ROOM * max((row.figures.get(name) or 0.0 for row in rows), default=0.0)
    longest = min(most, max((_upper(row, name) for row in rows), default=0.0)) or 1.0
    return tag("div", [_bar(row, name, longest) for row in rows], class_="bars")


def _upper(row: SweepRow, name: str) -> float:
    """The end of its interval, or of its bar."""
    value, ends = row.figures.get(name) or 0.0, row.ends(name)
    return value if ends is None else max(value, ends[1])


def _bar(row: SweepRow, name: str, longest: float) -> Markup:
    value, compared = row.figures.get(name), row.of(name)
    if row.status != "measured" or value is None:
        told = f"{row.status}: {row.cause}" if row.cause else row.status
        return tag(
            "div", tag("span", row.name, class_="name"), tag("span", said(told), class_="what")
        )
    is_equal = compared is not None and compared.verdict == NO_DIFFERENCE
    words = " ".join([figure(name, value), difference(compared) if compared else ""]).strip()
    return tag(
        "div",
        tag("span", row.name, class_="name"),
        tag("span", words, class_="what"),
        tag(
            "div",
            tag("span", style=f"width:{100 * value / longest:.2f}%"),
            _whisker(row, name, longest),
            class_="rail",
        ),
        class_="first" if compared is None else "equal" if is_equal else None,
    )


def _whisker(row: SweepRow, name: str, longest: float) -> Markup | None:
    ends = row.ends(name)
    if ends is None:
        return None
    left, right = 100 * max(0.0, ends[0]) / longest, min(100.0, 100 * ends[1] / longest)
    is_cut = ends[1] > longest
    return tag(
        "i",
        class_="cut" if is_cut else None,
        style=f"left:{left:.2f}%;width:{max(0.0, right - left):.2f}%",
    )


def _table(plan: SweepPlan, rows: Sequence[SweepRow]) -> Markup:
    names = [
        name for name in plan.look_at if any(row.figures.get(name) is not None for row in rows)
    ]
    titles: list[tuple[str, str | None]] = [("configuration", None), ("blocks", "right")]
    titles += [(meant(name).title, None) for name in names]
    titles.append(("start", "right"))
    return rows_table(titles, [_cells(row, names) for row in rows])


def _cells(row: SweepRow, names: Sequence[str]) -> list[object]:
    told = f"{row.status}: {row.cause}" if row.cause else row.status
    cells: list[object] = [
        Markup.joined(
            [tag("b", row.name), tag("small", said(told)) if row.status != "measured" else None]
        ),
        f"{row.blocks}",
    ]
    for name in names:
        compared = row.of(name)
        value = figure(name, row.figures.get(name))
        cells.append(
            Markup.joined([value, tag("small", difference(compared)) if compared else None])
        )
    return [*cells, "" if row.start_s is None else f"{row.start_s:.1f} s"]


def _definitions(plan: SweepPlan) -> list[object]:
    known = [found for name in plan.look_at if (found := metric(name))]
    lines = [Markup.joined([tag("b", each.title), f": {each.definition}"]) for each in known]
    return [*lines, COMPARED]
