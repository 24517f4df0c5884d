"""Who asks: keys from variables and files, looked up without telling anything of them."""

import pytest

from toolkit.proxy.auth import (
    Keyring,
)
from toolkit.proxy.config import TeamSetting

RED = TeamSetting(name="red", key_env="RED_KEY")
SECRET = "sk-very-secret-1234567890"
RING = Keyring([], [("red", "key-of-red"), ("red", "next-of-red"), ("blue", "key-of-blue")])


@pytest.mark.parametrize(
    "header",
    [b"bearer key-of-red", b"BEARER key-of-red", b"Bearer  key-of-red", b"Bearer\tkey-of-red", b"Bearer key-of-red \t"],
)  # fmt: skip
def test_the_scheme_may_be_spelled_and_spaced_otherwise(header: bytes) -> None:
    assert RING.team(header) == "red"


@pytest.mark.parametrize(
    "header",
    [
        *(None, b"", b" ", b"Bearer", b"Bearer ", b"Bearer\t\t", b"Bearerkey-of-red", b"key-of-red"),
        *(b"Basic key-of-red", b"Token key-of-red", b" Bearer key-of-red", b"Bearer key-of-red key-of-red"),
        *(b"Bearer key-of-re", b"Bearer key-of-redd", b"Bearer KEY-OF-RED", b"Bearer key-of-red,key-of-blue"),
        *(b"Bearer Bearer key-of-red", b"Bearer \xff\xfe", b"Bearer key-of-red\x00", b"Bearer key-of-red\n"),
        *(b'Bearer "key-of-red"', b"Bearer\xa0key-of-red", b"Bearer key-of-red\r\nx: y", b"Bearer red"),
        b"Bearer " + b"a" * 1_000_000,
        b"Bearer" + b" " * 1_000_000,
    ],
)  # fmt: skip
def test_anything_else_is_nobodys(header: bytes | None) -> None:
    assert RING.team(header) is None


def test_the_ring_keeps_no_key() -> None:
    ring = Keyring([], [("red", SECRET)])
    assert SECRET not in repr(ring)
    held = repr(vars(ring))
    assert SECRET not in held
    assert "red" in held
