"""Profiles made of workloads: what a blast would send by them is compared with what was captured."""

import dataclasses
import json
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolkit.blast.script import HostScript
from toolkit.profiles import Profile, read_profile
from toolkit.protocol.request import asked
from toolkit.records import Asked, Seen
from toolkit.workload import RequestColumns, columns, shared_prefix, synthesis
from toolkit.workload.synthesis import Synthesis


def key(*parts: object) -> str:
    return blake2b(repr(parts).encode(), digest_size=16).hexdigest()


def body(content: str, *, stream: bool = False, system: str = "", **more: object) -> bytes:
    turns = [{"role": "system", "content": system}] if system else []
    turns.append({"role": "user", "content": content})
    return json.dumps({"model": "m", "messages": turns, "stream": stream, **more}).encode()


def made(seen: Iterable[Asked | bytes], *, identities: Any = "bodies", **more: Any) -> Synthesis:
    """A profile of requests a second apart."""
    rows = [
        Seen(ts=float(place), asked=one if isinstance(one, Asked) else asked(one, keep_text=True))
        for place, one in enumerate(seen)
    ]
    return synthesis(columns(rows, identities=identities), source="a capture", **more)


def profile_of(found: Synthesis) -> Profile:
    return read_profile(found.toml, "made", "toml")


def sent(profile: Profile, count: int) -> list[dict]:
    """Bodies as a blast by this profile sends them, canaries left out."""
    user = HostScript(profile, model="m", nonce="n", canary_share=0.0, seed=3).caller(0)
    return [json.loads(user.next().body) for _ in range(count)]


def texts(bodies: Sequence[dict]) -> list[str]:
    return ["\n".join(turn["content"] for turn in one["messages"]) for one in bodies]


# --- With texts -----------------------------------------------------------------------------------------

ROBOT = "Write a 50-word story about a robot exploring a garden."
CAPITAL = "What is the capital of Singapore?"


def test_the_contests_requests_come_back_as_they_were() -> None:
    turns = [(ROBOT, True), (CAPITAL, False), (CAPITAL, True), (CAPITAL, False)]
    found = made(body(text, stream=stream, max_tokens=256) for text, stream in 100 * turns)
    assert (found.prompts, found.tail_prompts, found.real, found.unique_share) == (2, 0, 2, 0.0)
    assert found.notes == ()
    profile = profile_of(found)
    assert "with the texts that were captured" in profile.summary
    # 300 of 400 ask for the capital, half of all stream
    assert [one.weight for one in profile.prompts] == [300.0, 100.0]
    assert (profile.stream_share, profile.max_tokens) == (0.5, 256)
    drawn = sent(profile, 4096)
    assert Counter(texts(drawn)) == {CAPITAL: 3072, ROBOT: 1024}
    assert {one["max_tokens"] for one in drawn} == {256}
    assert sum(one["stream"] for one in drawn) == 2048


ODD = 'A "quoted" \\ text\r\n\twith\x00all\x1f\x7f sorts \u2028 of 日本 characters\n'
TURNS = [
    {"role": "user", "content": "One\nline: and\nanother"},
    {"role": "assistant", "content": "Yes"},
    {"role": "user", "content": "More"},
]
UNSURE = [{"role": "user", "content": "Quote\nuser: x"}, {"role": "user", "content": "Go on"}]


@pytest.mark.parametrize(
    ("turns", "expected"),
    [
        *(
            ([{"role": "user", "content": text}],) * 2
            for text in (ODD, " led and trailed by blanks ", "'''", '"""', "[prompts]", "#")
        ),
        (TURNS, TURNS),
        # a conversation whose turns are not certain goes as one message
        (UNSURE, [{"role": "user", "content": "user: Quote\nuser: x\nuser: Go on"}]),
    ],
)
def test_a_prompt_comes_back_character_by_character(turns: list, expected: list) -> None:
    found = made([json.dumps({"messages": turns}).encode()] * 2)
    [prompt] = profile_of(found).prompts
    assert list(prompt.messages) == expected
    folded = [
        note.startswith("1 of 1 prompts go as one message of the user") for note in found.notes
    ]
    assert any(folded) is (turns is UNSURE)


