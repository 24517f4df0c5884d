"""The same requests answered by a real vLLM twice, whole and as a stream, and what both answers come to by the rules of the API."""

import json
from pathlib import Path
from typing import Any

from toolkit.proxy.cache.entry import CachedResponse
from toolkit.proxy.responses.recorder import Recorder
from toolkit.proxy.responses.transcode import ResponseFormat, response_format

RECORDED = Path(__file__).parents[1] / "data" / "vllm-0.32.0-cpu"
PAIRS = RECORDED / "pairs"
JSON_TYPE, STREAM_TYPE = "application/json", "text/event-stream; charset=utf-8"

Fields = dict[str, Any]


def asked(name: str) -> tuple[str, ResponseFormat]:
    """Endpoint and format of a recorded request that was not to be streamed."""
    fields = json.loads((PAIRS / f"{name}.request.json").read_bytes())
    endpoint = fields.pop("path").removeprefix("/v1/")
    wanted = response_format(fields, endpoint)
    assert wanted is not None
    return endpoint, wanted


def recorder(
    content_type: str = STREAM_TYPE,
    *,
    status: int = 200,
    endpoint: str = "chat/completions",
    has_usage: bool = False,
    max_bytes: int = 2**24,
) -> Recorder:
    """Sent at 10 s."""
    return Recorder(
        status=status,
        content_type=content_type,
        endpoint=endpoint,
        has_usage=has_usage,
        sent_s=10.0,
        max_bytes=max_bytes,
    )


def ended(recording: Recorder, at: float = 99.0, broken: str | None = None) -> Recorder:
    """The same, at its end."""
    recording.end(at, broken)
    return recording


def kept(
    data: bytes, content_type: str = STREAM_TYPE, endpoint: str = "chat/completions"
) -> CachedResponse:
    """A complete answer, read at 10.5 s."""
    recording = recorder(content_type, endpoint=endpoint)
    recording.feed(data, 10.5)
    found = ended(recording, 10.6)
    assert found.cached is not None, found.why_not
    return found.cached


def kept_stream(name: str) -> CachedResponse:
    return kept((PAIRS / f"{name}.txt").read_bytes(), STREAM_TYPE, asked(name)[0])


def chunks(body: bytes) -> list[Fields]:
    """The JSON of each event but the last, which is `[DONE]`."""
    events = body.decode().removesuffix("\n\n").split("\n\n")
    assert events[-1] == "data: [DONE]"
    return [json.loads(event.removeprefix("data: ")) for event in events[:-1]]
