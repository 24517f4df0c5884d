"""What `toolkit capture` says when there was nothing to read: why, and what to do about it."""

from pathlib import Path

import pytest
from contract.harness.packets import Conversation, pcap, post
from support.capturing import capture, chat


@pytest.mark.parametrize(
    ("snaplen", "message"),
    [
        (54, "port 8000 carries no HTTP/1 request that could be read"),  # Ethernet + IP + TCP
        (30, "there is no whole packet to port 8000"),  # within the IP header
    ],
)
def test_frames_cut_to_their_headers_are_blamed_on_the_capture(
    snaplen: int, message: str, tmp_path: Path
) -> None:
    talk = Conversation()
    talk.open()
    talk.client(post(chat("Write a poem")))
    path = tmp_path / "a.pcap"
    path.write_bytes(pcap(frame.cut(snaplen) for frame in talk.frames))
    ran = capture(path, "--no-store", cwd=tmp_path)
    assert ran.code == 1
    assert f"Error: {message}" in ran.err
    assert ran.err.endswith(
        "Hint: Frames were cut when they were captured; capture again with `tcpdump -s 0`\n"
    )


def test_a_pipe_without_a_byte_points_to_its_writer(tmp_path: Path) -> None:
    ran = capture("-", "--no-store", cwd=tmp_path, data=b"")
    assert ran.code == 1
    assert "Error: standard input is empty\n\nHint: What writes into it ended at once" in ran.err


def test_following_answers_that_are_not_there_is_told_and_invents_no_figure(tmp_path: Path) -> None:
    talk = Conversation()
    talk.open()
    for _ in range(2):
        talk.client(post(chat("Write a poem")))
    path = tmp_path / "a.pcap"
    # TCP's source port in Ethernet + IPv4: only what the client sent
    path.write_bytes(pcap(frame for frame in talk.frames if frame.data[34:36] != b"\x1f\x40"))
    ran = capture(path, "--full", "--no-store", cwd=tmp_path)
    assert "concurrency are unknown; no answer of the server was seen" in ran.out
    told = capture(path, "--full", "--json", "--no-store", cwd=tmp_path)
    assert [one["in_flight"] for one in told.requests] == [None, None]
