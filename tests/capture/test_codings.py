"""Bodies under their encodings: the plain bytes, never more than the limit, and a reason where there are none."""

import gzip
import zlib

import brotli
import pytest
import zstandard

from toolkit.capture.codings import NotDecodedError, decoded

PLAIN = b'{"prompt": "' + b"the same words again, " * 200 + b'"}'
LIMIT = 100_000


PACKED = {
    "gzip": gzip.compress(PLAIN),
    "x-gzip": gzip.compress(PLAIN),
    "deflate": zlib.compress(PLAIN),
    "br": brotli.compress(PLAIN),
    "zstd": zstandard.compress(PLAIN),
}
ENCODINGS = sorted(PACKED)


def reason(body: bytes, encodings: str, limit: int = LIMIT) -> str:
    with pytest.raises(NotDecodedError) as caught:
        decoded(body, encodings, limit)
    return str(caught.value)


def test_encodings_are_undone_from_the_last_to_the_first() -> None:
    twice = brotli.compress(gzip.compress(PLAIN))
    assert decoded(twice, "gzip, br", LIMIT) == PLAIN
    # some senders of `deflate` leave zlib's header out
    assert decoded(zlib.compress(PLAIN, wbits=-15), "deflate", LIMIT) == PLAIN
    assert decoded(PLAIN, "", LIMIT) == decoded(PLAIN, "identity", LIMIT) == PLAIN


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_body_of_exactly_the_limit_is_given_and_a_longer_one_is_not(encoding: str) -> None:
    assert decoded(PACKED[encoding], encoding, len(PLAIN)) == PLAIN
    told = reason(PACKED[encoding], encoding, len(PLAIN) - 1)
    assert told == f"it is longer than {len(PLAIN) - 1:,} bytes"


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_body_cut_anywhere_is_none(encoding: str) -> None:
    body = PACKED[encoding]
    for end in range(1, len(body)):
        assert reason(body[:end], encoding) in ("its encoding ends early", f"it is not {encoding}")


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_bytes_behind_the_end_are_not_passed_over(encoding: str) -> None:
    assert reason(PACKED[encoding] + b"more", encoding)


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
def test_several_members_are_one_body_up_to_a_number(encoding: str) -> None:
    assert decoded(PACKED[encoding] * 3, encoding, LIMIT) == PLAIN * 3
    empty = {"gzip": gzip.compress(b""), "zstd": zstandard.compress(b"")}[encoding]
    assert decoded(empty * 16, encoding, LIMIT) == b""
    assert reason(empty * 17, encoding) == "it has more than 16 members"


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "zstd"])
def test_a_bomb_is_stopped_at_the_limit(encoding: str) -> None:
    zeros = bytes(64 * 1024 * 1024)
    body = {
        "gzip": gzip.compress,
        "deflate": zlib.compress,
        "br": lambda data: brotli.compress(data, quality=1),
        "zstd": zstandard.compress,
    }[encoding](zeros)
    assert len(body) < 300_000
    decode_peak = peak_of(body, encoding)
    assert decode_peak < 8 * 1024 * 1024, f"{decode_peak:,} bytes"


def peak_of(body: bytes, encoding: str) -> int:
    import tracemalloc

    tracemalloc.start()
    try:
        assert reason(body, encoding) == f"it is longer than {LIMIT:,} bytes"
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_what_is_not_known_is_told_without_quoting_it() -> None:
    assert reason(PLAIN, "aes128gcm") == "an encoding that is not known here"
    assert reason(PLAIN, "gzip," * 5) == "5 encodings one around the other"


def test_a_zstd_frame_that_wants_a_huge_window_is_refused() -> None:
    # magic, no single segment, window descriptor 0x70: 2^(10 + 14) bytes = 16 MiB, then an empty last block
    assert reason(bytes.fromhex("28b52ffd" + "00" + "70" + "010000"), "zstd") == "it is not zstd"
    # 0x68: 8 MiB
    assert decoded(bytes.fromhex("28b52ffd" + "00" + "68" + "010000"), "zstd", LIMIT) == b""
