"""The report for people: its figures in words, what is drawn where, and that nothing of a request can become a tag."""

import re

import pytest
from support.arrived import arrived, body

from toolkit.records import Seen
from toolkit.workload import RequestColumns, columns, summarise
from toolkit.workload.levers import Lever
from toolkit.workload.page import figures, lever_number, losses_lines, page, size_words, ttl_words


def in_words(columns: RequestColumns) -> dict[str, tuple[str, str]]:
    return {name: (value, more) for name, value, more in figures(summarise(columns))}


def test_what_arrived_is_said_in_figures() -> None:
    found = in_words(arrived("ababababa", client="x", status=200, max_tokens=50, prompt_chars=400))
    assert found["requests"] == ("9", "")
    assert found["unique"] == ("2 prompts", "2 as a cache sees them, 2 byte for byte")
    # 5 of 9; the top 10 and 100 of two prompts are both of them, which needs no word
    assert found["most frequent prompt"] == ("55.6 % of requests", "top 2: 100 %")
    assert found["clients"] == ("1", "")
    assert found["max_tokens"] == ("50", "100 % of requests")
    # 400 characters are 100 tokens; 1.15 * 150 = 172.5
    more = "recommended: longest prompt + max_tokens, 15 % more, rounded up"
    assert found["max_model_len"] == ("256", more)
    assert found["prompt tokens"] == ("100", "median; p90 100, p99 100, longest 100; mean 100")
    assert found["answers"] == ("9", "HTTP 200: 9")


def test_what_is_unknown_is_a_dash_with_its_reason() -> None:
    found = in_words(arrived(["a"]))
    assert found["output tokens"][0] == found["answers"][0] == "\N{EN DASH}"
    assert found["under way at once"][0] == "\N{EN DASH}"
    assert found["under way at once"][1]
    assert found["unique"][0] == "1 prompt"


def test_a_latency_is_a_median_and_a_median_that_limits_hide_is_unknown() -> None:
    found = in_words(arrived("aaa", latency_ms=[100.0, 200.0, 900.0], output_tokens=[1, 2, 3]))
    assert found["answers"] == ("200 ms", "median latency")
    assert found["output tokens"] == ("2", "median; p90 3, p99 3, longest 3; mean 2")
    ends = ["length"] * 3 + ["stop"]
    found = in_words(arrived("aaaa", output_tokens=[50, 50, 50, 20], finish_reason=ends))
    # 3 x 50 + 20 of 4
    assert found["output tokens"] == (
        "\N{EN DASH}",
        "median unknown; longest 50, 3 cut off by their limit; mean 42.5",
    )


def test_how_sure_the_repeats_to_come_are_is_said_where_it_is_an_interval() -> None:
    varied = in_words(arrived([*"ab" * 20, *range(8)]))
    assert "; 95 % sure: " in varied["repeats to come"][1]
    # two prompts in turns, neither of which came only once: 38 of the 40 so far
    assert in_words(arrived("ab" * 20))["repeats to come"] == (
        "100 %",
        "of further requests ask what came before; 95.0 % did so far",
    )


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (size_words(None), "all"),
        (size_words(512), "512"),
        (size_words(1000), "1k"),
        (size_words(1024), "1k"),
        (size_words(32768), "32k"),
        (size_words(1500), "1500"),
        (ttl_words(None), "kept for ever"),
        (ttl_words(600), "kept 10 min"),
        (losses_lines({"kernel_drops": 3, "gaps": 0, "frames": 9}), ["3 frames that the kernel dropped"]),
        (losses_lines({}), []),
        (lever_number(Lever(code="batching", number=0.953, what="share of all", caveat="")), "95.3 %: share of all"),
        (lever_number(Lever(code="batching", number=16.0, what="times", caveat="")), "16 times"),
        (lever_number(Lever(code="batching", what="share of all", caveat="")), ""),
    ],
)  # fmt: skip
def test_sizes_times_losses_and_levers_in_words(found: object, expected: object) -> None:
    assert found == expected


# --- The page -------------------------------------------------------------------------------------------


def report(*seen: Seen, losses: dict[str, int] | None = None, source: str = "capture `x`") -> str:
    return page(summarise(columns(seen)), source=source, notes=["a note"], losses=losses or {})


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


def test_a_bar_is_as_high_as_its_share_and_what_is_not_known_is_said_in_its_place() -> None:
    # 3 of 4 ask the same: its bar leaves a quarter of the box of 1000 free
    html = report(seen(1.0), seen(2.0), seen(3.0), seen(4.0, "b"))
    assert "<title>top 1: 75.0 %</title>" in chart(html, "tops")
    assert "V250.0H" in chart(html, "tops")
    assert "<svg" not in chart(html, "output-tokens")
    assert "capture with --full" in chart(html, "output-tokens")


def test_names_and_sources_are_text_and_nothing_is_fetched() -> None:
    evil = "</style><img src=x onerror=alert(1)>"
    html = report(seen(1.0, model=evil), source=f"`{evil}` (bodies)", losses={"kernel_drops": 7})
    assert "<img" not in html
    assert html.count("</style>") == 1
    assert html.count("&lt;img src=x") >= 2
    assert "default-src 'none'" in html
    assert not re.search(r"""(src|href)\s*="|url\(|@import|<script|<link""", html)
    # losses, notes and warnings stand below
    assert "<li>7 frames that the kernel dropped</li>" in html
    assert "<li>a note</li>" in html


def test_a_second_that_the_capture_did_not_fill_is_no_fall_of_the_load() -> None:
    # 4 requests in each of 3 whole seconds, 2 in the fourth: a level line from the first to the third
    html = chart(report(*(seen(1e9 + n / 4) for n in range(14))), "arrivals")
    [path] = re.findall(r'd="(M[^"]*)" class="ink"', html)
    assert len({float(y) for y in re.findall(r"[ML][\d.]+ ([\d.]+)", path)}) == 1


def test_a_long_line_is_drawn_with_as_many_points_as_can_be_seen() -> None:
    # 3,601 s of one request a second: 13 s a point, 277 whole ones
    html = chart(report(*(seen(1e9 + n) for n in range(3602))), "arrivals")
    assert "<svg" in html
    assert len(html) < 20_000
    assert "from 2001-09-09 01:46:40 UTC" in html
