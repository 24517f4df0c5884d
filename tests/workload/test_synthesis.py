"""Profiles made of workloads: what a blast would send by them is compared with what was captured."""

import dataclasses
import itertools
import json
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from hashlib import blake2b

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolkit.blast.script import HostScript
from toolkit.profiles import Profile, read_profile
from toolkit.protocol.request import asked
from toolkit.records import Asked, Seen
from toolkit.workload import columns
from toolkit.workload.columns import Identities
from toolkit.workload.synthesis import Synthesis, synthesis, words


def key(*parts: object) -> str:
    return blake2b(repr(parts).encode(), digest_size=16).hexdigest()


def body(content: str, *, stream: bool = False, system: str = "", **more: object) -> bytes:
    turns = [{"role": "system", "content": system}] if system else []
    turns.append({"role": "user", "content": content})
    return json.dumps({"model": "m", "messages": turns, "stream": stream, **more}).encode()


def made(
    seen: Iterable[Asked | bytes], *, identities: Identities = "bodies", **more: object
) -> Synthesis:
    """A profile of requests a second apart."""
    rows = [
        Seen(ts=float(place), asked=one if isinstance(one, Asked) else asked(one, keep_text=True))
        for place, one in enumerate(seen)
    ]
    return synthesis(columns(rows, identities=identities), source="a capture", **more)


def read(found: Synthesis) -> Profile:
    return read_profile(found.toml, "made", "toml")


def sent(profile: Profile, count: int) -> list[dict]:
    """Bodies as a blast by this profile sends them, canaries left out."""
    user = HostScript(profile, model="m", nonce="n", canary_share=0.0, seed=3).caller(0)
    return [json.loads(user.next().body) for _ in range(count)]


def texts(bodies: Sequence[dict]) -> list[str]:
    return ["\n".join(turn["content"] for turn in one["messages"]) for one in bodies]


# --- With texts ---------------------------------------------------------------------------------

ROBOT = "Write a 50-word story about a robot exploring a garden."
CAPITAL = "What is the capital of Singapore?"


def test_the_contests_requests_come_back_as_they_were():
    seen = [
        body(text, stream=stream, max_tokens=256)
        for text, stream in 100
        * [(ROBOT, True), (CAPITAL, False), (CAPITAL, True), (CAPITAL, False)]
    ]
    found = made(seen)
    assert (found.prompts, found.tail_prompts, found.real, found.unique_share) == (2, 0, 2, 0.0)
    assert found.notes == ()
    profile = read(found)
    assert "with the texts that were captured" in profile.summary
    # 300 of 400 ask for the capital, half of all stream
    assert [(one.messages[0]["content"], one.weight) for one in profile.prompts] == [
        (CAPITAL, 300.0),
        (ROBOT, 100.0),
    ]
    assert (profile.stream_share, profile.max_tokens) == (0.5, 256)
    drawn = sent(profile, 4096)
    assert Counter(texts(drawn)) == {CAPITAL: 3072, ROBOT: 1024}
    assert {one["max_tokens"] for one in drawn} == {256}
    assert sum(one["stream"] for one in drawn) == 2048


ODD = 'A "quoted" \\ text\r\n\twith\x00all\x1f\x7f sorts \u2028 of 日本 characters\n'


@pytest.mark.parametrize(
    "text", [ODD, " led and trailed by blanks ", "'''", '"""', "[prompts]", "#"]
)
def test_a_text_comes_back_character_by_character(text):
    [prompt] = read(made([body(text)] * 2)).prompts
    assert prompt.messages == ({"role": "user", "content": text},)


def test_half_a_surrogate_pair_becomes_a_question_mark():
    one = Asked(
        exact_key="aa", prompt_key="aa", body_bytes=1, prompt_text="user: a\ud800b", messages=1
    )
    [prompt] = read(made([one] * 2)).prompts
    assert prompt.messages[0]["content"] == "a?b"


def test_a_conversation_comes_back_turn_by_turn():
    turns = [
        {"role": "user", "content": "One\nline: and\nanother"},
        {"role": "assistant", "content": "Yes"},
        {"role": "user", "content": "More"},
    ]
    one = json.dumps({"messages": turns}).encode()
    [prompt] = read(made([one] * 2)).prompts
    assert list(prompt.messages) == turns


def test_a_conversation_whose_turns_are_not_certain_goes_as_one_message_and_says_so():
    turns = [{"role": "user", "content": "Quote\nuser: x"}, {"role": "user", "content": "Go on"}]
    found = made([json.dumps({"messages": turns}).encode()] * 2)
    [prompt] = read(found).prompts
    assert prompt.messages == ({"role": "user", "content": "user: Quote\nuser: x\nuser: Go on"},)
    assert found.notes[0].startswith("1 of 1 prompts go as one message of the user")


