"""A capture that loses frames at random still tells nearly all requests of which it lost none, and no wrong one."""

import random
from collections import Counter

import pytest
from support.streams import ACK, SYN, Capture, key, post

CONNECTIONS, REQUESTS = 100, 40


def bodies(chance: random.Random, frames: int) -> list[list[bytes]]:
    """Of each connection; a request fills `frames` segments of 1,448 bytes."""
    size = 1448 * frames - 200
    return [
        [b"%d %d " % (which, number) + chance.randbytes(size) for number in range(REQUESTS)]
        for which in range(CONNECTIONS)
    ]


def lossy(chance: random.Random, sent: list[list[bytes]], loss: float) -> tuple[Capture, int]:
    """The capture of it and how many bytes that lost.

    All connections at once, a request each in turn, ten a second: nobody sends again what only the capture lost.
    """
    capture, lost = Capture(), 0
    places = [1001] * CONNECTIONS
    for number in range(REQUESTS):
        for which in range(CONNECTIONS):
            data = post(sent[which][number])
            segments = [
                (places[which] + at, data[at : at + 1448]) for at in range(0, len(data), 1448)
            ]
            places[which] += len(data)
            if not number:
                segments.insert(0, (1000, b""))
            for seq, payload in segments:
                if chance.random() < loss:
                    lost += len(payload)
                else:
                    flags = ACK if payload else SYN
                    ts = number / 10 + which / 1000
                    capture.streams.segment(ts, key(40_000 + which), seq, 0, flags, payload)
    capture.streams.close()
    return capture, lost


@pytest.mark.slow
@pytest.mark.parametrize("loss", [0.01, 0.1, 0.3, 0.48])
@pytest.mark.parametrize("frames", [1, 3])
def test_random_loss_costs_the_requests_it_hits_and_no_others(loss: float, frames: int) -> None:
    chance = random.Random(round(loss * 100) + frames)
    sent = bodies(chance, frames)
    capture, lost = lossy(chance, sent, loss)
    wanted = Counter(body for each in sent for body in each)
    got = Counter(body for body in capture.bodies if body is not None)
    assert not got - wanted
    share = got.total() / wanted.total()
    assert share >= (1 - loss) ** frames - 0.02
    # all that was lost is told but what no later segment shows: a connection's last bytes, and its first without a SYN
    assert 0.85 * lost <= capture.losses.gap_bytes <= lost
