"""Boards made by hand, for everything that is drawn of them."""

from typing import Any

from toolkit.board.standings import AffectedInterval, Board, Standing
from toolkit.records import Verdict

AT_S = 1_750_000_899


def standing(name: str, rank: int | None = 1, **changes: Any) -> Standing:
    """A host that answered 900 requests in 15 minutes, without anything remarkable."""
    told: dict[str, Any] = {
        "rank": rank,
        "name": name,
        "url": f"http://{name}:8000",
        "score": 0.5,
        "rps": 1.0,
        "output_tokens_per_s": 100.0,
        "ttft_p50_ms": 100.0,
        "ttft_p95_ms": 200.0,
        "p50_ms": 1000.0,
        "p95_ms": 2000.0,
        "error_rate": 0.0,
        "ok": 900,
        "errors": 0,
        "streamed": 450,
        "hit_share": None,
        "hit_share_inferred": False,
        "output_tokens_estimated": False,
        "tied": False,
        "rank_change": 0,
        "rank_change_5m": 0,
        "verdicts": (),
        "left_out": False,
        "tainted_s": None,
        "taints": (),
        "window_s": 900,
        "at": AT_S,
    }
    return Standing(**told | changes)


def board(*standings: Standing, **changes: Any) -> Board:
    """A board of a running blast, 15 minutes after its start."""
    told: dict[str, Any] = {
        "run": "0123456789ab",
        "at_s": AT_S,
        "window_s": 900,
        "elapsed_s": 900,
        "counted_s": 900,
        "rank_by": "rps",
        "honest": False,
        "skip_limited": False,
        "standings": standings,
        "left_out": (),
        "limited_s": 0,
        "frozen_at_s": None,
        "ended": False,
        "data_end_s": AT_S,
    }
    return Board(**told | changes)


def verdict(code: str, evidence: str = "because", confidence: Any = "high") -> Verdict:
    return Verdict(code=code, confidence=confidence, evidence=evidence)


def taint(**changes: Any) -> AffectedInterval:
    """4 min 10 s of a restart that began at 14:32 by nobody's clock but the machine's."""
    told: dict[str, Any] = {
        "restarted": True,
        "from_s": AT_S - 600,
        "to_s": AT_S - 350,
        "in_window_s": 250,
        "clean_in_s": 550,
        "errors": 99,
    }
    return AffectedInterval(**told | changes)
