"""docs/settings.md and docs/schemas/ are what the declarations say; the schemas take what the toolkit takes, and nothing else."""

import json
import tomllib

import pytest
from jsonschema import Draft202012Validator
from support.manual import ROOT
from support.settings_page import DOCS, FILES, written

PAGES = written()


@pytest.mark.parametrize("file", list(PAGES), ids=lambda file: file.name)
def test_what_is_written_is_what_is_declared(file) -> None:
    assert file.read_text() == PAGES[file], "run `python tests/docs/write_settings.py`"


def test_nothing_else_lies_among_the_schemas() -> None:
    assert sorted(file.stem for file in (DOCS / "schemas").iterdir()) == sorted(FILES)


def test_the_schemas_take_the_examples_and_the_catalog() -> None:
    examples = DOCS / "examples"
    good = [(kind, (examples / f"{kind}.toml").read_text()) for kind in FILES]
    good += [("sweep", file.read_text()) for file in (ROOT / "toolkit/catalog/sweeps").iterdir()]
    good += [
        ("profile", file.read_text()) for file in (ROOT / "toolkit/catalog/profiles").iterdir()
    ]
    for kind, text in good:
        validator = Draft202012Validator(
            json.loads((DOCS / "schemas" / f"{kind}.json").read_text())
        )
        assert [error.message for error in validator.iter_errors(tomllib.loads(text))] == []


@pytest.mark.parametrize(("kind", "text"), [
    ("proxy", "prot = 1"),
    ("proxy", "port = 70000"),
    ("proxy", "[cache]\npolicy = 'none'"),
    ("proxy", "[[upstream]]\nname = 'a'"),
    ("stack", "proxy = true"),
    ("stack", "[proxy.cache]\nttl = -1"),
    ("sweep", "[load]\nmix = 101"),
    ("profile", "[[phases]]\nfor = '5m'"),
])  # fmt: skip
def test_the_schemas_refuse_what_the_toolkit_refuses(kind: str, text: str) -> None:
    validator = Draft202012Validator(json.loads((DOCS / "schemas" / f"{kind}.json").read_text()))
    assert not validator.is_valid(tomllib.loads(text))
