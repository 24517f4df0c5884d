"""Do a worker and its master load the same hosts? Asked before the worker connects, so that one that differs gets no users.

Locust sends users by class name and a worker makes them of its own list: with another one it would load other hosts under
the same names.
"""

import sys
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import gevent
from locust.exception import RPCError
from locust.rpc import Message, zmqrpc

from toolkit.errors import ToolkitError

HELLO, WELCOME = "toolkit_hello", "toolkit_welcome"
ASK_EVERY_S = 1.0
SAY_AFTER_S = 10.0
GIVE_UP_S = 300.0
"""As long as Locust's own worker tries to connect."""


def ask_master(host: str, port: int, hosts_hash: str, hosts: int) -> None:
    """Return once the master has the same list; raises ToolkitError when it has another, or does not answer."""
    client = zmqrpc.Client(host, port, f"hello_{uuid4().hex}")
    told = {"hosts_hash": hosts_hash, "hosts": hosts}
    try:
        answer = gevent.spawn(_ask_until_told, client, told, f"{host}:{port}").get()
    finally:
        client.close(linger=0)
    if answer is None:
        raise ToolkitError(f"no blast's master answers at `{host}:{port}`", "Start it first")
    if not answer["is_same"]:
        raise _unlike(hosts, answer["hosts"])


def _ask_until_told(client: Any, told: dict[str, Any], where: str) -> dict[str, Any] | None:
    asking = gevent.spawn(_ask_again, client, told, where)
    try:
        with gevent.Timeout(GIVE_UP_S, False):
            while True:
                message = client.recv()
                if message.type == WELCOME:
                    return dict(message.data)
    finally:
        asking.kill(block=False)
    return None


def _ask_again(client: Any, told: dict[str, Any], where: str) -> None:
    waited_s = 0.0
    while True:
        try:
            client.send(Message(HELLO, told, client.socket.identity.decode()))
        except RPCError as error:
            print(f"The master at {where} cannot be asked: {error}", file=sys.stderr, flush=True)
        gevent.sleep(ASK_EVERY_S)
        waited_s += ASK_EVERY_S
        if waited_s == SAY_AFTER_S:
            print(f"Waiting for the master at {where} ...", file=sys.stderr, flush=True)


def answer_workers(runner: Any, hosts_hash: str, hosts: int, say: Callable[[str], None]) -> None:
    """Let a master answer its workers' questions."""

    def answer(environment: Any, msg: Any) -> None:  # noqa: ARG001 (Locust's signature)
        is_same = msg.data["hosts_hash"] == hosts_hash
        if not is_same:
            say(f"A worker was refused: {_unlike(msg.data['hosts'], hosts).message}")
        told = {"is_same": is_same, "hosts": hosts}
        runner.server.send_to_client(Message(WELCOME, told, msg.node_id))

    runner.register_message(HELLO, answer)


def _unlike(workers: int, masters: int) -> ToolkitError:
    if workers == masters:
        how = "other names, URLs or models, or another version of the toolkit"
    else:
        how = f"{workers} hosts at the worker, {masters} at the master"
    return ToolkitError(
        f"the worker's list of hosts is not the master's ({how})",
        "Start it with the same hosts file, names and models included",
    )
