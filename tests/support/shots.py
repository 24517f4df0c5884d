"""Records of an honest host and what its counters then say; a test changes what its host does otherwise.

`answered` is the least that an answered request tells, for figures worked out by hand. The host of all others: 100 ms to
the first token, 20 ms for each further one, so 2,080 ms for 100 tokens (450 characters), eight requests at once in waves
2.5 s apart.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from toolkit.bench.summary import HostSummary, summary
from toolkit.bench.verdicts.case import Case
from toolkit.bench.verdicts.judgement import judgement
from toolkit.records import Host, Ledger, RequestRecord, ServedModel, Verdict

AT = 1_750_000_000.0
WAVE = 8
WAVE_S = 2.5
HOST = Host(name="alice", url="http://h:1")
MODEL = ServedModel(id="tiny", root="org/tiny", max_model_len=4096)


def shot(
    slot: int = 0, *, tokens: int = 100, first_ms: float = 100.0, **more: Any
) -> RequestRecord:
    """One answer; `first_ms` is to its first token, `token_ms` for each further one."""
    token_ms = more.pop("token_ms", 20.0)
    stream = more.get("stream", True)
    e2e_ms = first_ms + (tokens - 1) * token_ms
    planned_at = more.get("planned_at", AT + slot // WAVE * WAVE_S)
    values = {
        "run": "r",
        "name": "alice",
        "url": "http://h:1",
        "slot": slot,
        "kind": "unique",
        "prompt": f"p{slot % 4}",
        "concurrency": WAVE,
        "stream": stream,
        "max_tokens": 256,
        "planned_at": planned_at,
        "sent_at": planned_at,
        "send_lag_ms": 0.0,
        "took_ms": e2e_ms,
        "ok": True,
        "status_code": 200,
        "ttft_ms": first_ms if stream else None,
        "e2e_ms": e2e_ms,
        "tpot_ms": token_ms if stream and tokens > 1 else None,
        "prompt_tokens": 30,
        "output_tokens": tokens,
        "token_chunks": tokens if stream else None,
        "text_chars": tokens * 9 // 2,
        "text_hash": f"text-{more.get('kind', 'unique')}-{slot}",
        "finish_reason": "stop",
        "model": "tiny",
        "answer_id": f"id-{more.get('kind', 'unique')}-{slot}",
    }
    return RequestRecord(**{**values, **more})


def answered(took_ms: float | None, slot: int = 0, /, **more: Any) -> RequestRecord:
    """A streamed answer in a closed loop that tells when it left and what it took."""
    least = {
        "run": "r",
        "name": "alice",
        "url": "http://h:1",
        "slot": slot,
        "kind": "unique",
        "prompt": "story",
        "concurrency": WAVE,
        "stream": True,
        "max_tokens": 256,
        "planned_at": AT,
        "sent_at": more.get("planned_at", AT),
        "took_ms": took_ms,
        "ok": True,
        "e2e_ms": took_ms,
    }
    return RequestRecord(**{**least, **more})


def step(concurrency: int, rps: float | None, e2e_p50_ms: float | None, **more: Any) -> HostSummary:
    """A level of a sweep that tells its throughput and its latency."""
    nothing = summary([], name="alice", url="http://h:1", run="r", concurrency=concurrency)
    figures = {"requests": 32, "ok": 32, "rps": rps, "e2e_p50_ms": e2e_p50_ms}
    return replace(nothing, **{**figures, **more})


def uniques(count: int, start: int = 0, **more: Any) -> list[RequestRecord]:
    return [shot(slot, **more) for slot in range(start, start + count)]


def failed(slot: int, kind: str = "http_500", took_ms: float = 5.0, **more: Any) -> RequestRecord:
    whole = shot(slot, **more)
    return replace(
        whole,
        ok=False,
        error_kind=kind,
        took_ms=took_ms,
        ttft_ms=None,
        e2e_ms=None,
        tpot_ms=None,
        output_tokens=None,
        token_chunks=None,
        text_chars=None,
        text_hash=None,
        finish_reason=None,
        answer_id=None,
    )


def twin(of: RequestRecord, slot: int, **more: Any) -> RequestRecord:
    """The same request again, answered by the engine with a text of its own."""
    at = AT + slot // WAVE * WAVE_S
    own = {
        "slot": slot,
        "kind": "twin",
        "pair": of.slot,
        "planned_at": at,
        "sent_at": at,
        "text_hash": f"text-twin-{slot}",
        "answer_id": f"id-twin-{slot}",
    }
    return replace(of, **{**own, **more})


def replayed(of: RequestRecord, slot: int, **more: Any) -> RequestRecord:
    """The same request again, answered from memory in 3 ms: same text, tokens 0.01 ms apart, an id of its own."""
    took = {"ttft_ms": 2.0 if of.stream else None, "e2e_ms": 3.0, "took_ms": 3.0, "tpot_ms": 0.01}
    return twin(of, slot, **{"text_hash": of.text_hash, **took, **more})


def books(
    shots: Iterable[RequestRecord], *, without: Iterable[RequestRecord] = (), **more: Any
) -> Ledger:
    """An honest server's ledger over these requests, exact: what they claim it has counted. `without` some that its engine never saw."""
    left_out = set(without)
    made = [each for each in shots if each.ok and each not in left_out]
    values: dict[str, Any] = {
        "run": "r",
        "name": "alice",
        "url": "http://h:1",
        "rtt_ms": 0.2,
        "restarted": False,
        "requests": len(made),
        "prompt_tokens": sum(each.prompt_tokens or 0 for each in made),
        "generation_tokens": sum(each.output_tokens or 0 for each in made),
        "finished_length": sum(each.finish_reason == "length" for each in made),
        "finished_stop": sum(each.finish_reason == "stop" for each in made),
        "asked_tokens": sum(each.max_tokens for each in made),
        "asked_requests": len(made),
        "preemptions": 0,
        "queue_mean_ms": 0.5,
        "running_before": 0,
        "waiting_before": 0,
        "waiting_max": 0,
        "models_before": (MODEL,),
        "models_after": (MODEL,),
    }
    return Ledger(**{**values, **more})


def no_books(**more: Any) -> Ledger:
    """The ledger of a host that shows no counters."""
    values = {"error": "`/metrics` answered 404", "models_before": (MODEL,), **more}
    return Ledger(run="r", name="alice", url="http://h:1", **values)


def told(
    shots: Sequence[RequestRecord],
    ledger: Ledger | None = None,
    *,
    host: Host = HOST,
    peers: dict[str, list[RequestRecord]] | None = None,
    levels: Sequence[HostSummary] = (),
) -> dict[str, Verdict]:
    """All verdicts by code; without a ledger, an honest one."""
    ledger = ledger or books(shots)
    case = Case(records=shots, ledger=ledger, host=host, peers=peers or {}, levels=levels)
    found = judgement(case).verdicts
    by_code = {verdict.code: verdict for verdict in found}
    assert len(by_code) == len(found), "a code stands twice"
    return by_code


def accused(
    shots: Sequence[RequestRecord], ledger: Ledger | None = None, **more: Any
) -> dict[str, str]:
    """Code -> confidence of all accusations."""
    found = told(shots, ledger, **more)
    codes = {code: verdict.confidence for code, verdict in found.items()}
    codes.pop("not_judged", None)
    assert ("clean" in codes) == (len(codes) == 1 and "clean" in codes)
    codes.pop("clean", None)
    return codes
