"""Any declaration's file: which line and key a mistake is told of, what is offered instead, and what the schema says."""

import tomllib
from dataclasses import dataclass, field
from typing import Annotated, Literal

import pytest
from jsonschema import Draft202012Validator
from pydantic import Field

from toolkit.config_file import (
    DECLARED,
    Bytes,
    Duration,
    OrNone,
    Port,
    Seconds,
    Switch,
    Text,
    Variable,
    allowed,
    record,
    schema,
    toml_tables,
    toml_text,
)
from toolkit.errors import ToolkitError


@dataclass(frozen=True, kw_only=True)
class Wheel:
    """One of them."""

    __pydantic_config__ = DECLARED

    name: Text
    """How it is called."""
    turns_s: OrNone[Seconds] = 60.0


@dataclass(frozen=True, kw_only=True)
class Engine:
    """What drives them."""

    __pydantic_config__ = DECLARED

    kind: Literal["steam", "sails"] = "steam"
    key_env: OrNone[Variable] = None
    water_bytes: Bytes = 2**20


@dataclass(frozen=True, kw_only=True)
class Mill:
    """All of it."""

    __pydantic_config__ = DECLARED

    port: Port = 80
    lit: Switch = False
    rest_s: Annotated[Duration, Field(ge=0, le=90)] = 0.0
    grains: tuple[Text, ...] = ()
    engine: Engine = field(default_factory=Engine)
    wheels: Annotated[tuple[Wheel, ...], Field(validation_alias="wheel")] = ()


TEXT = """\ufeff# a mill
port = 8000
grains = [
    "rye",
    "oats",
]
[engine]
water = "2MiB"
kind = "sails"

[[wheel]]
name = "a"
[[wheel]]
name = \"\"\"
b\"\"\"
turns = "none"
"""


def mill(text: str, **over: object) -> Mill:
    return record(Mill, toml_tables(text, "m.toml"), "`m.toml`", text=text, over=over)


def refused(text: str, **over: object) -> tuple[str, str]:
    with pytest.raises(ToolkitError) as caught:
        mill(text, **over)
    return caught.value.message, caught.value.hint


def test_a_file_is_the_record_that_it_means_with_the_command_line_over_it() -> None:
    assert mill(TEXT, engine={"kind": "steam"}, lit=True) == Mill(
        port=8000,
        lit=True,
        grains=("rye", "oats"),
        engine=Engine(kind="steam", water_bytes=2**21),
        wheels=(Wheel(name="a"), Wheel(name="b", turns_s=None)),
    )


@pytest.mark.parametrize(("old", "new", "message", "hint"), [
    ("port = 8000", "port = 70000", " line 2: `port` is not a whole number from 0 to 65,535", "Write, e.g., `port = 1`"),
    ("port = 8000", "lit = 1", " line 2: `lit` is not `true` or `false`", "Write, e.g., `lit = true`"),
    ("port = 8000", "rest = '2m'", " line 2: `rest` is not a duration from 0 s to 90 s", "Write, e.g., `90s`"),
    ("port = 8000", "engin = 1", " line 2: unknown key `engin`", "Did you mean `engine`?"),
    ("port = 8000", "water = 1", " line 2: unknown key `water`", "It belongs into [engine]"),
    ("port = 8000", "xyz = 1", " line 2: unknown key `xyz`", "Known keys: port, lit, rest, grains, engine, wheel"),
    ('"oats"', "5", " line 3: `grains` is not a list, each entry one line of text", "Write"),
    ('water = "2MiB"', 'water = "2M"', " line 8: `engine.water` is not a size from 1 B to 1,024 TiB", "Write, e.g., `512MiB`"),
    ('"sails"', '"sail"', " line 9: `engine.kind` is not `steam` or `sails`", "Did you mean `sails`?"),
    ("[engine]", "[engine]\nport = 1", " line 8: [engine]: unknown key `port`", "It belongs into the top of the file"),
    ('name = "a"', "", " line 11: wheel 1 has no `name`", "Write"),
    ('turns = "none"', "turns = true", " line 16: wheel 2: `turns` is not a duration from 1 ms to 3,650 d or `none`", "Write"),
    ('turns = "none"', "turn.a = 5", " line 16: wheel 2: unknown key `turn`", "Did you mean `turns`?"),
    ('turns = "none"', "'a\tb' = 5", " line 16: wheel 2: unknown key `a?b`", "Known keys: name, turns"),
])  # fmt: skip
def test_a_mistake_is_told_with_its_line_its_key_and_what_is_allowed(
    old: str, new: str, message: str, hint: str
) -> None:
    found = refused(TEXT.replace(old, new, 1))
    assert found[0] == f"`m.toml`{message}"
    assert found[1].startswith(hint)


def test_what_is_no_table_where_one_belongs_is_told_so() -> None:
    table = ("`m.toml` line 1: `engine` is no table", "Write `[engine]` and its keys below it")
    assert refused("engine = 5") == table
    for text in ("wheel = 5", "[wheel]\nname = 'a'", "wheel = ['a']"):
        told = ("`m.toml` line 1: `wheel` is no list of tables", "Write `[[wheel]]` for each")
        assert refused(text) == told


def test_of_several_mistakes_an_unknown_key_comes_first_and_then_the_first_line() -> None:
    assert "line 3: unknown key `prot`" in refused("lit = 1\nport = -1\nprot = 1")[0]
    assert "line 1: `lit`" in refused("lit = 1\nport = -1")[0]


def test_what_the_command_line_says_wrongly_is_not_told_of_the_file() -> None:
    told, _ = refused("port = 1\n[engine]\nkind = 'steam'", engine={"kind": "horse"})
    assert told.startswith("the command line: `engine.kind`")


def test_a_key_written_where_its_variable_belongs_is_never_shown() -> None:
    for value in ("sk-hunter2", "hunter2", "redis://:hunter2@h", ""):
        message, hint = refused(f"[engine]\nkey_env = '{value}'")
        assert "is not the name of an environment variable" in message
        assert "hunter2" not in message + hint


def test_a_huge_file_or_value_costs_no_second_to_find_its_line() -> None:
    # no line then, for each line of a long value would mean to parse all before it again
    for long in ("# x\n" * 300_000, "grains = [\n" + "'rye',\n" * 30_000 + "]\n"):
        assert refused(f"{long}port = -1")[0].startswith("`m.toml`: `port` is not")


def test_the_schema_holds_types_limits_words_and_defaults() -> None:
    whole = schema(Mill)
    Draft202012Validator.check_schema(whole)
    good = Draft202012Validator(whole)
    assert good.is_valid(
        {"port": 1, "rest": "9s", "engine": {"key_env": "none"}, "wheel": [{"name": "a"}]}
    )
    for bad in (
        {"port": -1},
        {"rest": 91},
        {"prot": 1},
        {"engine": {"kind": "horse"}},
        {"wheel": [{}]},
    ):
        assert not good.is_valid(bad)
    wheel = whole["$defs"]["Wheel"]
    assert wheel["description"] == "One of them."
    assert wheel["properties"]["name"]["description"] == "How it is called."
    assert allowed(wheel["properties"]["turns"]) == "a duration from 1 ms to 3,650 d or `none`"


@pytest.mark.parametrize(
    "table",
    [
        {"text": 'quotes " and \\ and\nlines\tand \x7f and \x01', "more": "ü 🙂 \u2028"},
        {"list": [1, 2.5, 1e22, float("inf"), True, "x"], "table": {"a b": {"c": []}}},
    ],
)
def test_written_toml_reads_back_equal(table: dict[str, object]) -> None:
    assert tomllib.loads(toml_text(table)) == table
