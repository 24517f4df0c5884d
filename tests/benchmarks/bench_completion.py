"""CPU that an event of a recorded stream costs in toolkit/protocol/completion.py, everything included.

    python tests/benchmarks/bench_completion.py

The chunks with a token of two recorded streams, in turn up to 1,000: plain ones of about 210 bytes, and ones of about
330 with `usage` in each. Fed one event a read, as a server under light load sends them, and 50 a read, as they pile up
at a busy client. RATIO completion_event_cpu is the dearest of the one-a-read medians over 25 us, the project's bar for
all that a client does for an event; the aim for this part is 5 us.
"""

import statistics
import time
from itertools import cycle, islice
from pathlib import Path

from toolkit.protocol.completion import Completion

RECORDED = Path(__file__).parent.parent / "data" / "vllm-0.32.0-cpu"
STREAMS = ("chat_stream.txt", "chat_stream_contusage.body")
EVENTS = 1_000
ROUNDS = 25
BAR_US = 25.0


def events(name: str) -> list[bytes]:
    """The recorded stream, its chunks with a token repeated."""
    role, *tokens, usage, done = (RECORDED / name).read_bytes().removesuffix(b"\n\n").split(b"\n\n")
    return [each + b"\n\n" for each in (role, *islice(cycle(tokens), EVENTS), usage, done)]


def batched(reads: list[bytes], size: int) -> list[bytes]:
    """The same bytes, so many events a read."""
    return [b"".join(reads[at : at + size]) for at in range(0, len(reads), size)]


def event_cpu_us(reads: list[bytes]) -> float:
    """CPU of reading one answer / its chunks with a token, in microseconds."""
    start = time.process_time()
    reader = Completion(status=200, content_type="text/event-stream; charset=utf-8")
    for at, data in enumerate(reads):
        reader.feed(data, float(at))
    answer = reader.end(0.0)
    took_s = time.process_time() - start
    assert answer.token_chunks == EVENTS
    return took_s * 1e6 / EVENTS


def main() -> None:
    """Print the medians and the ratio."""
    dearest = 0.0
    for name in STREAMS:
        single = events(name)
        piled = batched(single, 50)
        # in turns, so that a slower minute slows both
        rounds = [(event_cpu_us(single), event_cpu_us(piled)) for _ in range(ROUNDS)]
        one, fifty = (statistics.median(column) for column in zip(*rounds, strict=True))
        dearest = max(dearest, one)
        print(
            f"{name}: {len(single[1])} bytes an event; {one:.2f} us CPU an event at one a read,"
            f" {fifty:.2f} at 50 a read (medians of {ROUNDS} rounds of {EVENTS:,} events)"
        )
    print(f"RATIO completion_event_cpu {dearest / BAR_US:.2f}")


if __name__ == "__main__":
    main()
