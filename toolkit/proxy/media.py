"""Addresses in a request that a server would fetch from: images, videos, sounds. Which may be asked for is settings' to say. Pure.

vLLM fetches such addresses itself, from inside whatever network it stands in. Data that comes along (`data:`) is no address.
"""

import re
from collections.abc import Collection, Iterator
from typing import Any

from toolkit.request_key import Fields

NAMES = ("image_url", "video_url", "audio_url", "file_url")
"""Keys of a part of a message whose value is an address, or holds one by `url` (vLLM, OpenAI's chat and Responses)."""
SCHEMAS = frozenset({"tools", "functions", "response_format", "structured_outputs", "metadata"})
"""Fields that a server reads as text or grammar, and fetches nothing for."""
ANY = "*"

_PLAIN = re.compile(r"https?://([A-Za-z0-9.-]+)(:[0-9]{1,5})?(/[!-\[\]-~]*)?", re.IGNORECASE)
"""No user, no brackets, no backslash, no space: nothing that two readers may take for two hosts."""


def refused(fields: Fields, hosts: Collection[str]) -> str | None:
    """Why an address in a body may not be fetched from; None: there is none, or all may. `*` allows every http(s) host."""
    for address in addresses({name: fields[name] for name in fields if name not in SCHEMAS}):
        if address[:5].lower() == "data:":
            continue
        match = _PLAIN.fullmatch(address)
        host = match[1].lower() if match is not None else None
        if host is None or not (ANY in hosts or host in hosts):
            shown = host or "an address that is no plain http:// or https:// one"
            return f"Nothing is fetched from {shown}; send the data itself, as a `data:` URL"
    return None


def addresses(value: Any) -> Iterator[str]:
    """Every address in a body that a server may fetch from, however deep; an odd value in its place counts as one."""
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if type(each) is list:
            waiting += each
        elif type(each) is dict:
            yield from _of(each)
            # what a model wrote for a tool is text, too
            is_call = each.get("type") == "tool_use"
            waiting += (held for name, held in each.items() if not (is_call and name == "input"))


def _of(part: dict[str, Any]) -> Iterator[str]:
    for name in NAMES:
        held = part.get(name)
        if type(held) is dict:
            held = held.get("url")
        if held is not None:
            # a list or a number in its place is the server's to refuse; it is no address that we know to be harmless
            yield held if type(held) is str else ""
    if part.get("type") == "url" and type(part.get("url")) is str:
        # Anthropic's `source`
        yield part["url"]
