"""When the events of a stored stream are due. All times by hand."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.pairs import PAIRS, RECORDED, kept, kept_stream, kept_whole

from toolkit.proxy.answers.replay import plan, tokens_by_event
from toolkit.proxy.answers.views import Shown, shown
from toolkit.proxy.exchange import View

# a role, three tokens, the usage, the end
MS = (300, 300, 325, 350, 350, 350)
TOKENS = (0, 1, 1, 1, 0, 0)


def test_at_once_means_all_in_one_step():
    assert plan(MS, TOKENS, "instant") == [(0.0, 6)]


def test_the_original_pace_is_that_of_the_recording():
    assert plan(MS, TOKENS, "original") == [(0.3, 2), (0.325, 3), (0.35, 6)]


def test_a_pace_sends_the_first_token_at_once_and_the_others_evenly():
    # 50 tokens/s: 0.02 s apart; what has no token goes with what comes before it
    assert plan(MS, TOKENS, 50.0) == [(0.0, 2), (0.02, 3), (0.04, 6)]


def test_an_event_with_several_tokens_is_due_with_its_last_one():
    # 1 + 3 + 2 tokens at 10 tokens/s: the 1st at 0, the 4th at 0.3, the 6th at 0.5
    assert plan((0, 0, 0), (1, 3, 2), 10.0) == [(0.0, 1), (0.3, 2), (0.5, 3)]
    # all in one lump, as a whole body tells them
    assert plan((7, 7, 7), (0, 5, 0), 10.0) == [(0.0, 1), (0.4, 3)]


def test_nothing_is_due_of_nothing():
    assert plan((), (), "instant") == []
    assert plan((), (), "original") == []
    assert plan((), (), 5.0) == []


def test_times_that_run_backwards_keep_the_order():
    assert plan((5, 3, 9), (1, 1, 1), "original") == [(0.005, 2), (0.009, 3)]


EVENTS = st.lists(st.tuples(st.integers(0, 60_000), st.integers(0, 9)), min_size=1, max_size=60)


@given(events=EVENTS, mode=st.sampled_from(["instant", "original"]) | st.floats(0.5, 10_000))
def test_every_event_is_due_once_in_order_and_never_too_early(events, mode):
    ms, tokens = [at for at, _ in events], [count for _, count in events]
    steps = plan(ms, tokens, mode)
    assert steps[-1][1] == len(events)
    assert steps[0][0] >= 0
    for (earlier, sooner), (later, after) in pairwise(steps):
        assert earlier < later
        assert sooner < after
    if isinstance(mode, float):
        for at, upto in steps:
            # the first token, and from then on so many a second
            assert sum(tokens[:upto]) <= 1 + at * mode + 1e-6


@given(events=EVENTS)
def test_at_the_original_pace_no_event_is_early_or_late(events):
    ms = sorted(at for at, _ in events)
    steps = plan(ms, [0] * len(ms), "original")
    due = [
        at
        for (at, upto), before in zip(steps, [0, *(n for _, n in steps)], strict=False)
        for _ in range(upto - before)
    ]
    assert due == [at / 1000 for at in ms]


# --- tokens of events -----------------------------------------------------------------------------


def in_view(answer: Shown | None) -> Shown:
    assert answer is not None
    return answer


USAGE = View(stream=True, usage=True)


@pytest.mark.parametrize(
    ("name", "tokens"),
    [
        # a role, 16 tokens, the usage, the end
        ("chat_stream.txt", [0, *[1] * 16, 0, 0]),
        ("completions_stream.body", [1, 1, 1, 1, 0, 0]),
    ],
)
def test_a_recorded_stream_tells_the_tokens_of_its_events(name, tokens):
    endpoint = "chat/completions" if name.startswith("chat") else "completions"
    stored = kept((RECORDED / name).read_bytes(), endpoint=endpoint)
    assert tokens_by_event(in_view(shown(stored, USAGE))) == tokens


def test_without_its_usage_each_event_with_a_text_counts_as_one():
    answer = in_view(shown(kept_stream("chat"), View(stream=True)))
    assert tokens_by_event(answer) == [0, *[1] * 6, 0]


def test_a_stream_made_of_a_body_has_its_tokens_in_one_event():
    answer = in_view(shown(kept_whole("chat"), USAGE))
    # a role, the text of 6 tokens, the usage, the end
    assert tokens_by_event(answer) == [0, 6, 0, 0]
    # read half a second after it was sent; at 10 tokens/s the sixth token is due after half a second, too
    assert plan(answer.ms, tokens_by_event(answer), "original") == [(0.5, 4)]
    assert plan(answer.ms, tokens_by_event(answer), 10.0) == [(0.0, 1), (0.5, 4)]


def test_two_choices_take_turns():
    answer = in_view(shown(kept_stream("chat_n2"), USAGE))
    # two roles, 4 tokens of each choice, the usage, the end
    assert tokens_by_event(answer) == [0, 0, *[1] * 8, 0, 0]


def test_a_stream_without_a_token_has_none():
    role = b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":"stop"}]}\n\n'
    stored = kept(role + b"data: [DONE]\n\n")
    answer = in_view(shown(stored, View(stream=True)))
    assert tokens_by_event(answer) == [0, 0]
    assert plan(answer.ms, tokens_by_event(answer), 5.0) == [(0.0, 2)]


@pytest.mark.parametrize(
    ("name", "tokens"),
    [
        # created, in progress, an item, a part, two deltas, four ends
        ("responses", [0, 0, 0, 0, 1, 1, 0, 0, 0, 0]),
        # start, a block, four deltas, its end, the reason (`message_delta`), the end
        ("messages", [0, 0, 1, 1, 1, 1, 0, 0, 0]),
    ],
)
def test_of_other_endpoints_each_delta_counts_as_one(name, tokens):
    stored = kept((PAIRS / f"{name}.txt").read_bytes(), endpoint=name)
    answer = in_view(shown(stored, View(stream=True)))
    assert tokens_by_event(answer) == tokens
