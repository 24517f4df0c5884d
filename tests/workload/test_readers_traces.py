"""Rows of public traces, written out by hand in the form in which they were published."""

import dataclasses

import pytest

from toolkit.errors import ToolkitError
from toolkit.workload import RequestSource, read, readers

AZURE_2023 = b"""TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109
2023-11-16 18:15:51.2224670,374,44
"""
AZURE_2024 = b"""TIMESTAMP,ContextTokens,GeneratedTokens
2024-05-10 00:00:00.009930+00:00,2162,5
2024-05-10 01:00:00+01:00,2399,6
"""
BURSTGPT = b"""Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
45.5,GPT-4,1087,0,1087,API log
"""
MOONCAKE = b"""{"timestamp": 27482, "input_length": 1100, "output_length": 52, "hash_ids": [46, 47, 2353]}
{"timestamp": 30535, "input_length": 1024, "output_length": 26, "hash_ids": [46, 47]}
{"timestamp": 30536, "input_length": 1100, "output_length": 9, "hash_ids": [46, 47, 2353]}
{"timestamp": 30537, "input_length": 1101, "output_length": 1, "hash_ids": [46, 47, 2353]}
"""


def source(text: bytes, name: str = "trace") -> RequestSource:
    return read(text.splitlines(keepends=True), name, client=str)


def test_azures_rows_have_lengths_and_moments_and_no_two_are_alike():
    found = source(AZURE_2023)
    assert (found.kind, found.identities, found.arrivals) == ("azure", None, True)
    assert not found.beginnings
    rows = list(found.seen)
    # 2023-11-16 18:15:46 UTC is 1,700,158,546 s since 1970
    assert [round(one.ts - 1_700_158_546, 6) for one in rows] == [0.68059, 4.995169, 5.222467]
    assert [(one.asked.prompt_tokens, one.output_tokens) for one in rows] == [
        (374, 44),
        (396, 109),
        (374, 44),
    ]
    assert len({one.asked.prompt_key for one in rows}) == 3
    assert len({one.asked.exact_key for one in rows}) == 3
    assert found.notes == []


def test_azures_later_trace_tells_its_zone():
    first, second = source(AZURE_2024).seen
    # 01:00 at an hour's offset is midnight in UTC: 1,715,299,200 s since 1970
    assert (round(first.ts, 5), second.ts) == (1_715_299_200.00993, 1_715_299_200.0)


def test_burstgpts_failures_have_no_length():
    found = source(BURSTGPT)
    rows = list(found.seen)
    assert (found.kind, found.identities) == ("burstgpt", None)
    told = [(one.ts, one.asked.model, one.asked.prompt_tokens, one.output_tokens) for one in rows]
    assert told == [(5.0, "ChatGPT", 472, 18), (45.5, "GPT-4", 1087, None)]
    [note] = found.notes
    assert note.startswith(
        "1 request with an answer of no tokens, which BurstGPT's authors count as failures"
    )


def test_equal_ids_and_an_equal_length_are_one_prompt_and_only_whole_blocks_are_blocks():
    found = source(MOONCAKE)
    rows = list(found.seen)
    assert (found.kind, found.identities, found.arrivals) == ("mooncake", "prompts", True)
    assert found.beginnings
    assert [one.ts for one in rows] == [27.482, 30.535, 30.536, 30.537]
    asked = [one.asked for one in rows]
    # 1,100 tokens are two whole blocks and 76 tokens; the last row's 77 are another prompt's
    assert [one.prompt_key == asked[0].prompt_key for one in asked] == [True, False, True, False]
    assert asked[2] is asked[0]
    two = (46).to_bytes(8) + (47).to_bytes(8)
    assert [one.prompt_blocks for one in asked] == [two] * 4
    assert {one.block_tokens for one in asked} == {512.0}
    assert [one.prompt_tokens for one in asked] == [1100, 1024, 1100, 1101]
    assert [one.output_tokens for one in rows] == [52, 26, 9, 1]


def test_equal_prompts_of_whole_blocks_are_one_prompt_too():
    line = b'{"timestamp": 0, "input_length": 1024, "output_length": 1, "hash_ids": [7, 8]}\n'
    first, second = source(line * 2).seen
    assert first.asked is second.asked


