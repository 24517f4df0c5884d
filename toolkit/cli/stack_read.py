"""What every verb that reads a stack file asks of the disk and the catalog: its text, a preset's flags, and `--set`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from toolkit.cli.inputs import text_of
from toolkit.config_file import FieldError
from toolkit.errors import ToolkitError
from toolkit.plan.catalog import table
from toolkit.serving.presets import preset
from toolkit.serving.stack import Flags, flag_name


def stack_text(path: Path) -> str:
    """A stack file's text."""
    return text_of(str(path), "Name a TOML file with `[[engine]]` tables, or a model")


def preset_flags(name: str) -> Flags:
    """A preset of the catalog."""
    return preset(name, table("presets")).flags


def flags_of(words: Sequence[str]) -> dict[str, Any]:
    """`--set max-model-len=4096 --set enforce-eager` as a file has them."""
    flags: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        truth = {"true": True, "false": False}.get(value.lower(), value)
        try:
            flags[flag_name(name)] = truth if equals else True
        except FieldError as error:
            raise ToolkitError(f"`--set {name}`: {error.problem}", error.hint) from None
    return flags