def test_a_system_message_that_all_begin_with_is_their_shared_prefix():
    seen = [body(f"Question {n % 3}", system="You are brief.") for n in range(9)]
    profile = read(made(seen))
    assert profile.shared_prefix == "system"
    assert sorted(texts(sent(profile, 3))) == [f"You are brief.\nQuestion {n}" for n in range(3)]
    # another one of some: then each prompt brings its own
    profile = read(made([*seen, *[body("x", system="You are long.")] * 2]))
    assert profile.shared_prefix is None
    assert {one.messages[0]["content"] for one in profile.prompts} == {
        "You are brief.",
        "You are long.",
    }


def test_each_prompts_own_limit_is_kept_and_the_most_frequent_counts():
    limits = [64, 64, 128, None, 512, 512, 512]
    seen = [body("a" if n < 4 else "b", max_tokens=limit) for n, limit in enumerate(limits)]
    profile = read(made(seen))
    assert [(one.messages[0]["content"], one.max_tokens) for one in profile.prompts] == [
        ("a", 64),
        ("b", 512),
    ]
    assert profile.max_tokens == 512


def test_the_length_that_answers_had_stands_in_for_a_limit_that_nobody_set():
    rows = [
        Seen(ts=float(n), asked=asked(body(text)), output_tokens=output)
        for n, (text, output) in enumerate(
            [("a", 10), ("b", None), ("a", 31), ("a", None), ("b", None)]
        )
    ]
    found = synthesis(columns(rows), source="a capture")
    # 10 and 31 tokens: 20.5, which rounds to the even 20
    assert [one.max_tokens for one in read(found).prompts] == [20, None]
    assert any(
        note.startswith("1 of 2 prompts were asked without `max_tokens`") for note in found.notes
    )


def test_what_a_profile_cannot_hold_is_told():
    image = {"type": "image_url", "image_url": {"url": "data:,x"}}
    turn = {"role": "user", "content": [{"type": "text", "text": "What?"}, image]}
    tools = [{"type": "function", "function": {"name": "f"}}]
    found = made([json.dumps({"messages": [turn], "tools": tools}).encode()] * 2)
    assert any("Images" in note for note in found.notes)
    assert any("Tools" in note for note in found.notes)
    assert any("No request set `max_tokens`" in note for note in found.notes)


# --- Without ------------------------------------------------------------------------------------


def silent(
    name: object, chars: int | None = None, *, begins: Sequence[int] = (), **more: object
) -> Asked:
    """What is known of a prompt whose text was not kept; `begins` are its blocks, each of all before it."""
    chain, last = b"", b""
    for block in begins:
        last = blake2b(last + bytes([block]), digest_size=8).digest()
        chain += last
    least = {"exact_key": key(name), "prompt_key": key(name), "body_bytes": 9, "max_tokens": 64}
    return Asked(
        **{**least, "prompt_chars": chars, "prompt_blocks": chain, "block_tokens": 16.0, **more}
    )


def test_synthetic_prompts_repeat_and_are_as_long_as_the_captured_ones():
    # 50 prompts, the first 51 times, the last twice; 100 to 4,020 characters
    seen = [silent(n, 100 + 80 * n) for n in range(50) for _ in range(51 - n)] + [silent(49, 4020)]
    requests = len(seen)
    assert requests == sum(range(2, 52)) + 1 - 1 + 1
    found = made(seen)
    assert (found.prompts, found.real, found.unique_share) == (50, 0, 0.0)
    profile = read(found)
    assert "in words that only have the same lengths" in profile.summary
    drawn = texts(sent(profile, requests))
    assert Counter(Counter(map(len, drawn)).values()) == Counter(Counter(len_of(seen)).values())
    assert sorted(map(len, drawn)) == sorted(len_of(seen))
    assert len(set(drawn)) == 50


def len_of(seen: Sequence[Asked]) -> list[int]:
    return [one.prompt_chars or 0 for one in seen]


def test_equal_beginnings_stay_equal_and_others_part_where_they_did():
    # 16 tokens a block, 64 characters: two share 5 blocks, a third of them 2, a fourth none
    chains = [[1, 2, 3, 4, 5, 60], [1, 2, 3, 4, 5, 61], [1, 2, 70, 71], [80, 81, 82]]
    seen = [silent(n, 400, begins=chain) for n, chain in enumerate(chains)]
    profile = read(made(seen * 2))
    told = [one.messages[-1]["content"] for one in profile.prompts]
    assert {len(text) for text in told} == {400}
    assert profile.shared_prefix is None

    def common(a: int, b: int) -> int:
        pairs = enumerate(zip(told[a], told[b], strict=True))
        return next(place for place, (x, y) in pairs if x != y)

    # whole blocks and at most a word more
    assert 5 * 64 <= common(0, 1) <= 5 * 64 + 8
    assert 2 * 64 <= common(0, 2) <= 2 * 64 + 8
    assert 2 * 64 <= common(1, 2) <= 2 * 64 + 8
    assert max(common(n, 3) for n in range(3)) <= 8


