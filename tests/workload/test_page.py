"""The HTML report: what is drawn where, and that nothing of a request can become a tag."""

import re

from support.arrived import body

from toolkit.records import Seen
from toolkit.workload import columns, summarise
from toolkit.workload.page import page


def report(*arrived: Seen, losses: dict[str, int] | None = None, told: str = "capture `x`") -> str:
    return page(summarise(columns(arrived)), told=told, notes=["a note"], losses=losses or {})


def seen(ts: float, prompt: str = "a", model: str = "m", output: int | None = None) -> Seen:
    asked = body(prompt, prompt_chars=80, max_tokens=9, model=model)
    return Seen(ts=ts, asked=asked, output_tokens=output)


def chart(html: str, key: str) -> str:
    found = re.search(rf'<figure[^>]*data-chart="{key}".*?</figure>', html)
    assert found
    return found[0]


def test_each_plot_has_its_place_and_says_in_words_what_it_shows() -> None:
    html = report(*(seen(1e9 + n, "ab"[n % 2], output=5) for n in range(40)))
    for key in ("hits", "tops", "arrivals", "prompt-tokens", "output-tokens", "refusals"):
        assert "<svg" in chart(html, key), key
        assert re.search(r'aria-label="[^"]{5,}"', chart(html, key)), key


def test_a_bar_is_as_high_as_its_share() -> None:
    # 3 of 4 ask the same: its bar leaves a quarter of the box of 1000 free
    html = chart(report(seen(1.0), seen(2.0), seen(3.0), seen(4.0, "b")), "tops")
    assert "<title>top 1: 75.0 %</title>" in html
    assert "V250.0H" in html


def test_what_is_not_known_is_said_where_its_plot_would_stand() -> None:
    html = chart(report(seen(1.0), seen(2.0)), "output-tokens")
    assert "<svg" not in html
    assert "capture with --full" in html


def test_names_and_sources_are_text_whatever_they_hold() -> None:
    evil = "</style><img src=x onerror=alert(1)>"
    html = report(seen(1.0, model=evil), seen(2.0, model=evil), told=f"`{evil}` (bodies)")
    assert "<img" not in html
    assert html.count("</style>") == 1
    assert html.count("&lt;img src=x") >= 2


def test_nothing_is_fetched_and_nothing_may_be() -> None:
    html = report(seen(1.0), seen(2.0))
    assert "default-src 'none'" in html
    assert not re.search(r"""(src|href)\s*=|url\(|@import|<script|<link""", html)


def test_losses_notes_and_warnings_stand_below() -> None:
    html = report(seen(1.0), losses={"kernel_drops": 7})
    assert "<li>7 frames that the kernel dropped</li>" in html
    assert "<li>a note</li>" in html


def test_a_second_that_the_capture_did_not_fill_is_no_fall_of_the_load() -> None:
    # 4 requests in each of 3 whole seconds, 1 in the fourth: a level line from the first to the third
    html = chart(report(*(seen(1e9 + n / 4) for n in range(13))), "arrivals")
    [path] = re.findall(r'd="(M[^"]*)" class="ink"', html)
    heights = {float(y) for y in re.findall(r"[ML][\d.]+ ([\d.]+)", path)}
    assert len(heights) == 1


def test_a_long_line_is_drawn_with_as_many_points_as_can_be_seen() -> None:
    # 3,601 s of one request a second: 13 s a point, 277 whole ones
    html = chart(report(*(seen(1e9 + n) for n in range(3602))), "arrivals")
    assert "<svg" in html
    assert len(html) < 20_000
    assert "from 2001-09-09 01:46:40 UTC" in html
