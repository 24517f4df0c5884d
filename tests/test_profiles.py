"""Profiles: what a file of prompts means, what it says of a blast's load, what a bad one says, and that the catalog's own are good."""

import base64
import re
import tomllib
from importlib import resources
from pathlib import Path

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.errors import ToolkitError
from toolkit.profiles import Kind, Phase, Profile, Prompt, read_profile

ROOT = Path(__file__).parent.parent
CATALOG = ("bench", "chain", "contest", "long-prompt", "ramp", "shared-prefix", "short-answer")


def user(text: str) -> tuple[dict[str, str], ...]:
    return ({"role": "user", "content": text},)


def from_catalog(name: str) -> Profile:
    file = resources.files("toolkit").joinpath("catalog", "profiles", f"{name}.toml")
    return read_profile(file.read_text(encoding="utf-8"), name, "toml")


def refusal(text: str, kind: Kind) -> str:
    with pytest.raises(ToolkitError) as caught:
        read_profile(text, "mine", kind)
    assert caught.value.hint
    return caught.value.message


def test_a_toml_profile_says_all_that_a_profile_knows() -> None:
    text = """
        summary = "Two questions"
        stream_share = 0.5
        max_tokens = 128
        [[prompts]]
        name = "robot"
        text = "Write a story."
        max_tokens = 64
        weight = 3
        [[prompts]]
        messages = [{role = "system", content = "Be brief."}, {role = "user", content = "Hi"}]
    """
    assert read_profile(text, "mine", "toml") == Profile(
        name="mine",
        summary="Two questions",
        prompts=(
            Prompt(name="robot", messages=user("Write a story."), max_tokens=64, weight=3.0),
            Prompt(
                name="prompt-2",
                messages=({"role": "system", "content": "Be brief."}, *user("Hi")),
                max_tokens=None,
                weight=1.0,
            ),
        ),
        stream_share=0.5,
        max_tokens=128,
    )


def test_passages_stand_before_the_text_in_the_order_named() -> None:
    text = """
        [[prompts]]
        text = "Question?"
        passages = ["b", "a"]
        [passages]
        a = '''
Alpha.
'''
        b = "Beta."
    """
    (prompt,) = read_profile(text, "mine", "toml").prompts
    assert prompt.messages == user("Beta.\n\nAlpha.\n\nQuestion?")


def test_plain_text_is_one_prompt_a_line_and_blank_lines_are_none() -> None:
    profile = read_profile("\ufeffHi there\r\n\n   \n# no comment\n", "mine", "text")
    assert profile.prompts == (
        Prompt(name="line-1", messages=user("Hi there")),
        Prompt(name="line-4", messages=user("# no comment")),
    )


def test_jsonl_is_a_request_body_or_a_prompt_a_line() -> None:
    lines = (
        '{"model": "m", "stream": true, "max_tokens": 32, "messages": [{"role": "user", "content": "Hi"}]}',
        "",
        '{"prompt": "Go on: 1, 2,", "max_completion_tokens": 8, "max_tokens": null}',
        '{"prompt": "one\u2028prompt"}',  # a bare U+2028 is no end of a line
        '{"input": ["to embed"], "output_tokens": 5}',
    )
    profile = read_profile("\n".join(lines), "mine", "jsonl")
    # who leaves `stream` out beside those that have it means false
    assert profile.prompts == (
        Prompt(name="line-1", messages=user("Hi"), max_tokens=32, stream=True),
        Prompt(name="line-3", messages=user("Go on: 1, 2,"), max_tokens=8, stream=False),
        Prompt(name="line-4", messages=user("one\u2028prompt"), stream=False),
        Prompt(name="line-5", messages=user("to embed"), max_tokens=5, stream=False),
    )
    assert profile.notes == ()


TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]


