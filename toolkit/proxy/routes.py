"""What a method and a path ask of the proxy: an answer, something to be passed on, one of its own pages, or nothing.

It is an allow-list, and a path is on it letter by letter or not at all: nothing is decoded, joined, shortened or folded, so
that there is no second reading of a path for a server behind to disagree about.
"""

from dataclasses import dataclass
from typing import Literal

from toolkit.proxy.settings import Settings

Kind = Literal["answer", "pass", "own"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """Where a request goes."""

    kind: Kind
    """`answer`: a model's, cached where policy allows. `pass`: sent upstream, never cached. `own`: the proxy's own page."""
    endpoint: str
    """A bounded word for keys and metrics: request_body.endpoint for answers, e.g., `chat/completions`; the page's name for
    the proxy's own; the path without `/v1/` for what is passed on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NoRoute:
    """Nothing stands there for that method."""

    status: Literal[404, 405]
    message: str
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
PASSED = {
    "/v1/models": "GET",
    "/v1/messages/count_tokens": "POST",
    "/v1/chat/completions/render": "POST",
    "/v1/completions/render": "POST",
}
"""Lists, and what only counts or makes tokens: cheap, and not worth keeping."""
OWN = {"/health": "health", "/ping": "ping", "/ready": "ready"}
PUBLIC = {"/metrics": "metrics", "/version": "version"}
"""Own pages for everybody where no team has a key: they tell what all others do."""
NEVER = frozenset({"/v1/load_lora_adapter", "/v1/unload_lora_adapter"})
"""Whoever may call these changes what all others are answered; settings can't open them."""
READS = {"GET": "GET, HEAD", "HEAD": "GET, HEAD"}
_ANSWER_ROUTES = {
    path: Route(kind="answer", endpoint=endpoint) for path, endpoint in ANSWERS.items()
}
_UNKNOWN = NoRoute(
    status=404, message="Nothing is served here; see `GET /v1/models` and `POST /v1/...`"
)


def route(method: str, path: str, settings: Settings) -> Route | NoRoute:
    """Where a request goes, by its path as it was sent, without the query."""
    answer = _ANSWER_ROUTES.get(path)
    if answer is not None:
        return answer if method == "POST" else _other_method("POST")
    if path in PASSED:
        return _passed(method, path, PASSED[path])
    own = OWN.get(path) or (PUBLIC.get(path) if is_public(settings) else None)
    if own is not None:
        return Route(kind="own", endpoint=own) if method in READS else _other_method("GET, HEAD")
    if path in settings.paths and path not in NEVER and path not in PUBLIC:
        return _passed(method, path, "POST" if method == "POST" else "GET", "GET, HEAD, POST")
    return _UNKNOWN


def is_public(settings: Settings) -> bool:
    """Whether everybody on the clients' port may read /metrics and /version."""
    wanted = settings.tell.metrics_on_port
    return not settings.teams if wanted is None else wanted


def _passed(method: str, path: str, allowed: str, every: str = "") -> Route | NoRoute:
    """A path that is passed on for one method; HEAD is a GET whose body nobody wants."""
    if method == allowed or (allowed == "GET" and method == "HEAD"):
        return Route(kind="pass", endpoint=path.removeprefix("/v1/"))
    return _other_method(every or READS.get(allowed, allowed))


def _other_method(allow: str) -> NoRoute:
    return NoRoute(status=405, message=f"Only {allow} is served here", allow=allow)
