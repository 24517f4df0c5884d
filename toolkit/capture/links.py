"""Where the IP packet begins in a frame, by the capture's link type; where IPv6's extension headers end.

It looks at single frames; it keeps nothing and never looks beyond the IP layer.
"""

from dataclasses import dataclass

from toolkit.errors import ToolkitError

IPV4 = b"\x08\x00"
"""EtherType of IPv4; IPv6's is told by the packet's own version, where the tags end."""
TAGS = frozenset({b"\x81\x00", b"\x88\xa8", b"\x91\x00"})
"""EtherTypes of VLAN tags: 802.1Q, 802.1ad (QinQ) and what came before it; a tag is 4 bytes long."""

FRAGMENT, _AUTHENTICATION = 44, 51
EXTENSIONS = frozenset({0, 43, _AUTHENTICATION, 60, 135, 139, 140})
"""IPv6's headers before the transport's: hop-by-hop, routing, authentication, destination options, mobility, HIP, shim6.

With fragments' these are all that bpf.py lets through, as TCP may stand behind any of them.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkType:
    """How frames of one link type begin."""

    name: str
    header: int
    """Bytes before the IP packet, VLAN tags not counted."""
    protocol_at: int | None = None
    """Where the EtherType stands; None: the frame has none, and the packet's own version tells."""


_RAW = LinkType(name="RAW", header=0)
LINKS = {
    0: LinkType(name="NULL", header=4),
    1: LinkType(name="EN10MB", header=14, protocol_at=12),
    # RAW is 101 in files; 12 and 14 are what it is called in memory, and some programs write that
    12: _RAW,
    14: _RAW,
    101: _RAW,
    108: LinkType(name="LOOP", header=4),
    113: LinkType(name="LINUX_SLL", header=16, protocol_at=14),
    228: LinkType(name="IPV4", header=0),
    229: LinkType(name="IPV6", header=0),
    276: LinkType(name="LINUX_SLL2", header=20, protocol_at=0),
}

_OTHERS = {
    6: "TOKEN_RING",
    9: "PPP",
    50: "PPP_HDLC",
    51: "PPP_ETHER",
    105: "IEEE802_11",
    127: "IEEE802_11_RADIOTAP",
    147: "USER0",
    187: "BLUETOOTH_HCI_H4",
    189: "USB_LINUX",
    195: "IEEE802_15_4",
    201: "BLUETOOTH_HCI_H4_WITH_PHDR",
    220: "USB_LINUX_MMAPPED",
    239: "NFLOG",
    240: "NETANALYZER",
    249: "USBPCAP",
    253: "NETLINK",
}
"""Names of what people capture, too, and what holds no IP, or holds it deeper than is looked."""


def link(link_type: int) -> LinkType:
    """How frames of this type begin; ToolkitError names a type that is not read."""
    found = LINKS.get(link_type)
    if found is None:
        known = ", ".join(f"{each.name} ({number})" for number, each in LINKS.items())
        raise ToolkitError(
            f"frames of link type {_OTHERS.get(link_type, 'unknown')} ({link_type}) are not read",
            f"Capture on the interface that carries the IP packets, e.g., `tcpdump -i any`; read are {known}",
        )
    return found


def ip_start(link: LinkType, frame: bytes) -> int | None:
    """Where the IP packet begins, past VLAN tags; None: the frame holds none."""
    at = link.header
    if link.protocol_at is not None:
        protocol = frame[link.protocol_at : link.protocol_at + 2]
        while protocol in TAGS:
            # after the EtherType of a tag come its 2 bytes, then the next EtherType
            protocol = frame[at + 2 : at + 4]
            at += 4
        if protocol not in (IPV4, b"\x86\xdd"):
            return None
    return at if at < len(frame) else None


def transport(packet: bytes, header: int, at: int) -> tuple[int, int]:
    """Kind and place of the first header that is no IPv6 extension; a fragment header ends the walk, too.

    `header` is the kind of what stands at `at`. A chain that is cut short ends as the extension it ends in.
    """
    while header in EXTENSIONS and at + 2 <= len(packet):
        following, length = packet[at], packet[at + 1]
        # RFC 8200 counts 8 bytes beyond the first 8, RFC 4302 4 bytes beyond the first 8
        at += (length + 2) * 4 if header == _AUTHENTICATION else (length + 1) * 8
        header = following
    return header, at
