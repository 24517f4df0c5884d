"""What every verb that reads a stack file asks of the disk and the catalog: its text, and a preset's flags."""

from pathlib import Path

from toolkit.cli.catalog import table
from toolkit.cli.inputs import toml_text
from toolkit.serving.presets import preset
from toolkit.serving.stack import Flags


def stack_text(path: Path) -> str:
    """A stack file's text."""
    return toml_text(path, "Name a TOML file with `[[engine]]` tables, or a model")


def preset_flags(name: str) -> Flags:
    """A preset of the catalog."""
    return preset(name, table("presets")).flags
