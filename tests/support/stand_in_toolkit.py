"""Stands in for the toolkit's commands that a sweep runs, so that what the sweep does with them is tested without a load.

    python stand_in_toolkit.py sim serve --personality NAME --port PORT ...
    python stand_in_toolkit.py serve STACK
    python stand_in_toolkit.py blast HOSTS --db FILE --duration 4s ... [--resume RUN]
    python stand_in_toolkit.py warmup HOSTS ...

A server named `broken` fails to start, `silent` never says a word, and `dies` ends once the load is over. A blast's host of the name
`refuses` answers nothing. Else a blast writes a run of whole seconds at once: 10 requests a second of 100 tokens for `slow`,
30 for any other. Each command leaves a line in the file that STAND_IN_CALLS names.
"""

import os
import secrets
import signal
import sys
import time
from pathlib import Path

# what writes a run is loaded by a blast alone: the others are started as often, and do without
if "blast" in sys.argv[1:2]:
    from toolkit.records import Event, Host, LoaderSecond, Run, Tally
    from toolkit.stats import Sketch
    from toolkit.store import Store

RATES = {"slow": 10}


def option(words: list[str], name: str) -> str | None:
    return words[words.index(name) + 1] if name in words else None


def serve(words: list[str]) -> None:
    name = option(words, "--personality")
    if name == "broken":
        print("Loading", file=sys.stderr)
        print("Error: the disk is full\n\nHint: Make room", file=sys.stderr)
        sys.exit(1)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    if name != "silent":
        print(f"http://127.0.0.1:{option(words, '--port')}", flush=True)
    signal.pause()


def blast(words: list[str]) -> None:
    name, url = Path(words[0]).read_text().split()[:2]
    database = Path(option(words, "--db") or "")
    resume = option(words, "--resume")
    with Store.open(database) as store:
        run_id = resume or secrets.token_hex(6)
        now = begin(store, run_id, Host(name=name, url=url), is_new=resume is None)
        print(f"Blast `{run_id}` {'resumes' if resume else 'begins'}: 1 user", file=sys.stderr)
        sys.stderr.flush()
        seconds = 4 if resume is None else 2
        for place in range(seconds):
            write(store, run_id, name, url, int(now) + place)
        store.end_run(run_id, ended_at=now + seconds, client_ok=True)
    if name == "refuses":
        print("No host answered any request; `toolkit scout` shows why", file=sys.stderr)
        sys.exit(1)


def begin(store: "Store", run_id: str, host: "Host", *, is_new: bool) -> float:
    now = float(int(time.time())) if is_new else float(int(time.time()) + 1000)
    if is_new:
        store.add_run(Run(id=run_id, verb="blast", started_at=time.time()))
        store.plan_hosts(run_id, [host])
    store.add_event(Event(run=run_id, at=now, kind="start" if is_new else "resume"))
    return now


def write(store: "Store", run_id: str, name: str, url: str, at_s: int) -> None:
    rate = 0 if name == "refuses" else RATES.get(name, 30)
    whole = Sketch()
    if rate:
        whole.add(100.0, rate)
    tally = Tally(
        run=run_id,
        name=name,
        url=url,
        at_s=at_s,
        worker="w",
        kind="ranked",
        ok=rate,
        errors=int(not rate),
        output_tokens=100 * rate,
        e2e=whole.to_bytes(),
    )
    store.add_second([tally], [LoaderSecond(run=run_id, at_s=at_s, worker="w", users=1)])


def main() -> None:
    words = sys.argv[1:]
    with Path(os.environ["STAND_IN_CALLS"]).open("a") as calls:
        calls.write(f"{os.getpid()} {' '.join(words)}\n")
    if "serve" in words[:2]:
        serve(words)
    elif words[0] == "blast":
        blast(words[1:])
    elif words[0] == "warmup":
        if "10.0.0.9" in Path(words[1]).read_text():
            print('{"error": "status 401: no key"}')
            sys.exit(1)
        told = '{"cold_ttft_ms": 890.0, "warm_ttft_ms": 10.0}'
        print(os.environ.get("STAND_IN_WARMED", told))


if __name__ == "__main__":
    main()
