"""CPU of reading one recorded `/metrics` page: ours, everything scout asks, against prometheus-client's.

RATIO parse_cpu is CPU of `read_page`, `read_numbers`, the quantiles and `readings` over that of
prometheus-client's `text_string_to_metric_families` consumed to the end, on the same text.
parse_cpu_first is the same for a page whose labels were never met before, as on a first look at one
host; parse_cpu for one whose labels are known, as from the second host or look on.
"""

import statistics
import time
from collections.abc import Callable
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from toolkit.metrics.dialects import read_numbers
from toolkit.metrics.parser import _labels, read_page

RECORDED = Path(__file__).parent.parent / "data" / "metrics" / "recorded"
PAGES = ("idle", "during_load", "after_load")
ROUNDS = 15
PARSES = 10  # a round of one parse, 3 to 7 ms, would be as short as the clock's own noise


def ours(text: str) -> int:
    """Read all that a sighting needs; the number of readings it keeps."""
    page = read_page(text)
    numbers = read_numbers(page)
    assert numbers is not None
    assert numbers.ttft is not None
    assert numbers.queue is not None
    numbers.ttft.quantile(0.5)
    numbers.ttft.quantile(0.95)
    numbers.queue.mean()
    return len(page.readings())


def ours_first(text: str) -> int:
    """The same, with no set of labels remembered."""
    _labels.cache_clear()
    return ours(text)


def theirs(text: str) -> int:
    """Read every sample of the page; their number."""
    return sum(len(family.samples) for family in text_string_to_metric_families(text))


def cpu_ms(work: Callable[[str], int], text: str) -> float:
    """CPU of one parse, in milliseconds."""
    start = time.process_time()
    for _ in range(PARSES):
        work(text)
    return (time.process_time() - start) * 1000 / PARSES


def compare(text: str) -> list[float]:
    """Take all in turns, so that a slower minute slows all; return the medians."""
    ways = (ours, ours_first, theirs)
    rounds = [[cpu_ms(way, text) for way in ways] for _ in range(ROUNDS)]
    return [statistics.median(column) for column in zip(*rounds, strict=True)]


def main() -> None:
    """Print each page's medians and the worst ratios."""
    ratios = []
    for name in PAGES:
        text = (RECORDED / f"{name}.txt").read_text(encoding="utf-8")
        mine, first, other = compare(text)
        ratios.append((mine / other, first / other))
        print(
            f"{name}: {len(text):,} characters; ours {mine:.2f} ms CPU for {ours(text)} readings and"
            f" the numbers, {first:.2f} ms the first time; prometheus-client {other:.2f} ms for"
            f" {theirs(text)} samples (medians of {ROUNDS} rounds of {PARSES} parses)"
        )
    print(f"RATIO parse_cpu {max(known for known, _ in ratios):.2f}")
    print(f"RATIO parse_cpu_first {max(first for _, first in ratios):.2f}")


if __name__ == "__main__":
    main()
