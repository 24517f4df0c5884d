"""Quotes hold whatever stands in a stack file: the oracle is the language's own reader. Names are DNS labels; no file leaves its folder."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml as yaml_reader
from hypothesis import given
from hypothesis import strategies as st
from jinja2 import TemplateError

from toolkit.deploy import render as quoting
from toolkit.deploy.render import Plain, Rendered, dns_label, unlike, write
from toolkit.errors import ToolkitError

PRINTABLE = st.text().filter(str.isprintable)


@given(PRINTABLE)
def test_yaml_reads_back_what_was_written(text: str) -> None:
    assert yaml_reader.safe_load(f"key: {quoting.yaml(text)}\n") == {"key": text}


@given(PRINTABLE)
def test_a_shell_reads_back_one_word(text: str) -> None:
    assert shlex.split(quoting.shell(text)) == [text]


@pytest.mark.parametrize(
    ("value", "word"),
    [
        (30, "30"),
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


@pytest.mark.parametrize("sign", ["\n", "\r", "\t", "\0", "\x1b", "\x85", "\u2028", "\ud800"])
@pytest.mark.parametrize("language", list(quoting.QUOTES))
def test_no_language_takes_what_ends_a_line_or_can_not_be_seen(
    language: quoting.Language, sign: str
) -> None:
    for value in (f"a{sign}b", [f"a{sign}b"]):
        with pytest.raises((ToolkitError, TypeError)):
            quoting.QUOTES[language](value)
    with pytest.raises(ToolkitError, match="not one line of plain text"):
        quoting.QUOTES[language](f"a{sign}b")


# --- names

RFC_1035 = re.compile(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?")


@pytest.mark.parametrize(
    ("word", "label"),
    [
        ("qwen", "qwen"),
        ("Qwen2.5-7B_Instruct", "qwen2-5-7b-instruct"),
        ("7b", "n7b"),
        ("--", "stack"),
        ("ünïcode", "n-code"),
        ("a.", "a"),
    ],
)
def test_a_word_becomes_a_label_that_can_still_be_read(word: str, label: str) -> None:
    assert dns_label(word) == label


@given(st.text())
def test_whatever_comes_a_label_is_one(word: str) -> None:
    assert RFC_1035.fullmatch(dns_label(word))


@given(st.lists(st.text(alphabet="aA.-2", max_size=4), max_size=6))
def test_no_two_labels_are_alike(words: list[str]) -> None:
    found = unlike(words)
    assert len(set(found)) == len(words)
    assert all(RFC_1035.fullmatch(each) for each in found)


# --- templates and files


def filled(template: str, language: quoting.Language, folder: Path, **values: Any) -> str:
    (folder / "t.j2").write_text(template)
    environment = quoting._environment.__wrapped__(language)
    environment.loader.searchpath = [str(folder)]
    text: str = environment.get_template("t.j2").render(values)
    return text


def test_every_value_is_quoted_as_one_and_text_of_the_language_passes(tmp_path: Path) -> None:
    template = 'x {{ name }} {{ port }} {{ "h" ~ name }} {{ size }} {{ size ~ "" }};\n'
    found = filled(template, "nginx", tmp_path, name='a"', port=80, size=Plain("10m"))
    assert found == 'x "a\\"" 80 "ha\\"" 10m "10m";\n'


@pytest.mark.parametrize(
    "template", ["{{ absent }}", "{{ here.absent }}", "{{ absent | comment }}"]
)
def test_a_value_that_is_not_given_is_an_error_and_no_empty_word(
    template: str, tmp_path: Path
) -> None:
    with pytest.raises(TemplateError):
        filled(template, "yaml", tmp_path, here={})


@pytest.mark.parametrize("path", ["../x", "/etc/x", "a/../../x", ""])
def test_no_file_leaves_the_folder(tmp_path: Path, path: str) -> None:
    with pytest.raises(ToolkitError, match="does not lie below"):
        write([Rendered(path=path, text="")], tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_a_file_cut_short_is_never_seen(tmp_path: Path) -> None:
    # the folder of the second is in the way as a file: the first is whole, and nothing of the second is left
    (tmp_path / "b").write_text("a file")
    with pytest.raises(ToolkitError):
        write([Rendered(path="a", text="x"), Rendered(path="b/two", text="x")], tmp_path)
    assert not list(tmp_path.rglob("*.part"))
    assert (tmp_path / "a").read_text() == "x"