def test_half_a_surrogate_pair_becomes_a_question_mark_and_no_limit_stays_none() -> None:
    one = Asked(
        exact_key="aa", prompt_key="aa", body_bytes=1, prompt_text="user: a\ud800b", messages=1, max_tokens=-1
    )  # fmt: skip
    [prompt] = profile_of(made([one] * 2)).prompts
    assert (prompt.messages[0]["content"], prompt.max_tokens) == ("a?b", None)


def test_a_system_message_that_all_begin_with_is_their_shared_prefix() -> None:
    seen = [body(f"Question {n % 3}", system="You are brief.") for n in range(9)]
    profile = profile_of(made(seen))
    assert profile.shared_prefix == "system"
    assert sorted(texts(sent(profile, 3))) == [f"You are brief.\nQuestion {n}" for n in range(3)]
    # another one of some: then each prompt brings its own
    profile = profile_of(made([*seen, *[body("x", system="You are long.")] * 2]))
    assert profile.shared_prefix is None
    firsts = {one.messages[0]["content"] for one in profile.prompts}
    assert firsts == {"You are brief.", "You are long."}


def test_each_prompts_own_limit_counts_or_else_the_length_that_answers_had() -> None:
    limits = [64, 64, 128, None, 512, 512, 512]
    profile = profile_of(made(body("a" if n < 4 else "b", max_tokens=limit) for n, limit in enumerate(limits)))  # fmt: skip
    prompts = [(one.messages[0]["content"], one.max_tokens) for one in profile.prompts]
    assert (prompts, profile.max_tokens) == ([("a", 64), ("b", 512)], 512)
    answers = [("a", 10), ("b", None), ("a", 31), ("a", None), ("b", None)]
    found = synthesis(
        columns(
            Seen(ts=float(n), asked=asked(body(text)), output_tokens=output)
            for n, (text, output) in enumerate(answers)
        ),
        source="a capture",
    )
    # 10 and 31 tokens: 20.5, which rounds to the even 20
    assert [one.max_tokens for one in profile_of(found).prompts] == [20, None]
    note = "1 of 2 prompts were asked without `max_tokens`"
    assert any(one.startswith(note) for one in found.notes)


def test_what_a_profile_cannot_hold_is_said() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:,x"}}
    turn = {"role": "user", "content": [{"type": "text", "text": "What?"}, image]}
    tools = [{"type": "function", "function": {"name": "f"}}]
    found = made([json.dumps({"messages": [turn], "tools": tools}).encode()] * 2)
    for begin in ("Images", "Tools", "No request set `max_tokens`"):
        assert any(note.startswith(begin) for note in found.notes)
    assert "How prompts begin alike is unknown; the profile's do not" in made([silent(1, 9)]).notes
    with pytest.raises(ValueError, match="no request"):
        made([])


# --- Without --------------------------------------------------------------------------------------------


def silent(
    name: object, chars: int | None = None, *, begins: Sequence[int] = (), **more: object
) -> Asked:
    """What is known of a prompt whose text was not kept; `begins` are its blocks, each of all before it."""
    chain, last = b"", b""
    for block in begins:
        last = blake2b(last + block.to_bytes(2), digest_size=8).digest()
        chain += last
    least = {"exact_key": key(name), "prompt_key": key(name), "body_bytes": 9, "max_tokens": 64}
    return Asked(
        **{**least, "prompt_chars": chars, "prompt_blocks": chain, "block_tokens": 16.0, **more}
    )


def test_synthetic_prompts_repeat_and_are_as_long_as_the_captured_ones() -> None:
    # 50 prompts, the first 51 times, the last twice; 100 to 4,020 characters
    seen = [silent(n, 100 + 80 * n) for n in range(50) for _ in range(51 - n)] + [silent(49, 4020)]
    found = made(seen)
    assert (found.prompts, found.real, found.unique_share) == (50, 0, 0.0)
    profile = profile_of(found)
    assert "in words that only have the same lengths" in profile.summary
    drawn = texts(sent(profile, len(seen)))
    lengths = [one.prompt_chars or 0 for one in seen]
    assert sorted(map(len, drawn)) == sorted(lengths)
    assert sorted(Counter(drawn).values()) == sorted(Counter(lengths).values())


