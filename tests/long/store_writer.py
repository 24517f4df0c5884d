"""Write numbered batches into a store for ever and say which are in; test_store_kill kills it.

    python store_writer.py FILE FIRST PAUSE_S

Batch N is BATCH sightings at second N with PAGE readings of value N each. `N` is printed once its
commit has returned, so whoever has read N from the pipe may count on batch N.
"""

import sys
import time

from toolkit.records import Reading, Sighting
from toolkit.store import Store

BATCH = 20
PAGE = 60


def batch(number: int) -> list[Sighting]:
    page = tuple(
        Reading(name=f"metric_{line}", labels=(("engine", "0"),), value=number)
        for line in range(PAGE)
    )
    return [
        Sighting(name=f"host-{n}", url=f"http://h{n}:1", at=number, status="ok", readings=page)
        for n in range(BATCH)
    ]


def main(path: str, first: int, pause_s: float) -> None:
    with Store.open(path) as store:
        for number in range(first, first + 100_000):
            store.add_sightings(batch(number))
            print(number, flush=True)
            time.sleep(pause_s)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
