"""Names that Kubernetes, compose and systemd take."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.deploy.names import address, dns_label, unlike

RFC_1035 = re.compile(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?")


@pytest.mark.parametrize(
    ("word", "label"),
    [
        ("qwen", "qwen"),
        ("Qwen2.5-7B_Instruct", "qwen2-5-7b-instruct"),
        ("7b", "n7b"),
        ("--", "stack"),
        ("ünïcode", "n-code"),
        ("a.", "a"),
    ],
)
def test_a_word_becomes_a_label_that_can_still_be_read(word: str, label: str) -> None:
    assert dns_label(word) == label


@given(st.text())
def test_whatever_comes_a_label_is_one(word: str) -> None:
    assert RFC_1035.fullmatch(dns_label(word))


def test_long_words_with_one_beginning_stay_apart() -> None:
    first, second = dns_label("x" * 80 + "1"), dns_label("x" * 80 + "2")
    assert first != second
    assert (len(first), len(second)) == (63, 63)


def test_words_that_share_a_label_are_numbered_and_hit_no_other() -> None:
    assert unlike(["a", "A", "a.", "a-2"]) == ("a", "a-3", "a-4", "a-2")


@given(st.lists(st.text(alphabet="aA.-2", max_size=4), max_size=6))
def test_no_two_labels_are_alike(words: list[str]) -> None:
    found = unlike(words)
    assert len(set(found)) == len(words)
    assert all(RFC_1035.fullmatch(each) for each in found)


def test_an_ipv6_address_stands_in_brackets() -> None:
    assert [address(host, 80) for host in ("::1", "10.0.0.1", "host")] == [
        *("[::1]:80", "10.0.0.1:80", "host:80"),
    ]


def test_a_numbered_label_is_no_longer_than_the_rest() -> None:
    word = "y" * 63
    assert [len(each) for each in unlike([word, word])] == [63, 63]
