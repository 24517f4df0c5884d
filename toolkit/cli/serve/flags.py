"""`--set FLAG=VALUE` of `toolkit serve` and its swap, in the words of a stack file."""

from typing import Any

from toolkit.config_file import FieldError
from toolkit.errors import ToolkitError
from toolkit.serving.stack import flag_name


def flags_told(words: tuple[str, ...]) -> dict[str, Any]:
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