def test_made_up_prompts_have_the_length_that_was_captured_and_differ_where_they_did() -> None:
    # in tokens: as many words
    seen = [silent(n, None, prompt_tokens=500 + n) for n in range(3)]
    drawn = texts(sent(profile_of(made(seen * 2)), 3))
    assert sorted(len(text.split()) for text in drawn) == [500, 501, 502]
    drawn = texts(sent(profile_of(made([silent(n, 1 + n) for n in range(40)] * 2)), 40))
    assert sorted(map(len, drawn)) == list(range(1, 41))
    assert all(text == text.strip() for text in drawn)
    # there are few words of a letter or two, so some have to grow
    seen = [silent(n, 1 + n % 2) for n in range(300)]
    drawn = texts(sent(profile_of(made(seen * 2, most_prompts=300)), 300))
    assert (len(set(drawn)), max(map(len, drawn)) <= 40) == (300, True)


def test_equal_beginnings_stay_equal_and_others_part_where_they_did() -> None:
    # 16 tokens a block, 64 characters: two share 5 blocks, a third of them 2, a fourth none
    chains = [[1, 2, 3, 4, 5, 60], [1, 2, 3, 4, 5, 61], [1, 2, 70, 71], [80, 81, 82]]
    seen = [silent(n, 400, begins=chain) for n, chain in enumerate(chains)]
    profile = profile_of(made(seen * 2))
    prompts = [one.messages[-1]["content"] for one in profile.prompts]
    assert ({len(text) for text in prompts}, profile.shared_prefix) == ({400}, None)

    def common(a: int, b: int) -> int:
        pairs = enumerate(zip(prompts[a], prompts[b], strict=True))
        return next(place for place, (x, y) in pairs if x != y)

    # whole blocks and at most a word more
    for a, b, blocks in ((0, 1, 5), (0, 2, 2), (1, 2, 2), (0, 3, 0), (1, 3, 0), (2, 3, 0)):
        assert blocks * 64 <= common(a, b) <= blocks * 64 + 8
    # blocks of all prompts are a shared prefix, less what a profile puts between it and the rest
    profile = profile_of(made([silent(n, 300, begins=[1, 2, 10 + n]) for n in range(4)] * 2))
    assert profile.shared_prefix == "p1"
    lengths = {tuple(len(turn["content"]) for turn in one.messages) for one in profile.prompts}
    assert lengths == {(126, 300 - 128)}
    # what no other prompt begins with is no passage
    assert "p2" not in made([silent(n, 300, begins=[1, 2, 10 + n]) for n in range(4)] * 2).toml


# --- The tail -------------------------------------------------------------------------------------------


def test_requests_that_were_like_no_other_bear_marks() -> None:
    found = made(silent(n, 200) for n in range(1000))
    assert (found.prompts, found.unique_share) == (0, 1.0)
    drawn = texts(sent(profile_of(found), 2000))
    assert len(set(drawn)) == 2000
    # a mark is 11 characters and a space
    assert {len(text) for text in drawn} == {212}
    found = made((silent(n, 100) for n in range(10)), identities=None)
    assert found.unique_share == 1.0
    assert "Which requests were alike is unknown: all of them bear a mark" in found.notes


def test_lengths_of_a_tail_are_those_of_some_of_it_evenly_from_short_to_long() -> None:
    lengths = [100 + n for n in range(2000)]
    random.Random(1).shuffle(lengths)
    found = made((silent(n, chars) for n, chars in enumerate(lengths)), most_prompts=20)
    listed = sorted(len(one.messages[0]["content"]) for one in profile_of(found).prompts)
    # the middles of 20 stretches of 100
    assert listed == [100 + 50 + 100 * k for k in range(20)]


