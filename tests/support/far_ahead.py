"""A blast of 300 s that is over, in which one host is 80 times ahead of others that are nearly alike.

Three of them have errors (2, 7 and 25 % of their requests), two fell silent half way, one never answered, and one that came late
is the fastest.
"""

from pathlib import Path
from typing import Any

from contract.harness.blasts import Blast, begin

STARTED_S, LENGTH_S = 1_790_000_000, 300
FAILING = {"shaky": 2, "flaky": 8, "the-host-of-team-seven": 33}
FALLEN = ("gone", "lost-contact")


def blast_far_ahead(file: Path, plain: int) -> Blast:
    """Write it, with so many plain hosts, each a little slower than the one before; with none the first host stands alone."""
    counted: dict[str, dict[str, Any]] = {"cache": {"ok": 8000, "e2e_ms": 40.0, "ttft_ms": 5.0}}
    for number in range(plain):
        counted[f"plain-{number:02}"] = {
            "ok": max(20, 100 - number),
            "e2e_ms": 2500.0 + 40 * number,
        }
    for number, (name, errors) in enumerate(FAILING.items() if plain else ()):
        counted[name] = {"ok": 100 - 2 * number, "errors": errors, "e2e_ms": 2800.0 + 10 * number}
    others = (*FALLEN, "dead", "late") if plain else ()
    blast = begin(file, [*counted, *others], STARTED_S)
    up, down = {"ok": 90, "e2e_ms": 2700.0}, {"errors": 3}
    seconds: dict[int, dict[str, dict[str, Any]]] = {}
    for second in range(LENGTH_S):
        told = dict(counted)
        if plain:
            told |= dict.fromkeys(FALLEN, up if second < LENGTH_S / 2 else down)
            told["dead"] = {"errors": 1}
            told["late"] = {"ok": 60 if second > 200 else 0, "e2e_ms": 20.0}
        seconds[STARTED_S + second] = told
    blast.write(seconds)
    blast.end(STARTED_S + LENGTH_S)
    return blast
