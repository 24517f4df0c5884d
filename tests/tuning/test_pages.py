"""A sweep's page and its chart, of rows made by hand. How they look, tests/browser sees."""

import re

import pytest

from toolkit.tuning.pages import sweep_page
from toolkit.tuning.sweep_chart import picture
from toolkit.tuning.sweep_file import Configuration, Serving, SweepPlan
from toolkit.tuning.sweep_table import MeasuredConfiguration, SweepRow, moved, table

SHARE = "invalid_json_ratio"


def measured(name: str, *values: float) -> MeasuredConfiguration:
    return MeasuredConfiguration(
        configuration=Configuration(
            name=name, stage=1, lever="asked for", value=name, serving=Serving()
        ),
        status="measured",
        blocks={number: {SHARE: value} for number, value in enumerate(values, start=1)},
    )


def plan_and_rows(*known: MeasuredConfiguration) -> tuple[SweepPlan, tuple[SweepRow, ...]]:
    return SweepPlan(name="json", look_at=(SHARE,), blocks=2), table(known, [SHARE])


def test_from_all_to_none_is_drawn() -> None:
    # every answer in words is invalid, none by the schema is: 100 points less, of which no ratio can be told
    known = measured("in words", 1.0, 1.0), measured("by the schema", 0.0, 0.0)
    plan, rows = plan_and_rows(*known)
    told = sweep_page(plan, rows, moved(known, SHARE))
    assert "-100.0 points" in told
    (axes,) = picture(plan, rows).axes
    assert [bar.get_width() for bar in axes.patches] == [1.0, 0.0]


def test_the_first_bar_and_one_of_no_difference_are_marked() -> None:
    plan, rows = plan_and_rows(
        measured("first", 0.5, 0.5), measured("same", 0.5, 0.5), measured("less", 0.1, 0.1)
    )
    told = sweep_page(plan, rows, ())
    assert re.findall(r'<div class="(first|equal)"><span class="name">(\w+)', told) == [
        ("first", "first"),
        ("equal", "same"),
    ]


def test_a_shares_interval_is_drawn_in_points() -> None:
    # 0.5 -> 0.25 with an interval of 0.6353 to both sides (see test_sweep_table): it begins below 0, where nothing is
    plan, rows = plan_and_rows(measured("in words", 0.5, 0.5), measured("any", 0.2, 0.3))
    (axes,) = picture(plan, rows).axes
    (whisker,) = axes.lines
    # the longest bar is 0.5, and an interval is cut at 1.15 of it
    assert list(whisker.get_xdata()) == [0.0, pytest.approx(0.575)]
    # on the page at 1.25 of it
    assert 'class="cut" style="left:0.00%;width:100.00%"' in sweep_page(plan, rows, ())
