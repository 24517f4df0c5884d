"""Names that other programs take: DNS labels, for Kubernetes, compose and systemd, and addresses with a port. Pure text."""

import hashlib
import re
from collections.abc import Iterable

LONGEST = 63
"""Of a DNS label, RFC 1035."""
_MARK = 6
"""Hexadecimal digits that tell apart two long words with the same beginning."""


def dns_label(word: str, longest: int = LONGEST) -> str:
    """A word as lower case letters, digits and `-`, begun by a letter and ended by none of `-`; a long one is cut, with a mark."""
    plain = re.sub(r"[^a-z0-9]+", "-", word.lower()).strip("-")
    if not plain:
        plain = "stack"
    if not plain[0].isalpha():
        plain = f"n{plain}"
    if len(plain) <= longest:
        return plain
    mark = hashlib.sha256(word.encode()).hexdigest()[:_MARK]
    return f"{plain[: longest - _MARK - 1].rstrip('-')}-{mark}"


def unlike(words: Iterable[str], longest: int = LONGEST) -> tuple[str, ...]:
    """The label of each word, in their order; what two words would share gets a number: `a`, `a-2`."""
    labels = [dns_label(word, longest) for word in words]
    found: list[str] = []
    for label in labels:
        name, number = label, 1
        while name in found or (number > 1 and name in labels):
            number += 1
            ending = f"-{number}"
            name = f"{label[: longest - len(ending)].rstrip('-')}{ending}"
        found.append(name)
    return tuple(found)


def address(host: str, port: int) -> str:
    """Where something listens or is asked: an IPv6 address stands in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
