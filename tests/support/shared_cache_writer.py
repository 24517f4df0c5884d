"""Put numbered answers into a shared cache for ever; tests kill it.

    python shared_cache_writer.py FILE FIRST MAX_BYTES

Prints how many the cache says are written, whenever that grew. Answer N lies under N's digest, and is that digest over and over.
"""

import hashlib
import sys
import time

from toolkit.proxy.stored.shared_cache import SharedCache


def key(number: int) -> bytes:
    return hashlib.blake2b(str(number).encode(), digest_size=16).digest()


def value(number: int) -> bytes:
    """100 bytes to 100 KB."""
    return key(number) * (7 + number * number % 6_000)


def main(path: str, first: int, max_bytes: int) -> None:
    cache = SharedCache(path, max_bytes, batch_s=0.05)
    written = 0
    number = first
    while True:
        while not cache.put(
            key(number), value(number), ends_at=None, tenant="", model="tiny", now=time.time()
        ):
            time.sleep(0.001)
        number += 1
        if cache.counts().written > written:
            written = cache.counts().written
            print(written, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
