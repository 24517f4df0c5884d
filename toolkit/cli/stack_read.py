"""What every verb that reads a stack file asks of the disk and the catalog: its text, and a preset's flags."""

from pathlib import Path

from toolkit.cli.catalog import table
from toolkit.errors import ToolkitError
from toolkit.serving.presets import preset
from toolkit.serving.stack import Flags


def stack_text(path: Path) -> str:
    """A stack file's text."""
    try:
        return path.read_text("utf-8")
    except OSError as error:
        raise ToolkitError(
            f"`{path}` cannot be read: {(error.strerror or 'no reason given').lower()}",
            "Name a TOML file with `[[engine]]` tables, or a model",
        ) from error
    except UnicodeDecodeError as error:
        raise ToolkitError(f"`{path}` is not UTF-8", "Save it as UTF-8 text") from error


def preset_flags(name: str) -> Flags:
    """A preset of the catalog."""
    return preset(name, table("presets")).flags
