"""TAB behind `--option=`, where click's own classes for shells offer nothing that fits. Loaded only where a shell asks: click knows them then."""

from typing import Any

from click.shell_completion import (
    BashComplete,
    CompletionItem,
    FishComplete,
    ShellComplete,
    ZshComplete,
    add_completion_class,
)


@add_completion_class
class Bash(BashComplete):
    """Bash splits a word at `=`, and wants what stands behind it alone."""

    def get_completion_args(self) -> tuple[list[str], str]:
        """Without the `=` the option stands before its value, as it does with a blank."""
        words, begun = super().get_completion_args()
        is_split = words[-1:] == ["="] and words[-2:-1] and words[-2].startswith("--")
        return (words[:-1] if is_split else words), begun


class WholeWord(ShellComplete):
    """Zsh replaces the whole word, and fish drops what does not begin as it does: a value needs its option before it."""

    def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem[Any]]:
        """What is offered, with the option before it; the shell itself adds it to files."""
        items = super().get_completions(args, incomplete)
        option, equals, _ = incomplete.partition("=")
        if not (equals and option.startswith("--")):
            return items
        return [
            CompletionItem(f"{option}={item.value}", help=item.help)
            if item.type == "plain"
            else item
            for item in items
        ]


@add_completion_class
class Zsh(WholeWord, ZshComplete):
    """Zsh."""


@add_completion_class
class Fish(WholeWord, FishComplete):
    """Fish."""