def test_a_recorded_body_is_kept_whole_wherever_a_line_has_it() -> None:
    body = {
        "model": "m",
        "messages": [{"role": "user", "content": "Hi"}],
        "tools": TOOLS,
        "response_format": {"type": "json_object"},
        "temperature": 0.5,
        "max_tokens": 9,
    }
    text = orjson.dumps(body).decode()
    captured = {"ts": 1.5, "method": "POST", "path": "/v1/chat/completions"}
    rows = [
        body,
        captured | {"body": text},
        captured | {"body_base64": base64.b64encode(text.encode()).decode()},
        {"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": body},
        # what a capture also saw, and its last line
        {"ts": 2.0, "method": "GET", "path": "/v1/models"},
        {"summary": {"requests": 4}},
    ]
    lines = "\n".join(orjson.dumps(row).decode() for row in rows)
    more = {key: body[key] for key in ("tools", "response_format", "temperature")}
    assert read_profile(lines, "mine", "jsonl").prompts == tuple(
        Prompt(name=f"line-{number}", messages=user("Hi"), max_tokens=9, more=more)
        for number in range(1, 5)
    )
    whole = read_profile(orjson.dumps(rows).decode(), "mine", "jsonl").prompts
    assert [(one.name, one.more) for one in whole] == [(f"entry-{n}", more) for n in range(1, 5)]


def test_further_columns_of_a_data_set_are_not_sent() -> None:
    lines = (
        '{"prompt": "Hi", "completion": "Hello", "id": 3}',
        '{"body": {"prompt": "Hi", "seed": 5}}',
        '{"model": "m", "prompt": "Hi", "seed": 5}',
    )
    profile = read_profile("\n".join(lines), "mine", "jsonl")
    assert [prompt.more for prompt in profile.prompts] == [{}, {"seed": 5}, {"seed": 5}]
    assert profile.notes == (
        "Not sent, as a line without `messages` or `model` is no request body: `completion` and `id`",
    )


def test_one_long_limit_lifts_no_other_prompts() -> None:
    lines = (
        '{"prompt": "Hi", "max_tokens": 8192}',
        '{"prompt": "Hi"}',
        '{"prompt": "Hi", "max_tokens": 9}',
    )
    profile = read_profile("\n".join(lines), "mine", "jsonl")
    assert [prompt.max_tokens for prompt in profile.prompts] == [8192, 256, 9]
    assert profile.max_tokens == 8192
    assert profile.notes == (
        "Prompts of `mine` without a limit are answered with 256 tokens at most",
    )


def test_what_a_capture_could_not_read_is_skipped_and_counted() -> None:
    captured = {"ts": 1.5, "method": "POST", "path": "/v1/chat/completions", "damaged": False}
    half = '{"messages": [{"role": "user", "con'
    rows = [
        captured | {"body": '{"prompt": "Hi"}'},
        captured | {"body": None},
        captured | {"body": half, "damaged": True},
        captured | {"body": half},
        captured | {"body_base64": "?"},
        captured | {"body": '{"messages": []}'},
        captured | {"path": "/v1/rerank", "body": '{"query": "a", "documents": ["b"]}'},
        {"ts": 2.0, "method": "GET", "path": "/v1/models"},
    ]
    text = "\n".join(orjson.dumps(row).decode() for row in rows)
    profile = read_profile(text, "mine", "jsonl")
    assert profile.prompts == (Prompt(name="line-1", messages=user("Hi")),)
    assert profile.notes == ("6 of 7 requests in `mine` are skipped: no readable prompt",)
    assert "none of the 6 requests in `mine` has a readable prompt" in refusal(
        text.partition("\n")[2], "jsonl"
    )


def test_of_a_sharegpt_conversation_the_first_question_is_asked() -> None:
    def turns(*said: tuple[str, object]) -> dict[str, object]:
        return {"id": "x", "conversations": [{"from": who, "value": what} for who, what in said]}

    rows = [
        turns(("human", "Why?"), ("gpt", "Because of the moon."), ("human", "And?"), ("gpt", "!")),
        # 20 characters are 5 tokens; nobody answered; an answer before the first question
        turns(("human", "Hm?")),
        turns(("gpt", "Hello"), ("human", "Who?"), ("gpt", "I")),
        turns(("human", " "), ("gpt", "What?")),
        turns(("human", 5), ("gpt", "What?")),
        {"id": "y", "conversations": []},
    ]
    profile = read_profile(orjson.dumps(rows).decode(), "sharegpt.json", "jsonl")
    assert profile.prompts == (
        Prompt(name="entry-1", messages=user("Why?"), max_tokens=5),
        Prompt(name="entry-3", messages=user("Who?"), max_tokens=1),
    )
    assert profile.notes == (
        "The answers' limits are estimated from `sharegpt.json`: 4 characters a token",
    )