def test_blocks_of_all_prompts_are_a_shared_prefix():
    seen = [silent(n, 300, begins=[1, 2, 10 + n]) for n in range(4)]
    profile = read(made(seen * 2))
    assert profile.shared_prefix == "p1"
    [prefix] = {one.messages[0]["content"] for one in profile.prompts}
    # two blocks of 64 characters, less what a profile puts between them and the rest
    assert len(prefix) == 126
    assert {len(one.messages[1]["content"]) for one in profile.prompts} == {300 - 128}


def test_lengths_told_in_tokens_become_as_many_words():
    seen = [silent(n, None, prompt_tokens=500 + n, max_tokens=None) for n in range(3)]
    found = made(seen * 2)
    lengths = [len(text.split()) for text in texts(sent(read(found), 3))]
    assert sorted(lengths) == [500, 501, 502]


def test_short_prompts_that_differ_still_do():
    seen = [silent(n, 1 + n % 2) for n in range(300)]
    drawn = texts(sent(read(made(seen * 2, most_prompts=300)), 300))
    assert len(set(drawn)) == 300
    # there are few words of a letter or two, so some had to grow
    assert max(map(len, drawn)) <= 40


def test_words_are_equal_for_an_equal_seed_and_have_the_length_that_was_asked_for():
    for length in itertools.chain(range(1, 200), [10_000]):
        text = words("a", length, in_chars=True)
        assert len(text) == length
        assert text == text.strip()
        assert len(words("a", length, in_chars=False).split()) == length
    assert words("a", 500, in_chars=True) == words("a", 500, in_chars=True)
    assert words("a", 500, in_chars=True) != words("b", 500, in_chars=True)


# --- The tail -----------------------------------------------------------------------------------


def test_requests_that_were_like_no_other_bear_marks():
    found = made(silent(n, 200) for n in range(1000))
    assert (found.prompts, found.unique_share) == (0, 1.0)
    profile = read(found)
    drawn = texts(sent(profile, 2000))
    assert len(set(drawn)) == 2000
    # a mark is 11 characters and a space
    assert {len(text) for text in drawn} == {212}


def test_lengths_of_a_tail_are_those_of_some_of_it_evenly_from_short_to_long():
    lengths = [100 + n for n in range(2000)]
    random.Random(1).shuffle(lengths)
    profile = read(made((silent(n, chars) for n, chars in enumerate(lengths)), most_prompts=20))
    assert sorted(len(one.messages[0]["content"]) for one in profile.prompts) == [
        # the middles of 20 stretches of 100
        100 + 50 + 100 * k
        for k in range(20)
    ]


def test_hot_prompts_keep_their_share_beside_a_tail_of_the_same_lengths():
    # 3 prompts have 600, 300 and 100 of 2,000 requests; 1,000 are like no other
    hot = [silent(("hot", n), 300) for n, times in enumerate((600, 300, 100)) for _ in range(times)]
    seen = [*hot, *(silent(n, 300) for n in range(1000))]
    found = made(seen)
    assert (found.prompts, found.tail_prompts, found.unique_share) == (3, 0, 0.5)
    drawn = texts(sent(read(found), 2000))
    top = [times for _, times in Counter(drawn).most_common(3)]
    # half of each hot prompt's turns bear a mark; which ones is drawn
    assert top == [pytest.approx(times, abs=40) for times in (600, 300, 100)]
    assert len(set(drawn)) == pytest.approx(1003, abs=40)


def test_a_tail_of_other_lengths_is_listed_too_and_what_that_costs_is_told():
    # 400 of 1,000 requests repeat one short prompt, 600 are long and like no other
    seen = [silent("hot", 50)] * 400 + [silent(n, 1050) for n in range(600)]
    found = made(seen)
    # r = 0.4, D = 1: a = sqrt(0.4) = 0.632; 1 - 0.4 / 0.632 = 0.3675 of all bear marks
    assert found.prompts == 1
    assert found.tail_prompts == 200
    assert found.unique_share == pytest.approx(1 - 0.4 / 0.4**0.5, abs=1e-4)
    drawn = texts(sent(read(found), 1000))
    assert Counter(drawn).most_common(1)[0][1] == pytest.approx(400, abs=40)
    mean = sum(len(text) - 12 * text.startswith("[") for text in drawn) / len(drawn)
    # 0.632 x 50 + 0.368 x 1,050 characters
    assert mean == pytest.approx(50 + 1000 * (1 - 0.4**0.5), rel=0.1)
    unknown, repeats, length = found.notes
    assert unknown == "How prompts begin alike is unknown; the profile's do not"
    # 1 - 601 / 1,000
    assert repeats.startswith("Repeats: 39.9 % of the 1,000 requests, ")
    assert length == "Prompt length: 650 characters on average, 418 by the profile"
    told = float(repeats.split("requests, ")[1].split(" %")[0]) / 100
    assert told == pytest.approx(1 - len(set(drawn)) / 1000, abs=0.03)


