"""Routes: a method and a path -> an answer of a model, something to be passed on, one of the proxy's own pages, or nothing.

It is an allow-list, and a path is on it letter by letter or not at all: nothing is decoded, joined, shortened or folded, so
that there is no second reading of a path for a server behind to disagree about.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from toolkit.proxy.config import Settings  # which asks here which paths there are

Kind = Literal["answer", "pass", "own", "none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """Where a request goes."""

    kind: Kind
    """`answer`: a model's, cached where policy allows. `pass`: sent upstream, never cached. `own`: the proxy's own page. `none`: nothing
    stands there for that method."""
    endpoint: str = ""
    """A bounded word for keys and metrics: protocol.request.endpoint for answers, e.g., `chat/completions`; the page's name for
    the proxy's own; the path without `/v1/` for what is passed on."""
    status: int = 0
    """With `none`, as the next two: 404 or 405."""
    message: str = ""
    allow: str | None = None
    """With 405: the methods that there are."""


ANSWERS = {
    # vLLM guards what begins with /v1 and /v2 by its key; the same without it stays open there, and closed here
    "/v1/chat/completions": "chat/completions",
    "/v1/chat/completions/batch": "chat/completions/batch",
    "/v1/completions": "completions",
    "/v1/responses": "responses",
    "/v1/messages": "messages",
    "/v1/embeddings": "embeddings",
    "/v2/embed": "embed",
    "/v1/score": "score",
    "/v1/rerank": "rerank",
    "/v2/rerank": "rerank",
}
READS = "GET, HEAD"
PASSED = {
    "/v1/models": READS,
    "/v1/messages/count_tokens": "POST",
    "/v1/chat/completions/render": "POST",
    "/v1/completions/render": "POST",
}
"""Lists, and what only counts or makes tokens: cheap, and not worth storing."""
OWN = {"/health": "health", "/ping": "ping", "/ready": "ready"}
PUBLIC = {"/metrics": "metrics", "/version": "version"}
"""Own pages for everybody where no team has a key: they tell what all others do. Settings may open or close them."""
NEVER = frozenset({"/v1/load_lora_adapter", "/v1/unload_lora_adapter"})
"""Whoever may call these changes what all others are answered; settings can't open them."""


def route(method: str, path: str, settings: "Settings") -> Route:
    """Where a request goes, by its path as it was sent, without the query."""
    is_public = settings.tell.metrics_on_port
    own = OWN if is_public is False or (is_public is None and settings.teams) else OWN | PUBLIC
    found = Route(kind="pass", endpoint=path.removeprefix("/v1/"))
    if path in ANSWERS:
        found, allowed = Route(kind="answer", endpoint=ANSWERS[path]), "POST"
    elif path in own:
        found, allowed = Route(kind="own", endpoint=own[path]), READS
    elif path in PASSED:
        allowed = PASSED[path]
    elif path in settings.paths and path not in NEVER and path not in PUBLIC:
        allowed = f"{READS}, POST"
    else:
        message = "Nothing is served here; see `GET /v1/models` and `POST /v1/...`"
        return Route(kind="none", status=404, message=message)
    if method in allowed.split(", "):
        return found
    message = f"Only {allowed} is served here"
    return Route(kind="none", status=405, message=message, allow=allowed)
