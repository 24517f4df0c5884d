"""CPU of reading one recorded `/metrics` page: ours, everything scout asks, against prometheus-client's.

RATIO parse_cpu is CPU of `read_page`, `read_numbers`, the quantiles and `readings` over that of
prometheus-client's `text_string_to_metric_families` consumed to the end, on the same text.
"""

import statistics
import time
from collections.abc import Callable
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from toolkit.dialects import read_numbers
from toolkit.promtext import read_page

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


def theirs(text: str) -> int:
    """Read every sample of the page; their number."""
    return sum(len(family.samples) for family in text_string_to_metric_families(text))


def cpu_ms(work: Callable[[str], int], text: str) -> float:
    """CPU of one parse, in milliseconds."""
    start = time.process_time()
    for _ in range(PARSES):
        work(text)
    return (time.process_time() - start) * 1000 / PARSES


def compare(text: str) -> tuple[float, float]:
    """Take both in turns, so that a slower minute slows both; return the medians."""
    rounds = [(cpu_ms(ours, text), cpu_ms(theirs, text)) for _ in range(ROUNDS)]
    return (
        statistics.median(mine for mine, _ in rounds),
        statistics.median(other for _, other in rounds),
    )


def main() -> None:
    """Print each page's medians and the worst ratio."""
    ratios = []
    for name in PAGES:
        text = (RECORDED / f"{name}.txt").read_text(encoding="utf-8")
        mine, other = compare(text)
        ratios.append(mine / other)
        print(
            f"{name}: {len(text):,} characters; ours {mine:.2f} ms CPU for {ours(text)} readings and"
            f" the numbers, prometheus-client {other:.2f} ms for {theirs(text)} samples,"
            f" ratio {mine / other:.2f} (medians of {ROUNDS} rounds of {PARSES} parses)"
        )
    print(f"RATIO parse_cpu {max(ratios):.2f}")


if __name__ == "__main__":
    main()