def test_hot_prompts_keep_their_share_beside_a_tail_of_the_same_lengths() -> None:
    # 3 prompts have 600, 300 and 100 of 2,000 requests; 1,000 are like no other
    hot = [silent(("hot", n), 300) for n, times in enumerate((600, 300, 100)) for _ in range(times)]
    found = made([*hot, *(silent(n, 300) for n in range(1000))])
    assert (found.prompts, found.tail_prompts, found.unique_share) == (3, 0, 0.5)
    drawn = texts(sent(profile_of(found), 2000))
    top = [times for _, times in Counter(drawn).most_common(3)]
    # half of each hot prompt's turns bear a mark; which ones is drawn
    assert top == [pytest.approx(times, abs=40) for times in (600, 300, 100)]
    assert len(set(drawn)) == pytest.approx(1003, abs=40)


def test_a_tail_of_other_lengths_is_listed_too_and_what_that_costs_is_said() -> None:
    # 400 of 1,000 requests repeat one short prompt, 600 are long and like no other
    found = made([silent("hot", 50)] * 400 + [silent(n, 1050) for n in range(600)])
    # r = 0.4, D = 1: a = sqrt(0.4) = 0.632; 1 - 0.4 / 0.632 = 0.3675 of all bear marks
    assert (found.prompts, found.tail_prompts) == (1, 200)
    assert found.unique_share == pytest.approx(1 - 0.4 / 0.4**0.5, abs=1e-4)
    drawn = texts(sent(profile_of(found), 1000))
    assert Counter(drawn).most_common(1)[0][1] == pytest.approx(400, abs=40)
    mean = sum(len(text) - 12 * text.startswith("[") for text in drawn) / len(drawn)
    # 0.632 x 50 + 0.368 x 1,050 characters
    assert mean == pytest.approx(50 + 1000 * (1 - 0.4**0.5), rel=0.1)
    _, repeats, length = found.notes
    # 1 - 601 / 1,000
    assert repeats.startswith("Repeats: 39.9 % of the 1,000 requests, ")
    assert length == "Prompt length: 650 characters on average, 418 by the profile"
    expected = float(repeats.split("requests, ")[1].split(" %")[0]) / 100
    assert expected == pytest.approx(1 - len(set(drawn)) / 1000, abs=0.03)
    # 6 short prompts that come twice among 5,000 long ones are not worth wrong lengths
    twice = [silent(("twice", n), 20) for n in range(6)] * 2
    found = made([*twice, *(silent(n, 2000) for n in range(5000))])
    assert (found.prompts, found.unique_share) == (0, 1.0)
    assert any(note.startswith("Repeats: 0.1 % of the 5,012 requests, 0 %") for note in found.notes)


def test_marks_part_beginnings_where_different_prompts_share_few_and_leave_them_where_they_share_many() -> (
    None
):
    few = [silent(n, 700, begins=[1, n, 2, 3, 4, 5, 6, 7, 8]) for n in range(1000)]
    many = [silent(n, 700, begins=[1, 2, 3, 4, 5, 6, 7, 8, n]) for n in range(1000)]
    parted, left = made(few), made(many)
    # 1 of 9 blocks; and 8 of 9, and all but the first of each
    assert any("share 11.1 %" in note and note.endswith("profile none") for note in parted.notes)
    prefixes = (profile_of(parted).shared_prefix, profile_of(left).shared_prefix)
    assert prefixes == (None, "p1")
    drawn = sent(profile_of(left), 50)
    assert len({one["messages"][0]["content"] for one in drawn}) == 1
    assert all("[" in one["messages"][1]["content"][-11:] for one in drawn)


