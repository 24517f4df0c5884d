"""Random prompts: which lengths a word means, and that each prompt has exactly the wanted tokens by a server's own count."""

import re
from collections.abc import Callable

import pytest

from toolkit.bench.random_prompts import (
    MOST_COUNTS,
    Lengths,
    NotCountedError,
    Words,
    calibration,
    read_lengths,
)

Count = Callable[[str], int | None]


def by_words(text: str) -> int:
    """As tokenizers of large models count common words, in a chat template of 9 tokens."""
    return 9 + len(text.split(" "))


def by_short_words(text: str) -> int:
    """A small vocabulary: words of up to three letters are one token each, others two."""
    return 1 + sum(1 + (len(word) > 3) for word in text.split(" "))


def by_letters(text: str) -> int:
    """No word is one token."""
    return len(text)


def without_blanks(text: str) -> int:
    """Parts no text at blanks: from 200 letters on, others come out than their sum."""
    return len(text.split(" ")) + (len(text) > 200)


def calibrated(count: Count, lengths: Lengths | None = None) -> tuple[Words, int]:
    """The words, and how many texts were counted."""
    steps, asked = calibration(lengths), 0
    text = next(steps)
    while True:
        asked += 1
        try:
            try:
                text = steps.send(count(text))
            except NotCountedError as error:
                text = steps.throw(error)
        except StopIteration as end:
            return end.value, asked


SOME = Lengths(least=64, most=512)


@pytest.mark.parametrize("count", [by_words, by_short_words])
def test_a_prompt_has_exactly_the_tokens_that_the_server_counts(count: Count) -> None:
    words, asked = calibrated(count, SOME)
    assert words.is_exact
    # the first word's, and those of the two lengths
    assert asked <= MOST_COUNTS + 3
    for tokens in (words.least, 64, 512, 4096):
        assert count(words.text(tokens, f"key {tokens}")) == tokens


def test_a_large_models_words_are_known_after_two_counts() -> None:
    assert calibrated(by_words)[1] == 2


@pytest.mark.parametrize("count", [by_letters, without_blanks])
def test_what_cannot_be_counted_in_words_is_an_estimate(count: Count) -> None:
    words, asked = calibrated(count, SOME)
    assert asked <= 5
    assert not words.is_exact
    assert len(words.text(512, "key").split(" ")) == 512 - words.around + 1


def test_a_longest_prompt_beyond_the_context_makes_no_other_an_estimate() -> None:
    def at_most_500(text: str) -> int:
        if by_words(text) > 500:
            raise NotCountedError("its context has 500 tokens")
        return by_words(text)

    words, _ = calibrated(at_most_500, SOME)
    assert words.is_exact
    # no answer to any other text is the host's trouble, and no estimate
    with pytest.raises(NotCountedError):
        calibrated(at_most_500, Lengths(least=501, most=512))


def test_an_answer_without_a_count_makes_estimates() -> None:
    assert calibrated(lambda _: None, SOME) == (Words(), 1)


def test_equal_keys_give_equal_prompts_and_others_unlike_ones() -> None:
    words, _ = calibrated(by_words)
    prompts = {words.text(words.least, f"key {number}") for number in range(1_000)}
    assert len(prompts) == 1_000
    assert words.text(40, "a") == words.text(40, "a")
    # a beginning that all share leaves each its own last words
    one, other = (words.text(40, key, shared="s").split(" ") for key in "ab")
    assert one[:-6] == other[:-6]
    assert one[-6:] != other[-6:]


def test_a_prompt_shorter_than_its_template_is_refused_with_the_least() -> None:
    words, _ = calibrated(by_words)
    # 9 of the template, the first word, and 6 that tell it from others
    refusal = words.refusal(Lengths(least=15, most=20))
    assert refusal is not None
    assert "ask for 16 or more" in refusal
    assert words.refusal(Lengths(least=16, most=20)) is None


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("512", Lengths(least=512, most=512)),
        (" 256:1024 ", Lengths(least=256, most=1024)),
        # three deviations on both sides, and never below 1
        ("normal:512:64", Lengths(least=320, most=704, mean=512, deviation=64)),
        ("normal:100:50", Lengths(least=1, most=250, mean=100, deviation=50)),
        ("normal:8:0", Lengths(least=8, most=8, mean=8, deviation=0)),
        *((text, None) for text in ("", "0", "-1", "1.5", "9:8", "normal:5", "0:5", "1:2:3")),
        *((text, None) for text in ("normal:0:5", "99999999", "\N{ARABIC-INDIC DIGIT ONE}", "x")),
    ],
)
def test_a_length_is_a_number_a_range_or_a_normal_distribution(
    text: str, wanted: Lengths | None
) -> None:
    assert read_lengths(text) == wanted


def test_drawn_lengths_keep_to_their_distribution() -> None:
    evenly = read_lengths("10:19")
    normal = read_lengths("normal:500:50")
    assert evenly
    assert normal
    drawn = [evenly.at(f"input 0 {number}") for number in range(2_000)]
    # each of ten lengths 200 times, give or take five standard deviations (13.4)
    assert all(133 < drawn.count(length) < 267 for length in range(10, 20))
    assert set(drawn) == set(range(10, 20))
    drawn = [normal.at(f"input 0 {number}") for number in range(2_000)]
    # the mean of 2,000 is off by 1.1; 68.3 % lie within a deviation
    assert abs(sum(drawn) / 2_000 - 500) < 6
    assert 0.63 < sum(abs(one - 500) <= 50 for one in drawn) / 2_000 < 0.74
    assert evenly.at("a") == evenly.at("a")


def test_no_word_is_two() -> None:
    assert re.fullmatch(r"[a-z]+( [a-z]+)*", " ".join(Words().words))
    assert len(set(Words().words)) == len(Words().words)
