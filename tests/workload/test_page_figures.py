"""The report's figures in words: what is told, what is left out, and what is unknown."""

import pytest
from support.arrived import body

from toolkit.records import Seen
from toolkit.workload import columns, summarise
from toolkit.workload.levers import Lever
from toolkit.workload.page import (
    figures,
    lever_number,
    losses_told,
    size_words,
    ttl_words,
)


def seen(ts: float, prompt: str, **more: object) -> Seen:
    asked = body(prompt, max_tokens=50, prompt_chars=400)
    return Seen(ts=ts, asked=asked, **more)  # type: ignore[arg-type]


def told(*arrived: Seen) -> dict[str, tuple[str, str]]:
    return {name: (value, more) for name, value, more in figures(summarise(columns(arrived)))}


def test_what_arrived_is_told_in_figures() -> None:
    found = told(*(seen(100.0 + n, "ab"[n % 2], client="x", status=200) for n in range(9)))
    assert found["requests"] == ("9", "")
    assert found["unique"] == ("2 prompts", "2 as a cache sees them, 2 byte for byte")
    # 5 of 9
    assert found["most frequent prompt"][0] == "55.6 % of requests"
    # the top 10 and 100 of two prompts are both of them, which needs no word
    assert found["most frequent prompt"][1] == "top 2: 100 %"
    assert found["clients"] == ("1", "")
    assert found["max_tokens"] == ("50", "100 % of requests")
    # 400 characters are 100 tokens; 1.15 * 150 = 172.5
    assert found["max_model_len"] == (
        "256",
        "recommended: longest prompt + max_tokens, 15 % more, rounded up",
    )
    assert found["prompt tokens"] == (
        "100",
        "median; p90 100, p99 100, longest 100; mean 100",
    )
    assert found["answers"] == ("9", "HTTP 200: 9")


def test_what_is_unknown_is_a_dash_with_its_reason() -> None:
    found = told(seen(1.0, "a"))
    assert found["output tokens"][0] == "\N{EN DASH}"
    assert found["under way at once"][0] == "\N{EN DASH}"
    assert found["under way at once"][1]
    assert found["unique"][0] == "1 prompt"


def test_a_latency_is_told_as_a_median_and_means_with_their_decimals() -> None:
    latencies = [100.0, 200.0, 900.0]
    found = told(
        *(
            seen(n, "a", latency_ms=latency, output_tokens=n + 1)
            for n, latency in enumerate(latencies)
        )
    )
    assert found["answers"] == ("200 ms", "median latency")
    # 1, 2 and 3 tokens
    assert found["output tokens"][0] == "2"
    assert found["output tokens"][1].endswith("mean 2")


def test_a_median_that_limits_hide_is_unknown_and_the_reason_stands_beside_it() -> None:
    cut = (seen(n, "a", output_tokens=50, finish_reason="length") for n in range(3))
    found = told(seen(9.0, "a", output_tokens=20, finish_reason="stop"), *cut)
    # 3 x 50 + 20 of 4
    assert found["output tokens"] == (
        "\N{EN DASH}",
        "median unknown; longest 50, 3 cut off by their limit; mean 42.5",
    )


def test_only_classes_with_losses_are_told() -> None:
    assert losses_told({"kernel_drops": 3, "gaps": 0, "frames": 99}) == [
        "3 frames that the kernel dropped"
    ]
    assert losses_told({}) == []


@pytest.mark.parametrize(
    ("size", "word"),
    [
        (None, "all"),
        (10, "10"),
        (512, "512"),
        (1000, "1k"),
        (1024, "1k"),
        (32768, "32k"),
        (1500, "1500"),
    ],
)
def test_round_sizes_are_short(size: int | None, word: str) -> None:
    assert size_words(size) == word


def test_an_answer_without_an_end_is_kept_for_ever() -> None:
    assert ttl_words(None) == "kept for ever"


@pytest.mark.parametrize(
    ("number", "what", "words"),
    [
        (0.953, "share of requests", "95.3 %: share of requests"),
        (16.0, "times as many", "16 times as many"),
        (None, "share of requests", ""),
    ],
)
def test_a_levers_number_is_told_with_what_it_is_of(
    number: float | None, what: str, words: str
) -> None:
    lever = Lever(
        code="batching",
        saved_share=None,
        standalone_share=None,
        recommended=False,
        number=number,
        what=what,
        caveat="",
    )
    assert lever_number(lever) == words


def test_how_sure_the_repeats_to_come_are_is_told_where_it_is_an_interval() -> None:
    once = [seen(100.0 + n, chr(ord("c") + n)) for n in range(8)]
    varied = told(*(seen(50.0 + n, "ab"[n % 2]) for n in range(40)), *once)
    assert "; 95 % sure: " in varied["repeats to come"][1]
    # two prompts in turns, neither of which came only once
    assert told(*(seen(100.0 + n, "ab"[n % 2]) for n in range(40)))["repeats to come"] == (
        "100 %",
        # 38 of the 40 so far
        "of further requests ask what came before; 95.0 % did so far",
    )
