"""The files that `toolkit report --html` and `toolkit sweep --html` write, in Chromium: they ask nobody, complain of nothing, fit a phone."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from playwright.sync_api import Browser
from support import blasted
from support.browser import Tab, files_opened, overflow

from toolkit.cli import main
from toolkit.tuning.pages import sweep_page
from toolkit.tuning.sweep_file import SweepPlan
from toolkit.tuning.sweep_table import SweepRow, moved, table

TOKENS = "output_tokens_per_s"
Opened = Callable[..., Tab]


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A report on a blast in which hosts cheat, fall and die, and the contest's sweep with a failure and a long name."""
    folder = tmp_path_factory.mktemp("pages")
    database = folder / "blast.db"
    blasted.blasted(database, hosts=4, seconds=300)
    listed = CliRunner().invoke(main, ["runs", "--json", "--db", str(database)])
    run = listed.stdout.split('"run": "')[1].split('"')[0]
    report = folder / "report.html"
    words = ["report", run, "--html", str(report), "--db", str(database)]
    result = CliRunner().invoke(main, words, catch_exceptions=False)
    assert result.exit_code == 0, result.stderr
    sweep = folder / "sweep.html"
    sweep.write_text(_sweep())
    return {"report": report, "sweep": sweep}


def _sweep() -> str:
    values = {"fp8": 1070.0, "awq": 1211.0, f"gptq-{'x' * 60}": 3114.0, "broken": None}
    known = [
        SweepRow(
            name=name,
            stage=1,
            lever="quantization",
            value=name,
            status="measured" if value else "failed",
            cause=None if value else "the GPU is out of memory" * 4,
            blocks={n: {TOKENS: value * (1 + n / 500)} for n in range(3)} if value else {},
        )
        for name, value in values.items()
    ]
    plan = SweepPlan(name="contest", summary="Three quantizations", look_at=(TOKENS,))
    return sweep_page(plan, table(known, [TOKENS]), moved(known, TOKENS))


@pytest.fixture
def opened(browser: Browser, pages: dict[str, Path]) -> Iterator[Opened]:
    """Open a file by its name."""
    with files_opened(browser) as open_it:
        yield lambda name, **settings: open_it(pages[name], **settings)


@pytest.mark.parametrize("name", ["report", "sweep"])
@pytest.mark.parametrize("width", [390, 768, 1280, 2560])
def test_nothing_stands_out_of_the_window(opened: Opened, name: str, width: int) -> None:
    assert overflow(opened(name, width=width, height=844).page) == []


@pytest.mark.parametrize("name", ["report", "sweep"])
def test_the_file_holds_nothing_that_could_ask(opened: Opened, name: str) -> None:
    assert opened(name).page.locator("script, link, img, iframe").count() == 0


def test_all_seven_criteria_are_seen_with_their_marks(opened: Opened) -> None:
    marks = opened("report").page.locator("td .mark").all_inner_texts()
    assert len(marks) == 7
    assert set(marks) <= {"met", "not met", "unknown"}


def test_every_plot_is_drawn_where_it_can_be_seen(opened: Opened) -> None:
    page = opened("report").page
    for key in ("rps", "ttft", "e2e", "errors"):
        ink = page.locator(f"[data-chart={key}] .line .ink")
        boxes = [one.bounding_box() for one in ink.all()]
        assert any(box is not None and box["width"] > 100 for box in boxes), key


def test_bars_are_as_long_as_their_figures(opened: Opened) -> None:
    page = opened("sweep").page
    boxes = [one.bounding_box() for one in page.locator(".bars .rail > span").all()]
    widths = [box["width"] for box in boxes if box]
    assert len(widths) == 3
    # 1,211 and 3,114 to 1,070
    assert widths[1] / widths[0] == pytest.approx(1211 / 1070, rel=0.02)
    assert widths[2] / widths[0] == pytest.approx(3114 / 1070, rel=0.02)


@pytest.mark.parametrize("name", ["report", "sweep"])
def test_in_the_dark_the_words_are_light(opened: Opened, name: str) -> None:
    page = opened(name, scheme="dark").page
    ink, paper = (
        page.evaluate(f"getComputedStyle(document.body).{one}")
        for one in ("color", "backgroundColor")
    )
    assert (ink, paper) == ("rgb(232, 237, 242)", "rgb(20, 24, 29)")