def test_repeats_that_are_few_are_not_worth_wrong_lengths():
    # 6 short prompts come twice among 5,000 long ones
    seen = [silent(("twice", n), 20) for n in range(6)] * 2 + [silent(n, 2000) for n in range(5000)]
    found = made(seen)
    assert (found.prompts, found.unique_share) == (0, 1.0)
    assert any(note.startswith("Repeats: 0.1 % of the 5,012 requests, 0 %") for note in found.notes)


def test_marks_part_beginnings_where_different_prompts_share_few_and_leave_them_where_they_share_many():
    few = [silent(n, 700, begins=[1, *(n % 250, n // 250, 3, 4, 5, 6, 7, 8)]) for n in range(1000)]
    many = [silent(n, 700, begins=[1, 2, 3, 4, 5, 6, 7, n % 250, n // 250]) for n in range(1000)]
    parted, left = made(few), made(many)
    assert read(parted).shared_prefix is None
    # 1 of 9 blocks; and 7 of 9, and all but the first of each
    assert any("share 1" in note and note.endswith("profile none") for note in parted.notes)
    assert read(left).shared_prefix == "p1"
    drawn = sent(read(left), 50)
    assert len({one["messages"][0]["content"] for one in drawn}) == 1
    assert all("[" in one["messages"][1]["content"][-11:] for one in drawn)


def test_unknown_likeness_is_told_and_all_bear_marks():
    found = made((silent(n, 100) for n in range(10)), identities=None)
    assert found.unique_share == 1.0
    assert "Which requests were alike is unknown: all of them bear a mark" in found.notes


def test_a_profile_stays_within_its_size_whatever_is_captured():
    seen = [silent(n, 20_000) for n in range(3000)]
    found = made([*seen, *seen[:1000]], most_chars=1_000_000)
    assert len(found.toml) < 1_400_000
    assert found.prompts + found.tail_prompts > 10
    enormous = made([silent("a", 5_000_000)] * 2, most_chars=1_000_000)
    assert enormous.prompts == 1


def test_millions_of_requests_still_have_weights_that_a_profile_takes():
    two = columns(Seen(ts=float(n), asked=silent(n, 50)) for n in range(2))
    found = synthesis(two.part(np.repeat([0, 1], [3_000_000, 1_000_000])), source="a test")
    weights = [one.weight for one in read_profile(found.toml, "made", "toml").prompts]
    assert weights == [750.0, 250.0]
    assert found.unique_share == 0.0


PROMPTS = st.builds(
    Asked,
    exact_key=st.sampled_from([key(n) for n in range(6)]),
    prompt_key=st.none(),
    body_bytes=st.just(1),
    max_tokens=st.none() | st.integers(-1, 10**9),
    stream=st.none() | st.booleans(),
    messages=st.none() | st.integers(0, 3),
    images=st.integers(0, 1),
    options=st.lists(st.sampled_from(["tools", "x"]), max_size=1).map(tuple),
    prompt_chars=st.none() | st.integers(0, 500),
    prompt_tokens=st.none() | st.integers(0, 500),
    prompt_text=st.none()
    | st.text()
    | st.lists(
        st.sampled_from(["system: ", "user: ", "assistant: ", "tool: ", "\n", " ", "a", "\x7f"])
    ).map("".join),
    prompt_blocks=st.lists(st.sampled_from([b"1" * 8, b"2" * 8, b"3" * 8]), unique=True).map(
        b"".join
    ),
    block_tokens=st.sampled_from([None, 16.0, 512.0]),
).map(lambda one: dataclasses.replace(one, prompt_key=one.exact_key))


@settings(max_examples=40, deadline=None)
@given(st.lists(PROMPTS, min_size=1, max_size=12), st.integers(1, 5), st.integers(1, 2000))
def test_whatever_was_captured_becomes_a_profile_that_can_be_read(seen, most_prompts, most_chars):
    found = made(seen, most_prompts=most_prompts, most_chars=most_chars)
    profile = read(found)
    assert len(profile.prompts) == found.prompts + found.tail_prompts
    assert len(sent(profile, 3)) == 3


def test_a_limit_that_is_none_is_no_profiles_limit():
    asked = Asked(exact_key="a", prompt_key="a", body_bytes=1, max_tokens=-1, prompt_chars=9)
    assert read(made([asked])).max_tokens is None


def test_no_request_is_no_profile():
    with pytest.raises(ValueError, match="no request"):
        made([])