@pytest.mark.parametrize(
    ("flags", "share"),
    [
        (('"stream": true, ', "", '"stream": false, ', ""), 0.25),  # left out is false
        (("", ""), None),
        (('"stream": null, ', '"stream": 1, '), None),
        (('"stream": false, ', '"stream": 1, '), 0.0),
        (('"stream": true, ', "", ""), 0.3333),
    ],
)
def test_jsonl_bodies_tell_how_many_of_them_were_streamed(
    flags: tuple[str, ...], share: float | None
) -> None:
    lines = "\n".join(f'{{{flag}"prompt": "Hi"}}' for flag in flags)
    assert read_profile(lines, "mine", "jsonl").stream_share == share


HI = 'text = "Hi"\n'
ONE = '[[prompts]]\ntext = "Hi"\n'
PHASE = '[[phases]]\nfor = "1m"\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "`mine` holds no prompt"),
        ("prompts = 1", "`mine`: `prompts` is no list of tables"),
        ("[[prompts]\n", "`mine` is no TOML: Expected ']]' at the end of an array declaration"),
        ("a = " + "[" * 5000, "`mine` is no TOML: nested too deep"),
        ('"\\u001b[2J" = 1', "`mine`: unknown key `?[2J`"),
        ("stream_share = 1.5\n[[prompts]]\n" + HI, "`mine`: `stream_share` is not a number from 0"),
        ("max_tokens = 0\n[[prompts]]\n" + HI, "`mine`: `max_tokens` is not a whole number"),
        ('summary = "a\\u001b"\n[[prompts]]\n' + HI, "`mine`: `summary` is not one line of text"),
        ("[[prompts]]\nwieght = 1\n" + HI, "`mine`: prompts 1: unknown key `wieght`"),
        ("[[prompts]]\n" + HI + "[[prompts]]\nname = 'b'", "`mine` prompt 2 needs a text or"),
        (
            "[[prompts]]\nmessages = [{role = 'a', content = 'b'}]\n" + HI,
            "`mine` prompt 1 needs a text or messages, and not",
        ),
        ("[[prompts]]\nmessages = []", "`mine`: prompts 1: `messages` is not a list of messages"),
        ("[[prompts]]\ntext = ' '", "`mine`: prompts 1: `text` is an empty text"),
        ('[[prompts]]\nname = "a\\nb"\n' + HI, "`mine`: prompts 1: `name` is not one line of text"),
        ("[[prompts]]\nweight = 0\n" + HI, "`mine`: prompts 1: `weight` is not a number above 0"),
        ("[[prompts]]\nname = 'a'\n" + HI + "[[prompts]]\nname = 'a'\n" + HI, "`a` stands twice"),
        (
            "[[prompts]]\npassages = ['x']\n" + HI,
            "`mine` prompt 1: `passages`: there is no passage `x`",
        ),
        ("passages = 1\n[[prompts]]\n" + HI, "`mine`: `passages` is not a table of texts"),
        # what it says of a load
        ("think_time = 1\n" + ONE, "`mine`: unknown key `think_time`"),
        *(
            (f"think_time_s = {value}\n{ONE}", "`mine`: `think_time_s` is neither seconds nor")
            for value in ("-1", "[3, 1]", "[1]", "[1, 2, 3]", "'2s'", "true", "nan", "[0, inf]")
        ),
        ("think_time_s = 3601\n" + ONE, "`mine`: `think_time_s` is neither seconds nor"),
        (f"think_time_s = {'9' * 400}\n{ONE}", "`mine`: `think_time_s` is neither seconds nor"),
        ("unique_share = 2\n" + ONE, "`mine`: `unique_share` is not a number from 0 to 1"),
        ("shared_prefix = 'x'\n" + ONE, "`mine`: `shared_prefix`: there is no passage `x`"),
        (
            (
                "shared_prefix = 'a'\npassages = {a = 'A'}\n[[prompts]]\nname = 'p'\n"
                "messages = [{role = 'system', content = 'Be brief.'}]"
            ),
            "`mine` prompt `p` has a system message beside the `shared_prefix`",
        ),
        (
            ONE + "then = ['{answer}', 'x {anwser}']",
            "`mine`: prompts 1: `then`: `x {anwser}` does not hold `{answer}`",
        ),
        ("phases = 3\n" + ONE, "`mine`: `phases` is no list of tables"),
        (ONE + PHASE, "`mine`: phases 1 has no `users`"),
        *(
            (ONE + PHASE + f"users = {value}", "`mine`: phases 1: `users` is neither")
            for value in ("-1", "1.5", "[1]", "[1, 2, 3]", "[1, -1]", "true", "'4'", "100001")
        ),
        (ONE + PHASE + "users = 0", "`mine`: `phases` never have a user"),
        (ONE + "[[phases]]\nusers = 1", "`mine`: phases 1 has no `for`"),
        (
            ONE + "[[phases]]\nusers = 1\nfor = '5'",
            "`mine`: phases 1: `for` is not a duration",
        ),
        (
            ONE + PHASE + "users = 1\nspawn_rate = 0",
            "phases 1: `spawn_rate` is not a number above 0",
        ),
        (ONE + PHASE + 'users = 1\nname = "a\\nb"', "phases 1: `name` is not one line of text"),
        (ONE + PHASE + "users = 1\n" + PHASE + "users = []", "`mine`: phases 2: `users`"),
    ],
)
def test_a_bad_toml_profile_names_the_prompt_and_the_key(text: str, message: str) -> None:
    assert message in re.sub(r"` line \d+", "`", refusal(text, "toml"))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "`mine` line 2 is not JSON: "),
        ("[1]", "`mine` line 2 is not a JSON object"),
        ('{"prompt": NaN}', "`mine` line 2 is not JSON: "),
        ('{"prompt": "\\ud800"}', "`mine` line 2 is not JSON: "),
        ('{"prompt": "\ud800"}', "`mine` line 2 is not JSON: "),
        ("[" * 100_000, "`mine` line 2 is not JSON: "),
        ('{"max_tokens": 5}', "`mine` line 2 needs either `messages` or `prompt`"),
        ('{"prompt": "a", "messages": []}', "`mine` line 2 needs either `messages` or `prompt`"),
        ('{"prompt": ["a", "b"]}', "`mine` line 2: `prompt` is empty, or not one text"),
        ('{"input": [1, 2]}', "`mine` line 2: `input` is empty, or not one text"),
        ('{"body": "{"}', "`mine` line 2: its body is not JSON: "),
        ('{"body": 5}', "`mine` line 2: its body is not a JSON object"),
        ('{"body_base64": "?"}', "`mine` line 2: `body_base64` is not base64"),
        ('{"body_base64": 5}', "`mine` line 2: `body_base64` is not base64"),
        ('{"prompt": " "}', "`mine` line 2: `prompt` is empty, or not one text"),
        ('{"prompt": "a", "max_tokens": 0}', "`mine` line 2: `max_tokens` is not a whole number"),
        ('{"messages": {}}', "`mine` line 2: `messages` is not a list of messages"),
        ('{"messages": ["a"]}', "`mine` line 2: `messages` is not a list of messages"),
        (
            '{"messages": [{"content": "a"}]}',
            "`mine` line 2: `messages` holds one without a `role`",
        ),
        (
            '{"messages": [{"role": 1, "content": "a"}]}',
            "`mine` line 2: `messages` holds one without a `role`",
        ),
        ('{"messages": [{"role": "user"}]}', "`mine` line 2: `messages` holds no text"),
        (
            '{"messages": [{"role": "user", "content": []}]}',
            "`mine` line 2: `messages` holds no text",
        ),
        (
            '{"messages": [{"role": "user", "content": 1}]}',
            "`mine` line 2: `messages` holds one whose `content` is neither",
        ),
        (
            # it can be read, and is one level too deep to be written (254)
            '{"messages": [{"role": "user", "content": "a", "x": ' + "[" * 252 + "]" * 252 + "}]}",
            "`mine` line 2 holds what JSON cannot carry",
        ),
    ],
)
def test_a_bad_jsonl_line_is_named_by_its_number(line: str, message: str) -> None:
    assert message in refusal(f'{{"prompt": "fine"}}\n{line}\n', "jsonl")


