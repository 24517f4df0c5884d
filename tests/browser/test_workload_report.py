"""The file that `toolkit workload --html` writes, in Chromium: it asks nobody, complains of nothing, and fits a phone."""

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner
from playwright.sync_api import Browser
from support.browser import Tab, files_opened, overflow

from toolkit.cli import main

HEADLINE = "response cache, then single-flight; max_model_len 512 instead of 8192"
CHARTS = ("hits", "tops", "arrivals", "prompt-tokens", "output-tokens", "refusals")
PHONE = {"width": 390, "height": 844}
Opened = Callable[..., Tab]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report on 59 min 53 s, whose last tick has the longest word that an axis of time can have."""
    folder = tmp_path_factory.mktemp("report")
    log, page = folder / "log.jsonl", folder / "report.html"
    log.write_text("".join(f"{json.dumps(_line(number))}\n" for number in range(400)))
    words = ["--from", str(log), "--max-model-len", "8192", "--html", str(page)]
    result = CliRunner().invoke(main, ["workload", *words], catch_exceptions=False)
    assert result.exit_code == 0, result.stderr
    return page


def _line(number: int) -> dict[str, object]:
    """One of three prompts in pairs a second apart, answered in 2 s: the second of a pair joins the first."""
    pair, second = divmod(number, 2)
    body = {
        "model": f"a-model/with-a-name-that-nobody-would-break-{'x' * 40}",
        "messages": [{"role": "user", "content": "Hello there " * (1 + pair % 3)}],
        "max_tokens": 256,
        "stream": bool(second),
    }
    return {
        "ts": 1.79e9 + pair * 18.05 + second,
        "client": f"10.0.0.{number % 5}",
        "status": 200,
        "latency_ms": 2000,
        "output_tokens": 200,
        "body": body,
    }


@pytest.fixture
def opened(browser: Browser, written: Path) -> Iterator[Opened]:
    """Open the file."""
    with files_opened(browser) as open_it:
        yield partial(open_it, written)


def test_the_file_asks_for_nothing_but_itself_and_holds_nothing_that_could(opened: Opened) -> None:
    # the fixture looks at the end at what was asked for
    assert opened().page.locator("script, link, img, iframe").count() == 0


def test_the_headline_is_seen_without_scrolling(opened: Opened) -> None:
    page = opened(**PHONE).page
    headline = page.locator(".headline")
    assert headline.inner_text() == HEADLINE
    box = headline.bounding_box()
    assert box is not None
    assert box["y"] + box["height"] < 844


def test_every_plot_is_drawn_where_it_can_be_seen(opened: Opened) -> None:
    page = opened().page
    assert page.locator("figure svg").count() == len(CHARTS)
    for key in CHARTS:
        ink = page.locator(f"[data-chart={key}] :is(.ink, .bar)")
        boxes = [one.bounding_box() for one in ink.all()]
        # a line of two points is as high as its stroke or not at all; a bar of nothing has no height
        assert any(box is not None and box["width"] > 20 for box in boxes), key


@pytest.mark.parametrize("width", [390, 768, 1280, 2560])
def test_nothing_stands_out_of_the_window(opened: Opened, width: int) -> None:
    page = opened(width=width, height=844).page
    assert overflow(page) == []


def test_in_the_dark_the_words_are_light(opened: Opened) -> None:
    page = opened(scheme="dark").page
    ink, paper = (
        page.evaluate(f"getComputedStyle(document.body).{name}")
        for name in ("color", "backgroundColor")
    )
    assert (ink, paper) == ("rgb(232, 237, 242)", "rgb(20, 24, 29)")
