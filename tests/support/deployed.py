"""Stacks as sites for `toolkit deploy`, and the rules by which others read what is rendered, written down anew here."""

import json
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import yaml
from contract.harness.deploys import TWO as STACK
from jsonschema import Draft202012Validator

from toolkit.deploy.flags import image_arguments
from toolkit.deploy.render import Kit
from toolkit.deploy.site import Site, SiteEngine, site_of
from toolkit.serving.flags import known
from toolkit.serving.stack import placed, read

ROOT = Path(__file__).parents[2]
SCHEMAS = ROOT / "tests/data/schemas"
IMAGE = "vllm/vllm-openai:v0.32.0"
HELP = (ROOT / "tests/data/startup/help-0.32.0.txt").read_text()
TABLE = tomllib.loads((ROOT / "toolkit/catalog/flags.toml").read_text())

HOSTILE = [
    "a'b\"c",
    "$HOME ${HOME} $(HOME) $$",
    "{{ x }} {% x %} {# x #}",
    "%n%i100%",
    "a: b # c",
    "- a",
    "a\\nb\\",
    "on",
    "no",
    "null",
    "0123",
    "0x1f",
    "1e3",
    "1:30",
    "2001-01-01",
    "~",
    "*a &b !c",
    "[a, b]",
    "`id`;id|id&",
    "é漢😀",
]
"""Words that mean something in YAML, TOML, a template, a shell, a unit or a compose file, and shall mean nothing."""

USUAL = {
    "name": "stack",
    "listen": "127.0.0.1",
    "stack_file": "stack.toml",
    "command": "/usr/local/bin/toolkit",
}
"""What a command line says of a site that is not told otherwise."""


def hostile(engine: SiteEngine, word: str, number: int) -> SiteEngine:
    """An engine of which everything that somebody may name freely is one word."""
    return replace(
        engine,
        name=f"e{number}",
        port=8100 + number,
        # `~` and `-` begin what no model's name begins with
        model=f"m{word}",
        served_name=word,
        arguments=("--chat-template", word),
        env=(("WORD", word),),
        gpus=(str(number),),
    )


def site(text: str = STACK, *, image: str = IMAGE, name: str = "contest", **more: Any) -> Site:
    """The site of a stack's text, its flags checked as for the image."""
    stack = placed(
        read(text, "stack.toml", lambda _: {}), "`stack.toml`", lambda _host, _port: True
    )
    spelled = partial(
        image_arguments, image=image, recorded=known(HELP), version="0.32.0", table=TABLE
    )
    return site_of(
        stack, **USUAL | {"name": name, "image": image} | more, stack_text=text, flags=spelled
    )


def text_of(kit: Kit, ending: str) -> str:
    """Of the one file with that ending."""
    (found,) = (each.text for each in kit.files if each.path.endswith(ending))
    return found


# --- YAML, by both rules ------------------------------------------------------------------------------


Plain: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""PyYAML's, which follows YAML 1.1: written in C it is ten times as fast."""


class Core(Plain):
    """YAML 1.2's core schema: `on` and `no` are words, `0o17` is a number."""


Core.yaml_implicit_resolvers = {}
Core.add_implicit_resolver(
    "tag:yaml.org,2002:bool", re.compile(r"(true|True|TRUE|false|False|FALSE)\Z"), list("tTfF")
)
Core.add_implicit_resolver(
    "tag:yaml.org,2002:null", re.compile(r"(~|null|Null|NULL|)\Z"), [*"~nN", ""]
)
Core.add_implicit_resolver(
    "tag:yaml.org,2002:int", re.compile(r"([-+]?[0-9]+|0x[0-9a-fA-F]+)\Z"), list("-+0123456789")
)


def documents(text: str) -> list[Any]:
    """Every document of a text, which means the same by YAML 1.1 and 1.2, and names no key twice."""
    old = [each for each in yaml.load_all(text, Plain) if each is not None]
    new = [each for each in yaml.load_all(text, Core) if each is not None]
    assert json.dumps(old) == json.dumps(new)
    for node in yaml.compose_all(text, Plain):
        assert twice(node) == []
    return old


def twice(node: Any) -> list[str]:
    """Keys that stand twice in one mapping: parsers keep the last and say nothing."""
    if isinstance(node, yaml.MappingNode):
        keys = [key.value for key, _ in node.value]
        inner = [found for _, value in node.value for found in twice(value)]
        return [key for key in keys if keys.count(key) > 1] + inner
    if isinstance(node, yaml.SequenceNode):
        return [found for value in node.value for found in twice(value)]
    return []


# --- what compose and Kubernetes put in place of variables --------------------------------------------

_COMPOSE = re.compile(r"\$(?:(?P<escaped>\$)|\{(?P<name>\w+)(?::(?P<how>[?-])(?P<word>[^}]*))?\})")


def interpolated(value: Any, variables: Mapping[str, str]) -> Any:
    """A compose file's values with variables put in; a `$` that is neither doubled nor `${NAME...}` fails."""
    if isinstance(value, Mapping):
        return {key: interpolated(inner, variables) for key, inner in value.items()}
    if isinstance(value, list):
        return [interpolated(inner, variables) for inner in value]
    if not isinstance(value, str):
        return value
    assert "$" not in _COMPOSE.sub("", value), value

    def put(match: re.Match[str]) -> str:
        if match["escaped"]:
            return "$"
        default = match["word"] if match["how"] == "-" else f"<{match['name']} is not set>"
        return variables.get(match["name"], default)

    return _COMPOSE.sub(put, value)


def expanded(word: str, variables: Mapping[str, str]) -> str:
    """A word of a container's command as the kubelet reads it: `$$` is `$`, `$(NAME)` a variable that there is."""
    found, at = "", 0
    while at < len(word):
        rest = word[at:]
        match = re.match(r"\$\(([^()]*)\)", rest)
        if rest.startswith("$$"):
            found, at = f"{found}$", at + 2
        elif match and match[1] in variables:
            found, at = found + variables[match[1]], at + len(match[0])
        else:
            found, at = found + rest[0], at + 1
    return found


# --- schemas ------------------------------------------------------------------------------------------


def problems(value: Any, schema: str) -> list[str]:
    """What a schema of tests/data/schemas says against a value."""
    errors: Iterable[Any] = validator(schema).iter_errors(value)
    return [f"{error.json_path}: {error.message}" for error in errors]


@lru_cache
def validator(schema: str) -> Draft202012Validator:
    """A schema that is one itself."""
    found = json.loads((SCHEMAS / schema).read_text())
    Draft202012Validator.check_schema(found)
    return Draft202012Validator(found)
