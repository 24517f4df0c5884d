"""What is added to a body before it goes upstream, byte for byte what the client wrote otherwise. It sends nothing.

Two fields, each right behind the first brace, and only where the client's body has no such field: the usage of a stream, so that
it can be shown as a whole body, too, and the salt of the engine's prefix cache, so that no team can tell by the time to the first
token what another one asked.
"""

from hashlib import blake2b

import orjson

from toolkit.proxy.exchange import View
from toolkit.request_key import Fields

WITH_USAGE = frozenset({"chat/completions", "completions"})
"""Endpoints whose streams tell the usage only if they are asked to."""
SALTED = frozenset({"chat/completions", "completions", "messages", "responses"})
"""Endpoints that take `cache_salt` (vLLM 0.32)."""
USAGE = b'"stream_options":{"include_usage":true}'
SALT = "cache_salt"


def wants_usage(fields: Fields, endpoint: str, view: View) -> bool:
    """Whether a stream's usage has to be asked for: it streams, and says nothing about it itself."""
    return view.stream and endpoint in WITH_USAGE and "stream_options" not in fields


def salt(secret: bytes, tenant: str, own: object) -> str:
    """A tenant's salt; a client's own divides it further, and can't be another tenant's."""
    told = orjson.dumps([tenant, own if isinstance(own, str) else None])
    return blake2b(told, key=secret[:64], digest_size=16, person=b"prefix salt").hexdigest()


def spliced(body: bytes, fields: Fields, *, usage: bool, salt: str | None) -> bytes:
    """The body with what is to be added. A salt of the client's own is replaced, for which the body is written anew."""
    if salt is not None and SALT in fields:
        # what stands inside a field, e.g., a tool's schema, is in `fields` as it was written
        body, salt = orjson.dumps({**fields, SALT: salt}), None
    added = [USAGE] if usage else []
    if salt is not None:
        added.append(b'"%b":"%b"' % (SALT.encode(), salt.encode()))
    if not added:
        return body
    place = body.index(b"{") + 1
    end = b"," if fields else b""
    return b"%b%b%b%b" % (body[:place], b",".join(added), end, body[place:])
