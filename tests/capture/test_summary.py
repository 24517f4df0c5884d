"""A capture in figures, counted by hand, and in words."""

from dataclasses import asdict, fields

import pytest

from toolkit.capture import summary as module
from toolkit.capture.counting import Counting
from toolkit.capture.records import Losses
from toolkit.capture.summary import (
    LOSS_CLASSES,
    MORE_CLASSES,
    CaptureSummary,
    NameCount,
    NameCounter,
    RequestCounter,
    advice,
    losses_in_words,
    lost_anything,
    requests_in_words,
)
from toolkit.records import Asked, Seen


def asked(prompt: str, **more: object) -> Asked:
    return Asked(exact_key=prompt * 32, prompt_key=prompt * 32, body_bytes=10, **more)


def chat(prompt: str, ts: float = 1.0, client: str = "me", **more: object) -> Seen:
    body = asked(prompt, model="tiny", **more)
    return Seen(ts=ts, client=client, method="POST", path="/v1/chat/completions", asked=body)


METRICS = Seen(ts=2.0, client="you", method="GET", path="/metrics")
DAMAGED = Seen(ts=9.0, client="me", damaged=True, problem="7 bytes lost")
NO_JSON = Seen(
    ts=3.0, path="/v1/x", asked=Asked(exact_key="9" * 32, body_bytes=3, problem="not JSON")
)


def told(*seen: Seen, losses: Losses | None = None, **more: int) -> CaptureSummary:
    tally = RequestCounter()
    for one in seen:
        tally.add(one)
    return tally.summary(losses or Losses(), **more)


def test_requests_are_counted_by_what_became_of_them() -> None:
    found = told(
        chat("a"), chat("b", stream=True), chat("a", stream=False), METRICS, NO_JSON, DAMAGED
    )
    assert (found.requests, found.complete, found.damaged) == (6, 5, 1)
    assert (found.prompts, found.other, found.unreadable) == (3, 2, 1)
    assert (found.unique, found.unique_error_share) == (2, None)
    assert found.repeat_share == pytest.approx(1 / 3)
    assert found.stream_share == pytest.approx(1 / 3)
    assert (found.clients, found.clients_at_least) == (2, False)
    assert (found.from_ts, found.to_ts) == (1.0, 9.0)
    assert found.models == (NameCount(name="tiny", requests=3),)
    assert found.paths == (
        NameCount(name="/v1/chat/completions", requests=3),
        NameCount(name="/metrics", requests=1),
        NameCount(name="/v1/x", requests=1),
    )


def test_the_top_prompts_come_with_their_share_and_a_preview_only_where_text_was_kept() -> None:
    found = told(chat("b"), chat("a", prompt_text="x" * 100), chat("a"), chat("a"), METRICS)
    first, second = found.top
    assert (first.prompt_key, first.requests, first.share, first.too_many) == ("a" * 32, 3, 0.75, 0)
    assert first.prompt_preview == "x" * 80
    assert (second.prompt_key, second.requests, second.prompt_preview) == ("b" * 32, 1, None)


def test_nothing_is_told_as_nothing_and_unknown_shares_as_unknown() -> None:
    found = told()
    assert (found.requests, found.unique, found.repeat_share, found.stream_share) == (
        0,
        0,
        None,
        None,
    )
    assert (found.from_ts, found.top, found.paths) == (None, (), ())
    assert requests_in_words(found) == "0 requests"


def test_every_class_of_loss_reaches_the_summary() -> None:
    """Each gets a number of its own: a class that is added to Losses and forgotten here fails."""
    counts = {one.name: 100 + n for n, one in enumerate(fields(Losses)) if one.default == 0}
    found = asdict(told(losses=Losses(**counts), not_stored=1, not_written=2))
    assert counts.items() <= found.items()
    assert (found["not_stored"], found["not_written"]) == (1, 2)
    assert list(found)[:8] == (
        "requests unique kernel_drops app_drops gaps truncated encrypted unparsed".split()
    )


def test_the_six_classes_are_told_even_when_nothing_was_lost() -> None:
    assert losses_in_words(told(chat("a"))) == (
        "Lost: kernel drops 0, application drops 0, gaps 0, truncated frames 0, "
        "encrypted connections 0, unparsed 0"
    )
    assert not lost_anything(told(chat("a")))
    words = losses_in_words(told(chat("a")), is_live=False)
    assert words.endswith(
        "unparsed 0 (what a kernel dropped while a file was written shows as gaps)"
    )


def test_every_other_class_is_told_when_there_is_some() -> None:
    for name, words in (*LOSS_CLASSES, *MORE_CLASSES):
        if name in ("damaged", "not_stored", "not_written"):
            continue
        found = told(losses=Losses(**{name: 1234}))
        assert f"{words} 1,234" in losses_in_words(found)
        assert lost_anything(found)
    found = told(DAMAGED, not_stored=5, not_written=6)
    assert losses_in_words(found).endswith(
        "unparsed 0, damaged requests 1, requests not stored 5, requests not written 6"
    )


@pytest.mark.parametrize(
    ("seen", "words"),
    [
        ([METRICS], "1 request, none with a prompt"),
        ([chat("a")], "1 request, 1 unique prompt, 0 % repeats"),
        ([chat("a")] * 3 + [chat("b")], "4 requests, 2 unique prompts, 50.0 % repeats"),
        ([chat("a"), METRICS], "2 requests (1 with a prompt), 1 unique prompt, 0 % repeats"),
        ([chat("a")] * 10_000, "10,000 requests, 1 unique prompt, > 99.9 % repeats"),
    ],
)
def test_requests_and_prompts_in_one_sentence(seen: list[Seen], words: str) -> None:
    assert requests_in_words(told(*seen)) == words


def test_against_kernel_drops_a_larger_buffer_is_named() -> None:
    dropped = RequestCounter().summary(Losses(kernel_drops=1))
    assert advice(dropped, is_live=True) == [
        "kernel drops: `--buffer 256MiB` bridges longer stalls"
    ]


def test_an_estimate_is_called_about() -> None:
    tally = RequestCounter(Counting(most=1))
    new = [tally.add(chat(prompt)) for prompt in "abab"]
    assert new == [True, None, False, None]
    found = tally.summary(Losses())
    assert found.unique_error_share
    assert requests_in_words(found) == "4 requests, about 2 unique prompts, 50.0 % repeats"


def test_a_scanner_s_paths_cost_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    names = NameCounter(2)
    for name in "abcabd":
        names.add(name)
    assert (len(names), names.others) == (2, 2)
    assert names.top() == (NameCount(name="a", requests=2), NameCount(name="b", requests=2))
    monkeypatch.setattr(module, "MOST_CLIENTS", 1)
    found = told(chat("a", client="x"), chat("a", client="y"))
    assert (found.clients, found.clients_at_least) == (1, True)
