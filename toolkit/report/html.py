"""HTML made of values: text is escaped by where it stands, so no host's name can become a tag.

It knows no tag, no style and no host; a string is text unless it was made here.
"""

from collections.abc import Iterable
from html import escape
from typing import Self

from toolkit.safe_text import cleaned

Child = "str | int | float | None | Iterable[Child]"

VOID = frozenset({"path", "circle", "rect", "img", "br"})
"""Elements that never hold anything."""


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()

    @classmethod
    def joined(cls, parts: Iterable[object]) -> Self:
        """Children put side by side."""
        return cls("".join(_inside(part) for part in parts))

    def to_bytes(self) -> bytes:
        """To be sent; a lone surrogate of a host's is no reason to show nothing."""
        return self.encode("utf-8", "replace")


def tag(element: str, *children: object, **attributes: object) -> Markup:
    """One element. `class_` is `class`, `data_host` is `data-host`; None and False leave an attribute out."""
    written = "".join(_attribute(name, value) for name, value in attributes.items())
    if element in VOID:
        return Markup(f"<{element}{written}/>")
    return Markup(f"<{element}{written}>{Markup.joined(children)}</{element}>")


def _attribute(name: str, value: object) -> str:
    if value is None or value is False:
        return ""
    written = name.rstrip("_").replace("_", "-")
    return f" {written}" if value is True else f' {written}="{escape(cleaned(str(value)))}"'


def _inside(child: object) -> str:
    if child is None:
        return ""
    if isinstance(child, Markup):
        return child
    if isinstance(child, str):
        return escape(cleaned(child))
    if isinstance(child, Iterable):
        return Markup.joined(child)
    return escape(cleaned(str(child)))
