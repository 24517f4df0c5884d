"""When the events of a stored stream are due at so many tokens a second. All times by hand."""

from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.pairs import PAIRS, RECORDED, kept_stream, kept_whole
from support.replies import DONE, FINISH, ROLE, USAGE, said

from toolkit.proxy.responses.transcode import ResponseFormat, convert, paced

USAGE_TOO = ResponseFormat(stream=True, usage=True)


def by_event(body: bytes, steps: list[tuple[float, int]]) -> list[tuple[float, int]]:
    """The steps with the number of events instead of bytes."""
    ends = [*accumulate(len(each) + 2 for each in body.split(b"\n\n")[:-1])]
    return [(at, ends.index(end) + 1) for at, end in steps]


def test_the_first_token_is_sent_at_once_and_the_others_evenly():
    # 50 tokens/s: 0.02 s apart; what has no token goes with what comes before it
    body = ROLE + said("a", "b", "c") + USAGE + DONE
    assert by_event(body, paced(body, 50.0)) == [(0.0, 2), (0.02, 3), (0.04, 6)]
    assert paced(b"", 5.0) == []
    assert by_event(ROLE + DONE, paced(ROLE + DONE, 5.0)) == [(0.0, 2)]


def test_an_event_with_several_tokens_is_due_with_its_last_one():
    stored = convert(kept_whole("chat"), USAGE_TOO)
    assert stored is not None
    # a role, the text of 6 tokens, the usage, the end: at 10 tokens/s the sixth is due after half a second
    assert by_event(stored[1], paced(stored[1], 10.0)) == [(0.0, 1), (0.5, 4)]


@given(texts=st.lists(st.sampled_from(["", "a", "bc"]), max_size=40), rate=st.floats(0.5, 10_000))
def test_every_event_is_due_once_in_order_and_never_too_early(texts, rate):
    body = ROLE + said(*texts) + FINISH + DONE
    steps = by_event(body, paced(body, rate))
    assert steps[-1][1] == len(texts) + 3
    assert steps == sorted(steps)
    for at, upto in steps:
        # the first token, and from then on so many a second
        assert sum(map(bool, ["", *texts][:upto])) <= 1 + at * rate + 1e-6


@pytest.mark.parametrize(
    ("body", "dues"),
    [
        # a role, 16 tokens, the usage, the end
        ((RECORDED / "chat_stream.txt").read_bytes(), [2, *range(3, 17), 19]),
        # two roles, 4 tokens of each choice in turn, the usage, the end
        (kept_stream("chat_n2").body, [3, *range(4, 10), 12]),
        # created, in progress, an item, a part, two deltas, four ends
        ((PAIRS / "responses.txt").read_bytes(), [5, 10]),
        # start, a block, four deltas, its end, the reason (`message_delta`), the end
        ((PAIRS / "messages.txt").read_bytes(), [3, 4, 5, 9]),
    ],
)
def test_recorded_streams_are_due_token_by_token(body, dues):
    assert by_event(body, paced(body, 1.0)) == [(float(at), due) for at, due in enumerate(dues)]
