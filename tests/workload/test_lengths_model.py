"""The recommended `max_model_len`: the contest's 512 instead of 8192, its margin, and what other limits would refuse."""

import pytest
from support.arrived import arrived

from toolkit.workload import RequestColumns
from toolkit.workload.lengths import ModelLength, model_length, prompt_tokens, rounded_up

ROBOT = "Write a 50-word story about a robot exploring a garden."
CAPITAL = "What is the capital of Singapore?"


def judged(columns: RequestColumns, **settings: int | None) -> ModelLength:
    return model_length(columns, prompt_tokens(columns), **settings)


def contest(requests: int = 2000) -> RequestColumns:
    """Two prompts, in turns, each with max_tokens 256; the answers were not followed."""
    texts = [(ROBOT, CAPITAL)[n % 2] for n in range(requests)]
    return arrived(texts, prompt_chars=[len(text) for text in texts], max_tokens=256)


def test_the_contest_needs_512_instead_of_8192() -> None:
    # 55 characters / 4 = 13.75, 14 tokens; 14 + 256 = 270; with 15 % 310.5; the next multiple of 256 is 512
    found = judged(contest(), current=8192)
    assert (found.longest, found.recommended) == (270, 512)
    assert (found.basis, found.why) == ("max_tokens", "longest prompt + max_tokens")
    assert found.room_factor == 16.0  # 8192 / 512
    # the winner's own count, 15 + 256 = 271, and one with a chat template, 35 + 256 = 291, say the same
    assert rounded_up(271) == rounded_up(291) == 512


@pytest.mark.parametrize(
    ("longest", "expected"),
    # 222 * 1.15 = 255.3; 223 * 1.15 = 256.45; 445 * 1.15 = 511.75; 446 * 1.15 = 512.9;
    # 1280 * 1.15 = 1472; 2560 * 1.15 = 2944 = 11.5 * 256; 5120 * 1.15 = 5888 = 23 * 256 exactly
    [(0, 256), (1, 256), (222, 256), (223, 512), (445, 512), (446, 768), (1280, 1536), (2560, 3072),
     (5120, 5888), (5121, 6144)],
)  # fmt: skip
def test_the_margin_is_15_per_cent_and_steps_are_256(longest: int, expected: int) -> None:
    assert rounded_up(longest) == expected


def test_the_longest_is_that_of_one_request_not_of_two_maxima() -> None:
    # 4000 + 10 and 10 + 2000: 4010, not 6000
    found = judged(arrived(list("ab"), usage=[4000, 10], max_tokens=[10, 2000]))
    assert found.longest == 4010


def test_where_no_limit_is_set_the_answers_own_quantile_stands_for_it() -> None:
    # 1,000 answers of 1 to 1000 tokens: 99.9 % end by 999; 100 + 999
    columns = arrived(
        range(1000), usage=100, output_tokens=list(range(1, 1001)), finish_reason="stop"
    )
    found = judged(columns)
    assert (found.basis, found.longest) == ("observed", 1099)
    assert found.recommended == 1280  # 1099 * 1.15 = 1263.85


def test_answers_that_their_limit_ended_push_the_quantile_up() -> None:
    # 998 answers of 100, one cut at 100, one that ended by itself at 900: without the cut 99.9 % end by 100, with it
    # the cut one may be as long as the last: still longer than 100: 1 - 998 / 1000 = 0.002, than 900: 0
    outputs = [100] * 998 + [100, 900]
    ends = ["stop"] * 998 + ["length", "stop"]
    cut = judged(arrived(range(1000), usage=10, output_tokens=outputs, finish_reason=ends))
    ended = judged(arrived(range(1000), usage=10, output_tokens=outputs, finish_reason="stop"))
    assert cut.longest == 910
    assert ended.longest == 110


def test_when_even_the_longest_was_cut_it_is_the_least_that_is_needed_and_said_so() -> None:
    found = judged(
        arrived(list("ab"), usage=10, output_tokens=[50, 64], finish_reason=["stop", "length"])
    )
    assert found.longest == 74
    assert "it may need more" in found.why


