"""The page's HTML as a tree, read by Python's own parser: an oracle that knows nothing of how it was written."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser

VOID = {"path", "circle", "rect", "img", "br"}


@dataclass(eq=False)
class Node:
    """One element."""

    name: str
    attributes: dict[str, str | None]
    inside: "list[Node | str]" = field(default_factory=list)

    def __getitem__(self, attribute: str) -> str | None:
        return self.attributes[attribute]

    def get(self, attribute: str) -> str | None:
        return self.attributes.get(attribute)

    @property
    def classes(self) -> set[str]:
        return set((self.get("class") or "").split())

    @property
    def text(self) -> str:
        """What is read, white space evened; titles of drawings are tooltips and not read."""
        return " ".join(" ".join(self._texts()).split())

    def _texts(self) -> Iterator[str]:
        for child in self.inside:
            if isinstance(child, str):
                yield child
            elif child.name != "title":
                yield from child._texts()

    def all(self, name: str | None = None, **wanted: str) -> "list[Node]":
        """Elements below this one; `class_="a"` is one of its classes, `data_host="b"` an attribute's whole value."""
        found = []
        for child in self.inside:
            if isinstance(child, Node):
                if (name is None or child.name == name) and child._is(wanted):
                    found.append(child)
                found += child.all(name, **wanted)
        return found

    def one(self, name: str | None = None, **wanted: str) -> "Node":
        """The only one of these elements."""
        (found,) = self.all(name, **wanted)
        return found

    def _is(self, wanted: dict[str, str]) -> bool:
        for key, value in wanted.items():
            if key == "class_":
                if value not in self.classes:
                    return False
            elif self.get(key.rstrip("_").replace("_", "-")) != value:
                return False
        return True


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open = [Node("", {})]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        node = Node(tag, dict(attrs))
        self.open[-1].inside.append(node)
        if tag not in VOID:
            self.open.append(node)

    def handle_endtag(self, tag: str) -> None:
        if tag in VOID:
            return
        node = self.open.pop()
        assert node.name == tag, f"</{tag}> closes <{node.name}>"

    def handle_data(self, data: str) -> None:
        self.open[-1].inside.append(data)


def tree(html: str | bytes) -> Node:
    """Parse, and insist that every element is closed."""
    reader = _Reader()
    reader.feed(html.decode() if isinstance(html, bytes) else html)
    reader.close()
    (root,) = reader.open
    return root
