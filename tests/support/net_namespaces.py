"""Network namespaces for tests, joined by veth; what a test needs in order to capture, or the reason to skip it.

A namespace is entered by one thread (setns is a thread's own): sockets opened in it stay in it for life, so a test may
open its server in one, its client in another and its capture in a third, and use them side by side.
"""

import ctypes
import itertools
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

CLONE_NEWNET = 0x40000000
SO_RCVBUFFORCE = 33
_numbers = itertools.count()


def _may_capture() -> bool:
    try:
        with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0) as sock:
            sock.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 1 << 20)
    except OSError:
        return False
    return True


def _may_make_namespaces() -> bool:
    if os.geteuid() != 0 or shutil.which("ip") is None:
        return False
    # root in a container may lack the right
    return (
        subprocess.run(["unshare", "--net", "true"], check=False, capture_output=True).returncode
        == 0
    )


needs_capture = pytest.mark.skipif(
    not _may_capture(),
    reason="captures live: run it as root, or with CAP_NET_RAW and CAP_NET_ADMIN",
)
needs_namespaces = pytest.mark.skipif(
    not _may_make_namespaces(),
    reason="makes network namespaces: run it as root with CAP_SYS_ADMIN, with iproute2 (apt-get install iproute2)",
)
needs_tcpdump = pytest.mark.skipif(
    shutil.which("tcpdump") is None, reason="needs tcpdump: apt-get install tcpdump"
)


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, timeout=20)


@contextmanager
def namespace() -> Iterator[str]:
    """A fresh network namespace with `lo` up; its name."""
    name = f"toolkit-{os.getpid()}-{next(_numbers)}"
    ip("netns", "add", name)
    try:
        ip("-n", name, "link", "set", "lo", "up")
        yield name
    finally:
        ip("netns", "del", name)


@contextmanager
def pair(*, names: Sequence[str] = ("client0", "server0")) -> Iterator[tuple[str, str]]:
    """Two namespaces joined by veth: 10.9.0.1 and fd09::1 at the client's end, 10.9.0.2 and fd09::2 at the server's."""
    with ExitStack() as stack:
        ends = [stack.enter_context(namespace()) for _ in names]
        ip(
            "-n",
            ends[0],
            "link",
            "add",
            names[0],
            "type",
            "veth",
            "peer",
            "name",
            names[1],
            "netns",
            ends[1],
        )
        for number, (end, name) in enumerate(zip(ends, names, strict=True), start=1):
            ip("-n", end, "addr", "add", f"10.9.0.{number}/24", "dev", name)
            # nodad: an address may be used at once, without a second of asking the other end about it
            ip("-n", end, "addr", "add", f"fd09::{number}/64", "dev", name, "nodad")
            ip("-n", end, "link", "set", name, "up")
        yield ends[0], ends[1]


@dataclass(frozen=True, slots=True)
class Star:
    """Machines at one switch, each a namespace with one interface, `eth0`."""

    switch: str
    machines: tuple[str, ...]

    def address(self, number: int) -> str:
        """Of a machine, counted from 0."""
        return f"10.9.1.{number + 1}"

    def cut(self, number: int) -> None:
        """Pull its cable, at the switch: it is told nothing but that nothing comes any more."""
        ip("-n", self.switch, "link", "set", f"port{number}", "down")

    def join(self, number: int) -> None:
        """Put it back."""
        ip("-n", self.switch, "link", "set", f"port{number}", "up")


@contextmanager
def star(machines: int) -> Iterator[Star]:
    """So many namespaces that reach one another through another one, and nothing else."""
    with ExitStack() as stack:
        switch = stack.enter_context(namespace())
        found = Star(switch, tuple(stack.enter_context(namespace()) for _ in range(machines)))
        ip("-n", switch, "link", "add", "bridge", "type", "bridge", "forward_delay", "0")
        ip("-n", switch, "link", "set", "bridge", "up")
        for number, name in enumerate(found.machines):
            port = f"port{number}"
            ends = ("type", "veth", "peer", "name", "eth0", "netns", name)
            ip("-n", switch, "link", "add", port, *ends)
            ip("-n", switch, "link", "set", port, "master", "bridge", "up")
            ip("-n", name, "addr", "add", f"{found.address(number)}/24", "dev", "eth0")
            ip("-n", name, "link", "set", "eth0", "up")
        yield found


@contextmanager
def inside(name: str) -> Iterator[None]:
    """This thread in a namespace."""
    library = ctypes.CDLL(None, use_errno=True)

    def enter(path: Path) -> None:
        handle = os.open(path, os.O_RDONLY)
        try:
            if library.setns(handle, CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), f"setns {path}")
        finally:
            os.close(handle)

    own = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    try:
        enter(Path("/var/run/netns", name))
        yield
    finally:
        library.setns(own, CLONE_NEWNET)
        os.close(own)
