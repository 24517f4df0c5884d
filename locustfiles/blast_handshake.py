"""Do a worker and its master load the same hosts? Compared before the worker connects, so that one that differs gets no users.

Locust sends users by class name and a worker makes them of its own list: with another one it would load other hosts under
the same names.
"""

import signal
import socket
import sys
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any
from uuid import uuid4

import gevent
from blast_master import say
from locust.exception import RPCError
from locust.rpc import Message, zmqrpc

from toolkit.blast.machine import local_hosts
from toolkit.cli.exit_codes import INTERRUPTED
from toolkit.errors import ToolkitError
from toolkit.records import Host

GREETING, WELCOME = "toolkit_greeting", "toolkit_welcome"
SEND_EVERY_S = 1.0
SAY_AFTER = 10
"""Greetings without an answer."""
GIVE_UP_S = 300.0
"""As long as Locust's own worker tries to connect."""


def greet_master(host: str, port: int, hosts_hash: str, hosts: Sequence[Host]) -> None:
    """Return once the master has the same list; raises ToolkitError when it has another, or does not answer.

    The greeting also says which hosts are on this machine: the load would take CPU from them.

    Ctrl-C meanwhile ends the process: nothing was begun, so nothing is to be stopped.
    """
    # of a KeyboardInterrupt gevent and Python print a traceback each
    is_ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # nohup ignores it
    if is_ours:
        signal.signal(signal.SIGINT, lambda *_: sys.exit(INTERRUPTED))
    client = zmqrpc.Client(host, port, f"greeting_{uuid4().hex}")
    content = {
        "hosts_hash": hosts_hash,
        "hosts": len(hosts),
        "machine": socket.gethostname(),
        "local_hosts": local_hosts(hosts),
    }
    greeting = Message(GREETING, content, client.socket.identity.decode())

    def send_again() -> None:
        for number in count(1):
            try:
                client.send(greeting)
            except RPCError as error:
                say(f"The master at {host}:{port} cannot be reached: {error}")
            gevent.sleep(SEND_EVERY_S)
            if number == SAY_AFTER:
                say(f"Waiting for the master at {host}:{port} ...")

    answer: dict[str, Any] | None = None
    sending = gevent.spawn(send_again)
    try:
        with gevent.Timeout(GIVE_UP_S, False):
            while (message := client.recv()).type != WELCOME:
                pass
            answer = dict(message.data)
    finally:
        sending.kill(block=False)
        client.close(linger=0)
        if is_ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)
    if answer is None:
        raise ToolkitError(f"no blast's master answers at `{host}:{port}`", "Start it first")
    if not answer["is_same"]:
        raise _unlike(len(hosts), answer["hosts"])


def answer_workers(
    runner: Any,
    hosts_hash: str,
    hosts: int,
    note_local_hosts: Callable[[str, Sequence[tuple[str, str]]], None],
) -> None:
    """Let a master answer its workers' greetings; `note_local_hosts` gets each one's machine and the hosts on it."""

    def answer(environment: Any, msg: Any) -> None:  # noqa: ARG001 (Locust's signature)
        is_same = msg.data["hosts_hash"] == hosts_hash
        if not is_same:
            say(f"A worker was refused: {_unlike(msg.data['hosts'], hosts).message}")
        else:
            note_local_hosts(
                msg.data["machine"], [tuple(found) for found in msg.data["local_hosts"]]
            )
        runner.server.send_to_client(
            Message(WELCOME, {"is_same": is_same, "hosts": hosts}, msg.node_id)
        )

    runner.register_message(GREETING, answer)


def _unlike(workers: int, masters: int) -> ToolkitError:
    if workers == masters:
        how = "other names, URLs or models, or another version of the toolkit"
    else:
        how = f"{workers} hosts at the worker, {masters} at the master"
    return ToolkitError(
        f"the worker's list of hosts is not the master's ({how})",
        "Start it with the same hosts file, names and models included",
    )
