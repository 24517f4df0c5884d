"""TAB behind `--option=`, where click's own classes for shells offer nothing that fits. Loaded only where a shell asks."""

from typing import Any

from click.shell_completion import (
    BashComplete,
    CompletionItem,
    FishComplete,
    ZshComplete,
    add_completion_class,
)


class Bash(BashComplete):
    """Bash splits a word at `=`, and wants what stands behind it alone."""

    def get_completion_args(self) -> tuple[list[str], str]:
        """Without the `=` the option stands before its value, as it does with a blank."""
        words, begun = super().get_completion_args()
        is_split = words[-1:] == ["="] and words[-2:-1] and words[-2].startswith("--")
        return (words[:-1] if is_split else words), begun


class Zsh(ZshComplete):
    """Zsh replaces the whole word."""

    def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem[Any]]:
        """What is offered, with the option before it."""
        return _whole(super().get_completions(args, incomplete), incomplete)


class Fish(FishComplete):
    """Fish drops what does not begin as the whole word does."""

    def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem[Any]]:
        """What is offered, with the option before it."""
        return _whole(super().get_completions(args, incomplete), incomplete)


def teach_click() -> None:
    """Let click answer shells by these."""
    for shell in (Bash, Zsh, Fish):
        add_completion_class(shell)


def _whole(items: list[CompletionItem[Any]], begun: str) -> list[CompletionItem[Any]]:
    option, equals, _ = begun.partition("=")
    if not (equals and option.startswith("--")):
        return items
    return [
        CompletionItem(f"{option}={item.value}", help=item.help) if item.type == "plain" else item
        for item in items
    ]