TEXTS = st.one_of(
    st.text(),
    st.text(alphabet='[]{}"=:,.\n\\ aprompts1e'),
    st.builds(
        lambda key, value: f"[[prompts]]\n{key} = {value}\ntext = 'a'",
        st.sampled_from(["name", "weight", "max_tokens", "messages", "passages"]),
        st.sampled_from(["1979-05-27", "-0.0", "1" * 30, "[[]]", "[{role='a', content=[{}]}]"]),
    ),
)


@given(text=TEXTS, kind=st.sampled_from(["toml", "text", "jsonl"]))
def test_any_text_is_a_profile_that_can_be_sent_or_a_refusal(text: str, kind: Kind) -> None:
    try:
        profile = read_profile(text, "mine", kind)
    except ToolkitError:
        return
    assert profile.prompts
    for prompt in profile.prompts:
        orjson.dumps({"messages": prompt.messages})
        assert prompt.name.isprintable()


@pytest.mark.parametrize("name", CATALOG)
def test_a_profile_of_the_catalog_can_be_read_and_says_what_it_is_for(name: str) -> None:
    profile = from_catalog(name)
    assert profile.summary
    assert profile.prompts


def test_every_file_of_the_catalog_is_installed_and_tested() -> None:
    package = ROOT / "toolkit"
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    packed = {file for glob in settings["package-data"]["toolkit"] for file in package.glob(glob)}
    files = {file for file in (package / "catalog").rglob("*") if file.is_file()}
    assert files
    assert files <= packed
    assert sorted(file.stem for file in files if file.parent.name == "profiles") == sorted(CATALOG)


