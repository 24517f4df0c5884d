"""Every environment variable that the code reads stands in the manual."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.manual import ROOT

FOLDERS = ("toolkit", "locustfiles", "dashboards")
NOT_FOR_USERS = {
    "TOOLKIT_ENGINE": "set by serve for its engines, to know its own again",
    "KUBERNETES_SERVICE_HOST": "Kubernetes sets it in every pod; preflight tells where it runs by it",
    "PATH": "every program's",
    "HOME": "every user's",
    "HF_HUB_OFFLINE": "set where a tiny model is made: nothing may be fetched for it",
    "COLUMNS": "every terminal's",
    "_TOOLKIT_COMPLETE": "set by the script of `toolkit completion`, where a shell asks on the Tab key",
    "MPLBACKEND": "taken away, so that a chart needs no screen",
}
"""Read or set, but nothing that a user would choose."""


def _constants(tree: ast.Module) -> dict[str, str]:
    return {
        target.id: node.value.value
        for node in tree.body
        if isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
        for target in node.targets
        if isinstance(target, ast.Name)
    }


def _is_environment(node: ast.expr) -> bool:
    name = node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
    return name in {"environ", "environment", "env"}


def _read(tree: ast.Module) -> Iterator[ast.expr]:
    """What is looked up: `environ.get(X)`, `environ[X]`, `X in environ`, `getenv(X)`, `envvar=X`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            function = node.func
            if isinstance(function, ast.Attribute) and node.args:
                looked_up = function.attr in {"get", "pop"} and _is_environment(function.value)
                if looked_up or function.attr == "getenv":
                    yield node.args[0]
            yield from (word.value for word in node.keywords if word.arg == "envvar")
        elif isinstance(node, ast.Subscript) and _is_environment(node.value):
            yield node.slice
        elif isinstance(node, ast.Compare) and any(map(_is_environment, node.comparators)):
            yield node.left


def variables(source: str) -> set[str]:
    tree = ast.parse(source)
    known = _constants(tree)
    found = {
        word.value if isinstance(word, ast.Constant) else known.get(getattr(word, "id", ""), "")
        for word in _read(tree)
    }
    every = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    ours = {
        word
        for word in every
        if isinstance(word, str) and word.startswith("TOOLKIT_") and word.isidentifier()
    }
    return {word for word in found if isinstance(word, str) and word.isupper()} | ours


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_variable_is_in_the_table(folder: str) -> None:
    table = (ROOT / "docs" / "reference" / "environment.md").read_text()
    files = sorted(Path(ROOT / folder).rglob("*.py"))
    assert files
    missing = {
        name: file.relative_to(ROOT).as_posix()
        for file in files
        for name in variables(file.read_text())
        if name not in NOT_FOR_USERS and f"`{name}`" not in table
    }
    assert missing == {}
