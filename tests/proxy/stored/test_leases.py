"""Who asks upstream and who waits, from what Redis told: by hand, with what no Redis of ours would say, too."""

import pytest

from toolkit.proxy.stored.leases import GIVEN_UP, Look, Renewed, looked, renewed, step, turned

OWN, OTHERS = b"own", b"others"
ANSWER = (b"packed", 9.0)


@pytest.mark.parametrize(
    ("look", "may_wait", "then"),
    [
        (Look(ANSWER), True, "show"),
        (Look(ANSWER, OTHERS), False, "show"),
        (Look(None, OWN), True, "lead"),
        (Look(None, OWN), False, "lead"),
        (Look(None, OTHERS), True, "wait"),
        (Look(None, OTHERS), False, "ask"),
        (Look(None, GIVEN_UP), True, "ask"),
        # Redis did not tell
        (Look(), True, "ask"),
    ],
)
def test_what_is_done_after_a_look(look: Look, may_wait: bool, then: str) -> None:
    assert step(look, OWN, may_wait=may_wait) == then


@pytest.mark.parametrize(
    ("told", "read"),
    [
        ([b"answer"], (b"answer", None)),
        ([None, b"others"], (None, b"others")),
        ([b"", b"others"], (b"", b"others")),
        ([None, 1], (None, None)),
        ([], (None, None)),
        ([None, b"a", b"b"], (None, None)),
        (None, (None, None)),
        (b"OK", (None, None)),
        (1, (None, None)),
    ],
)
def test_what_a_look_told(told: object, read: tuple[object, bytes | None]) -> None:
    assert looked(told) == read


def test_what_became_of_each_lease() -> None:
    lost, kept, wanted = Renewed(False, False), Renewed(True, False), Renewed(True, True)
    assert renewed([0, 1, 2], 3) == [lost, kept, wanted]
    assert renewed([0, 1], 3) is None
    assert renewed(b"OK", 1) is None
    assert renewed([b"2"], 1) == [lost]


def test_who_waits_looks_again_once_the_lease_is_another_s_or_nobody_s() -> None:
    assert not turned(OTHERS, OTHERS)
    assert turned(None, OTHERS)
    assert turned(GIVEN_UP, OTHERS)
    assert turned(b"third", OTHERS)