def test_the_contests_profile_is_what_the_contest_sent() -> None:
    profile = from_catalog("contest")
    assert [prompt.messages for prompt in profile.prompts] == [
        user("Write a 50-word story about a robot exploring a garden."),
        user("What is the capital of Singapore?"),
    ]
    assert (profile.stream_share, profile.max_tokens) == (0.5, 256)


def read(text: str) -> Profile:
    return read_profile(text, "mine", "toml")


@pytest.mark.parametrize(
    ("value", "seconds"), [("2", (2.0, 2.0)), ("0", (0.0, 0.0)), ("[0.5, 3]", (0.5, 3.0))]
)
def test_a_think_time_is_a_number_of_seconds_or_two(
    value: str, seconds: tuple[float, float]
) -> None:
    assert read(f"think_time_s = {value}\n{ONE}").think_time_s == seconds


def test_phases_follow_each_other_as_written() -> None:
    text = """
        [[phases]]
        name = "up"
        for = "1m30s"
        users = [1, 32]
        [[phases]]
        for = "2h"
        users = 32
        spawn_rate = 4
    """
    assert read(ONE + text).phases == (
        Phase(name="up", length_s=90.0, users=(1, 32)),
        Phase(name="phase-2", length_s=7200.0, users=(32, 32), spawn_rate=4.0),
    )


def test_a_shared_prefix_is_every_prompts_system_message() -> None:
    text = """
        shared_prefix = "manual"
        [passages]
        manual = '''
Read me.
'''
        more = "Also."
        [[prompts]]
        text = "Why?"
        passages = ["more"]
        [[prompts]]
        messages = [{role = "user", content = "Hi"}]
    """
    profile = read(text)
    system = {"role": "system", "content": "Read me."}
    assert [prompt.messages for prompt in profile.prompts] == [
        (system, {"role": "user", "content": "Also.\n\nWhy?"}),
        (system, {"role": "user", "content": "Hi"}),
    ]
    assert profile.shared_prefix == "manual"
