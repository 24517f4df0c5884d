"""Addresses in a request that a server would fetch from: images, videos, sounds. Settings say which hosts are allowed. Pure.

vLLM and SGLang fetch such addresses themselves, from inside whatever network they stand in. Data that comes along (`data:`) is no
address. What may hold one is known by name, wherever in a body it stands: a server reads more places than its documents name.
"""

import re
from collections.abc import Collection, Iterator
from typing import Any

from toolkit.protocol.request_key import Fields

ADDRESSES = frozenset({"image_url", "video_url", "audio_url", "file_url", "server_url"})
"""Keys whose value is an address, or holds one by `url` (vLLM, OpenAI's chat and Responses)."""
MEDIA = frozenset(
    # vLLM: `images` of /v2/embed, `images`, `videos`, `audio` of /v1/systemone, `image_pil` of a part
    {"images", "videos", "audio", "image_pil", "media"}
    # SGLang: /v1/embeddings and /v1/rerank, /generate, /v1/images and /v1/videos; Qwen's own parts of a message
    | {"image", "video", "audios", "image_data", "video_data", "audio_data", "input_audio"}
    | {"reference_url", "reference_image", "input_reference", "mask", "file_data"}
)
"""Keys whose value is data or an address, or holds some at any depth."""
SOURCE = "source"
"""Anthropic's: an object with its address by `url`; a text of this name is a citation, and nothing is fetched."""
TEXTS = frozenset(
    {"functions", "response_format", "structured_outputs", "guided_json", "json_schema"}
    | {"text", "output_config", "output_format", "metadata"}
)
"""Fields that a server reads as text or grammar, and fetches nothing for."""
SCHEMAS = frozenset({"function", "parameters", "input_schema", "custom", "format"})
"""Keys of a tool that hold a schema: what it calls `image` is a parameter's name."""
MESSAGES = frozenset({"messages", "messages/count_tokens", "messages/render"})
"""Endpoints where `input` of a `tool_use` is what a model wrote for a tool, and is read as text."""
ANY = "*"

_PLAIN = re.compile(r"https?://([A-Za-z0-9.-]+)(:[0-9]{1,5})?(/[!-\[\]-~]*)?", re.IGNORECASE)
"""No user, no brackets, no backslash, no space: nothing that two readers may take for two hosts."""
_ADDRESS = re.compile(r"\s{0,64}(?:[a-z][a-z0-9+.-]{0,64}:|[.~\\]|/(?!9j/)|\s)", re.IGNORECASE)
"""How an address or a path begins (SGLang opens files by their path), and base64 does not: but a JPEG's, with `/9j/`."""
_FILE = re.compile(r"\.[a-z0-9]{2,5}\s*\Z", re.IGNORECASE)
"""How a file's name ends, and base64 does not."""
_BLANK = re.compile(rb"\n\r?\n")
_BEGINS_AS_ADDRESS = re.compile(rb"\s*+[a-z][a-z0-9+.-]*+:[/\\]")
"""A part of a form that begins as an address does, in small letters."""
_MARK = re.compile(r"[:.~\\/\s]")
"""What any address, path or file's name has one of."""
_APART = TEXTS | {"tools"}
_NESTED = frozenset({dict, list})
_TEXTS = _NESTED | {str}
_HOLDERS = ADDRESSES | {SOURCE}
_NAMED = _HOLDERS | MEDIA | {"url", "input"}
"""An object without any of these names is none to look at, only what it holds."""


def refused(fields: Fields, hosts: Collection[str], endpoint: str = "") -> str | None:
    """Why an address in a body may not be fetched from; None: there is none, or all may. `*` allows every http(s) host."""
    for address in addresses(fields, endpoint):
        if address[:5].lower() == "data:":
            continue
        match = _PLAIN.fullmatch(address)
        host = match[1].lower() if match is not None else None
        if host is None or not (ANY in hosts or host in hosts):
            shown = host or "an address that is no plain http:// or https:// one"
            return f"Nothing is fetched from {shown}; send the data itself, as a `data:` URL"
    return None


def refused_form(body: bytes) -> str | None:
    """The same for a form (multipart/form-data), whose fields may be addresses, too: none may."""
    small, at = body.lower(), 0
    # each byte is read a few times at most, however many such heads there are: one pattern for all took 6 s for 96 kB
    while (head := small.find(b"content-disposition:", at)) >= 0:
        blank = _BLANK.search(small, head)
        if blank is None:
            return None
        at = blank.end()
        if _BEGINS_AS_ADDRESS.match(small, at):
            return "Nothing is fetched for a form; send the data itself, as a file"
    return None


def addresses(fields: Fields, endpoint: str = "") -> Iterator[str]:
    """Every address in a body that a server may fetch from, however deep; an odd value in its place counts as one."""
    top, tools = fields, fields.get("tools", ())
    if not _APART.isdisjoint(fields):
        top = {name: held for name, held in fields.items() if name not in _APART}
    below: list[Any] = [top]
    for tool in tools if type(tools) is list else [tools]:
        is_schema = type(tool) is dict and not SCHEMAS.isdisjoint(tool)
        below.append({name: tool[name] for name in tool.keys() - SCHEMAS} if is_schema else tool)
    media: list[Any] = []
    """What holds media: every text in it counts. Each value is visited once, however such names are nested."""
    while below or media:
        values = media or below
        value = values.pop()
        if type(value) is str:
            if values is media and _is_address(value):
                yield value
        elif type(value) is list:
            wanted = _TEXTS if values is media else _NESTED
            # token ids are many: one by one they take three times as long
            if not wanted.isdisjoint(map(type, value)):
                values.extend(value)
        elif type(value) is dict:
            if _NAMED.isdisjoint(value):
                # most messages are a role and a text: neither is looked at outside media
                if values is media or not _NESTED.isdisjoint(map(type, value.values())):
                    values.extend(value.values())
                continue
            yield from _own(value)
            is_call = value.get("type") == "tool_use" and value is not top and endpoint in MESSAGES
            for name, held in value.items():
                if name in MEDIA:
                    media.append(held)
                elif not (is_call and name == "input" and type(held) in _NESTED):
                    values.append(held)


def _own(each: Fields) -> Iterator[str]:
    """The addresses that an object names as such."""
    if each.get("type") == "url" and type(each.get("url")) is str:
        yield each["url"]
    for name in _HOLDERS & each.keys():
        held = each[name]
        if type(held) is dict:
            held = held.get("url")
        elif name == SOURCE:
            continue
        if held is not None:
            # a list or a number in its place is the server's to refuse; it is no address that we know to be harmless
            yield held if type(held) is str else ""


def _is_address(text: str) -> bool:
    return _MARK.search(text) is not None and bool(
        _ADDRESS.match(text) or "://" in text or _FILE.search(text, len(text) - 8)
    )
