"""One way to get request bodies out of a capture file, in a process of its own: `capture_readers.py WAY FILE`.

It prints how many bodies, the digest over them, and the process's peak of memory in kB. What is compared starts here, so
that interpreter and imports are part of the bill.
"""

import re
import sys
from pathlib import Path

from capture_traffic import PORT, Digest


def ours(path: str, digest: Digest) -> None:
    """File -> frames -> streams -> HTTP, as `toolkit capture FILE` does before it reads the bodies' JSON."""
    from toolkit.capture.files import replay
    from toolkit.capture.records import CaptureFilter, HttpRequest, Losses
    from toolkit.capture.tcp import Streams

    def take(request: HttpRequest) -> None:
        if request.body is not None and not request.damaged:
            digest.add(request.body)

    losses = Losses()
    watch = CaptureFilter(ports=(PORT,))
    streams = Streams(take, watch, losses)
    replay(path, streams.segment, watch, losses)
    streams.close()


def frames(path: str, digest: Digest) -> None:
    """File -> segments on the port: the part before streams and HTTP."""
    from toolkit.capture.files import replay
    from toolkit.capture.records import CaptureFilter, Losses

    def take(*_: object) -> None:
        digest.bodies += 1

    replay(path, take, CaptureFilter(ports=(PORT,)), Losses())


def scapy_session(path: str, digest: Digest) -> None:
    """scapy's own way: its reader, TCPSession and HTTP layer."""
    from scapy.layers.http import HTTP, HTTPRequest
    from scapy.layers.inet import TCP
    from scapy.packet import Packet, Raw, bind_bottom_up
    from scapy.sendrecv import sniff
    from scapy.sessions import TCPSession

    bind_bottom_up(TCP, HTTP, dport=PORT)
    bind_bottom_up(TCP, HTTP, sport=PORT)

    def take(packet: Packet) -> None:
        if HTTPRequest in packet and Raw in packet:
            digest.add(packet[Raw].load)

    sniff(offline=path, session=TCPSession, store=False, prn=take)


WAYS = {"ours": ours, "frames": frames, "scapy": scapy_session}


def main() -> None:
    """Read a file one way, and say what was found."""
    digest = Digest()
    WAYS[sys.argv[1]](sys.argv[2], digest)
    # of this program alone: the peak that a parent is told holds what the parent was before the start
    peak = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    print(digest, peak[1] if peak else 0)


if __name__ == "__main__":
    main()