def test_requests_with_and_without_a_limit_are_judged_each_by_its_own() -> None:
    columns = arrived(
        list("abc"), usage=[10, 10, 500], max_tokens=[300, 300, None], output_tokens=[20, 30, 40],
        finish_reason="stop",
    )  # fmt: skip
    found = judged(columns)
    # 10 + 300, 500 + 40
    assert (found.basis, found.longest) == ("mixed", 540)
    unseen = judged(arrived(list("ab"), usage=[10, 500], max_tokens=[300, None]))
    assert (unseen.basis, unseen.longest) == (
        "mixed",
        800,
    )  # 500 + the largest limit that anybody set
    assert "largest max_tokens" in unseen.why


def test_with_neither_limits_nor_answers_nothing_is_recommended() -> None:
    found = judged(arrived(list("ab"), usage=10), current=4096)
    assert (found.recommended, found.room_factor) == (None, None)
    assert found.why == "requests set no max_tokens, and no answer's length is known"
    assert judged(arrived(list("ab"), max_tokens=5)).why == "no prompt's length is known"
    assert judged(arrived([])).why == "no requests"
    assert judged(arrived([])).refusals == ()


def test_what_other_limits_would_have_refused_is_counted() -> None:
    # needs of 500, 513, 1024, 1025, 40000
    columns = arrived(range(5), usage=[244, 257, 768, 769, 39_744], max_tokens=256)
    found = judged(columns, current=40_000)
    assert [(one.max_model_len, one.refused) for one in found.refusals] == [
        (512, 4), (1024, 2), (2048, 1), (4096, 1), (8192, 1), (16384, 1), (32768, 1), (40_000, 0),
    ]  # fmt: skip
    assert found.refusals[0].refused_share == 0.8


def test_a_request_without_a_limit_is_refused_by_its_prompt_alone_and_else_cut() -> None:
    # prompt 511 + at least one token fits 512, 512 does not; 300 + 400 seen is cut at 512
    columns = arrived(list("abcd"), usage=[511, 512, 300, 100], output_tokens=[1, 1, 400, 100])
    at_512 = judged(columns).refusals[0]
    assert (at_512.refused, at_512.cut) == (1, 1)


def test_the_model_caps_what_is_recommended_and_a_need_beyond_it_is_told() -> None:
    columns = arrived(list("ab"), usage=[7000, 8100], max_tokens=256)
    found = judged(columns, model_max=8192)
    assert (found.recommended, found.capped) == (8192, True)
    assert any("needs 8,356 tokens, the model takes 8,192" in one for one in found.warnings)
    # 7936 + 256: to the last token
    fits = judged(arrived(list("ab"), usage=[7000, 7936], max_tokens=256), model_max=8192)
    assert not any("the model takes" in one for one in fits.warnings)
    assert (fits.recommended, fits.capped) == (8192, False)


def test_few_requests_and_estimates_are_warned_of() -> None:
    few = " ".join(judged(contest(999)).warnings)
    assert "999 requests" in few
    assert "rests on estimated prompts" in few
    assert "requests: a longer" not in " ".join(judged(contest(1000)).warnings)
    told = judged(arrived(range(1000), usage=10, max_tokens=10))
    assert told.warnings == ()


def test_prompts_of_unknown_length_are_left_out_and_counted() -> None:
    found = judged(arrived(list("abc"), usage=[100, None, None], max_tokens=50))
    assert found.longest == 150
    assert any("2 prompts of unknown length" in one for one in found.warnings)


def test_a_limit_that_no_model_can_give_is_told_and_recommends_nothing() -> None:
    # 100 + 400 = 500; the two others count as if they had set none, so as the largest of those that did
    columns = arrived(list("abc"), usage=100, max_tokens=[400, 10**18, -5])
    found = judged(columns)
    assert (found.longest, found.basis) == (500, "mixed")
    assert "2 requests ask for a max_tokens that no model gives" in " ".join(found.warnings)
    # a server refuses it all the same, whatever its limit
    assert [one.refused for one in found.refusals] == [1] * len(found.refusals)
    assert "no model gives" not in " ".join(judged(contest()).warnings)