def test_a_profile_stays_within_its_size_whatever_is_captured() -> None:
    seen = [silent(n, 20_000) for n in range(3000)]
    found = made([*seen, *seen[:1000]], most_chars=1_000_000)
    assert len(found.toml) < 1_400_000
    assert found.prompts + found.tail_prompts > 10
    assert made([silent("a", 5_000_000)] * 2, most_chars=1_000_000).prompts == 1
    # millions of requests still have weights that a profile takes
    two = columns(Seen(ts=float(n), asked=silent(n, 50)) for n in range(2))
    found = synthesis(two.part(np.repeat([0, 1], [3_000_000, 1_000_000])), source="a test")
    assert [one.weight for one in profile_of(found).prompts] == [750.0, 250.0]
    assert found.unique_share == 0.0


PROMPTS = st.builds(
    Asked,
    exact_key=st.sampled_from([key(n) for n in range(6)]),
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
def test_whatever_was_captured_becomes_a_profile_that_can_be_read(
    seen: list[Asked], most_prompts: int, most_chars: int
) -> None:
    found = made(seen, most_prompts=most_prompts, most_chars=most_chars)
    profile = profile_of(found)
    assert len(profile.prompts) == found.prompts + found.tail_prompts
    assert len(sent(profile, 3)) == 3


# --- There and back: statistics of what was captured, and of what a blast of as many requests sends -------


def said(words: int, seed: object) -> str:
    draw = random.Random(str(seed))
    return " ".join(draw.choice(("one", "three", "eleven", "twelve")) for _ in range(words))


ASSISTANTS = [f"You are assistant {number}. {said(150, number)}" for number in range(5)]
HOT = [(ASSISTANTS[n % 5], said(40 + 3 * n, ("hot", n))) for n in range(60)]


def few_prompts(at: int) -> tuple[str, str]:
    return HOT[min(59, int(random.Random(at).paretovariate(1.0)) - 1)]


def tenth_unlike(at: int) -> tuple[str, str]:
    return (ASSISTANTS[at % 5], said(50, at)) if at % 10 == 9 else HOT[at % 19]


def all_unlike(at: int) -> tuple[str, str]:
    return ASSISTANTS[at * 7 % 5], said(100 + at % 300, at)


def statistics(bodies: Sequence[bytes]) -> dict[str, float]:
    laid: RequestColumns = columns(
        Seen(ts=float(at), asked=asked(one)) for at, one in enumerate(bodies)
    )
    times = np.sort(np.bincount(laid.prompt))[::-1] / len(laid)
    return {
        "unique": len(times),
        "top": float(times[0]),
        "top_10": float(times[:10].sum()),
        "streamed": float(laid.per_request("stream").mean()),
        "chars": float(laid.per_request("prompt_chars").mean()),
        "prefix": shared_prefix(laid).share or 0.0,
    }


@pytest.mark.parametrize(
    ("prompts", "keep_text", "near"),
    [
        *(
            (few_prompts, keep_text, {"unique": 5, "top": 0.01, "top_10": 0.01, "streamed": 0.001, "chars": 15, "prefix": 0.02})
            for keep_text in (False, True)
        ),
        # how often a hot prompt's turn is one that bears a mark is drawn
        (tenth_unlike, False, {"unique": 5, "top": 0.02, "top_10": 0.04, "chars": 30, "prefix": 0.03}),
        # beginnings cannot be had together with marks, and the profile says which way it errs
        (all_unlike, False, {"unique": 0, "chars": 60}),
    ],
)  # fmt: skip
def test_a_blast_by_a_profile_has_the_workloads_statistics(
    prompts: Any, keep_text: bool, near: dict[str, float]
) -> None:
    bodies = [
        body(user, system=system, max_tokens=64, stream=at % 4 == 0)
        for at, (system, user) in enumerate(map(prompts, range(2000)))
    ]
    found = made(asked(one, keep_text=keep_text) for one in bodies)
    assert found.real == (found.prompts + found.tail_prompts) * keep_text
    before = statistics(bodies)
    after = statistics([json.dumps(one).encode() for one in sent(profile_of(found), 2000)])
    for name, most in near.items():
        assert after[name] == pytest.approx(before[name], abs=most), name
    if prompts is all_unlike:
        assert any(note.startswith("Beginnings: different prompts") for note in found.notes)