def test_a_table_needs_no_more_than_its_four_columns_and_may_begin_at_zero():
    found = source(b"Timestamp,Model,Request tokens,Response tokens\n0,GPT-4,9,3\n")
    [one] = found.seen
    assert (found.kind, one.ts, one.asked.prompt_tokens, one.output_tokens) == ("burstgpt", 0, 9, 3)


def test_a_prompt_whose_end_has_no_id_is_like_no_other():
    line = b'{"timestamp": 0, "input_length": 600, "output_length": 1, "hash_ids": [7]}\n'
    first, second = source(line * 2).seen
    assert first.asked.prompt_key != second.asked.prompt_key
    assert first.asked.prompt_blocks == second.asked.prompt_blocks == (7).to_bytes(8)


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        (AZURE_2023.replace(b",396,", b",many,"), readers.AZURE_EXAMPLE),
        (AZURE_2023.replace(b",396,", b",-396,"), readers.AZURE_EXAMPLE),
        (AZURE_2023.replace(b"2023-11-16 18:15:50.9951690", b"yesterday"), readers.AZURE_EXAMPLE),
        (AZURE_2023.replace(b",396,109", b""), readers.AZURE_EXAMPLE),
        (AZURE_2023.replace(b",396,", b"," + b"9" * 400 + b","), readers.AZURE_EXAMPLE),
        (AZURE_2023.replace(b",396,", b',"' + b"9" * 200_000 + b'",'), readers.AZURE_EXAMPLE),
        (BURSTGPT.replace(b"5,ChatGPT", b"nan,ChatGPT") + b"5,x,1,1\n", readers.BURSTGPT_EXAMPLE),
        (BURSTGPT.replace(b"5,ChatGPT", b"-5,ChatGPT") + b"5,x,1,1\n", readers.BURSTGPT_EXAMPLE),
        (BURSTGPT.replace(b"472", b"x") + b"5,x,1,1\n", readers.BURSTGPT_EXAMPLE),
        (BURSTGPT.replace(b",18,", b",x,") + b"5,x,1,1\n", readers.BURSTGPT_EXAMPLE),
    ],
)
def test_a_wrong_row_names_its_line_and_what_was_expected(text, hint):
    with pytest.raises(ToolkitError) as caught:
        list(source(text, "a.csv").seen)
    assert caught.value.message.startswith("`a.csv` line ")
    assert caught.value.message[len("`a.csv` line ")] in "23"
    assert caught.value.hint == hint


@pytest.mark.parametrize(
    "wrong",
    [
        b'"hash_ids": [46, 47, 48, 49]',  # one too many
        b'"hash_ids": [46]',  # two whole blocks, one id
        b'"hash_ids": [46, 47, -1]',
        b'"hash_ids": [46, 47, 18446744073709551616]',  # 2**64
        b'"hash_ids": [46, 47, "a"]',
        b'"hash_ids": {}',
    ],
)
def test_ids_that_do_not_go_with_the_length_are_refused(wrong):
    text = MOONCAKE.replace(b'"hash_ids": [46, 47, 2353]', wrong, 1)
    with pytest.raises(ToolkitError, match=r"`trace` line 1 is no line of a Mooncake trace"):
        list(source(text).seen)


@pytest.mark.parametrize("wrong", [b'"timestamp": -1', b'"timestamp": null', b'"timestamp": "x"'])
def test_a_line_without_a_moment_is_refused(wrong):
    text = MOONCAKE.replace(b'"timestamp": 27482', wrong)
    with pytest.raises(ToolkitError, match=r"`trace` line 1 is no line of a Mooncake trace"):
        list(source(text).seen)


def test_a_line_without_a_length_is_refused():
    text = MOONCAKE.replace(b'"input_length": 1100', b'"input_length": null', 1)
    with pytest.raises(ToolkitError, match=r"`trace` line 1 is no line of a Mooncake trace"):
        list(source(text).seen)


def test_a_row_that_was_cut_off_is_told_and_left_out():
    for text in (AZURE_2023[:-20], BURSTGPT[:-28]):
        found = source(text)
        whole = len(text.splitlines()) - 2
        assert len(list(found.seen)) == whole
        assert "1 line cut off in the midst and left out" in found.notes


def test_the_source_tells_requests_of_two_files_apart():
    first = next(source(AZURE_2023, "a").seen)
    second = next(source(AZURE_2023, "b").seen)
    assert first.asked.prompt_key != second.asked.prompt_key
    assert dataclasses.replace(first, asked=None) == dataclasses.replace(second, asked=None)
