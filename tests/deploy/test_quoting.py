"""Quotes hold whatever stands in a stack file: the oracle is always the language's own reader."""

import json
import shlex
from typing import Any

import pytest
import yaml as yaml_reader
from hypothesis import given
from hypothesis import strategies as st

from toolkit.deploy import quoting
from toolkit.errors import ToolkitError

PRINTABLE = st.text().filter(str.isprintable)
HOSTILE = "x\"; } evil: [1] # %n $HOME ${X} \\ ' {{ y }} : - & * ! | > @ `"


@given(PRINTABLE)
def test_yaml_reads_back_what_was_written(text: str) -> None:
    assert yaml_reader.safe_load(f"key: {quoting.yaml(text)}\n") == {"key": text}


@pytest.mark.parametrize("value", [0, -1, 1.5, True, None, ["a", 1], {"a": ["b: c"]}, HOSTILE])
def test_yaml_keeps_the_kind_of_a_value(value: Any) -> None:
    assert yaml_reader.safe_load(quoting.yaml(value)) == value


def test_words_that_yaml_would_take_for_something_else_stay_words() -> None:
    for word in ("yes", "null", "1e3", "0o7", "2026-01-01", "~", "=", ""):
        assert yaml_reader.safe_load(quoting.yaml(word)) == word


def test_compose_finds_no_variable_in_a_dollar() -> None:
    assert quoting.compose("a${HOME}$b") == '"a$${HOME}$$b"'


@given(st.text(alphabet=st.characters(codec="ascii", categories=("L", "N", "P", "S", "Zs"))))
def test_a_block_carries_several_lines(line: str) -> None:
    for text in (f"{line}\nb", f"a\n{line}\n", f"  {line}\n\n  c\n", f"{line}"):
        written = f"key: {quoting.yaml_block(text, 2)}\nnext: 1\n"
        assert yaml_reader.safe_load(written) == {"key": text, "next": 1}


def test_a_block_stands_as_deep_as_it_is_told() -> None:
    text = "a = 1\n\n  b = 2\n"
    written = f"data:\n  stack.toml: {quoting.yaml_block(text, 4)}\n"
    assert yaml_reader.safe_load(written) == {"data": {"stack.toml": text}}
    assert "\n    a = 1\n" in written


@given(PRINTABLE)
def test_a_shell_reads_back_one_word(text: str) -> None:
    assert shlex.split(quoting.shell(text)) == [text]


@pytest.mark.parametrize(
    ("value", "word"),
    [
        (30, "30"),
        (True, "on"),
        ("plain", '"plain"'),
        ('a"; evil on; #', '"a\\"; evil on; #"'),
        ("back\\slash", '"back\\\\slash"'),
    ],
)
def test_nginx_gets_one_word(value: Any, word: str) -> None:
    assert quoting.nginx(value) == word


def test_nginx_has_no_way_to_write_a_dollar() -> None:
    with pytest.raises(ToolkitError, match="reads as a variable"):
        quoting.nginx("a$uri")


@pytest.mark.parametrize(
    ("value", "word"),
    [
        ("/usr/bin/toolkit", "/usr/bin/toolkit"),
        ("50%", "50%%"),
        ("$HOME", "$$HOME"),
        ("a b", '"a b"'),
        ('say "x"\\', '"say \\"x\\"\\\\"'),
        ("x; y", '"x; y"'),
        ("", '""'),
    ],
)
def test_systemd_gets_one_word(value: str, word: str) -> None:
    assert quoting.systemd(value) == word


def test_an_assignment_keeps_its_dollars_and_doubles_its_percents() -> None:
    assert quoting.systemd_variable("A=$x 5%") == '"A=$x 5%%"'


def test_a_description_knows_no_quotes() -> None:
    assert quoting.systemd_text('50% of "it"') == '50%% of "it"'
    with pytest.raises(ToolkitError, match="joins lines"):
        quoting.systemd_text("a\\")


@pytest.mark.parametrize("sign", ["\n", "\r", "\t", "\0", "\x1b", "\x85", "\u2028", "\ud800"])
@pytest.mark.parametrize("language", list(quoting.QUOTES))
def test_no_language_takes_what_ends_a_line_or_can_not_be_seen(
    language: quoting.Language, sign: str
) -> None:
    for value in (f"a{sign}b", [f"a{sign}b"], {f"a{sign}": 1}):
        with pytest.raises((ToolkitError, TypeError)):
            quoting.QUOTES[language](value)
    with pytest.raises(ToolkitError, match="not one line of plain text"):
        quoting.QUOTES[language](f"a{sign}b")


def test_a_comment_is_one_line() -> None:
    assert quoting.comment('x "y"') == 'x "y"'
    with pytest.raises(ToolkitError):
        quoting.comment("x\ny")


def test_json_is_json() -> None:
    assert json.loads(quoting.QUOTES["json"](HOSTILE)) == HOSTILE
