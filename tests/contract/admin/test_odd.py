"""Odd questions to the admin's port: each is refused in words, costs little, and does nothing; the port and the clients' go on."""

import json
from pathlib import Path

from contract.harness.clients import BODY, Client, ask, get, request
from contract.harness.programs import until
from contract.harness.proxies import proxy
from contract.harness.servers import chat, server

MIB = 2**20
ALL = {"all": True}
JSON = "content-type: application/json"

ODD = {
    # method, path, body, more lines of the head -> status
    ("GET", "/"): 404,
    ("GET", "/metrics/"): 404,
    ("GET", "/../state"): 404,
    ("GET", "/STATE"): 404,
    ("GET", "/v1/models"): 404,
    ("POST", "/v1/chat/completions"): 404,
    ("POST", "/purge/all"): 404,
    ("POST", "/metrics"): 405,
    ("DELETE", "/metrics"): 405,
    ("PUT", "/state"): 405,
    ("OPTIONS", "/purge"): 405,
    ("GET", "/purge"): 405,
    ("GET", "/drain"): 405,
    ("GET", "/undrain"): 405,
    ("GET", "/explain"): 405,
}
REFUSED: list[tuple[str, object, int]] = [
    ("/purge", b"", 400),
    ("/purge", b"{", 400),
    ("/purge", b"\xff\xfe", 400),
    ("/purge", b"[" * 100_000, 400),
    ("/purge", b"null", 400),
    ("/purge", b'"all"', 400),
    ("/purge", {"all": 1}, 400),
    ("/purge", {"team": 7}, 400),
    ("/purge", {"team": "nobody"}, 400),
    ("/purge", {"request": {"body": BODY, "path": 7}}, 400),
    ("/purge", {"request": 7}, 400),
    ("/explain", {}, 400),
    ("/explain", {"body": BODY, "path": "/v1/nothing"}, 400),
    ("/explain", {"body": BODY, "values": "yes"}, 400),
    ("/explain", {"body": BODY, "bodies": 1}, 400),
    ("/drain", b"{", 400),
    ("/drain", {"upstream": "u0", "why": "fun"}, 400),
    ("/drain", {"upstream": "u0", "back_in_s": "soon"}, 400),
    ("/drain", {"upstream": "u0", "back_in_s": -1}, 400),
    ("/drain", {"upstream": "u0", "back_in_s": 1e300}, 400),
    ("/undrain", {"upstream": ["u0"]}, 400),
    ("/undrain", {"upstream": "u0", "start_s": -1}, 400),
]


def test_odd_questions_are_refused_in_words_and_do_nothing(tmp_path: Path) -> None:
    with server({"*": chat()}) as upstream, proxy(upstream.url, cwd=tmp_path) as door:
        assert ask(door.url).status == 200
        wrong = []
        for (method, path), status in ODD.items():
            told = ask(door.admin, b"", method=method, path=path)
            good = told.status == status and told.is_whole
            if status == 405:
                good = good and told.headers["allow"] in ("GET, HEAD", "POST")
            if not good or "Traceback" in told.body.decode():
                wrong.append((method, path, told))
        for path, body, status in REFUSED:
            told = ask(door.admin, body, path=path)
            error = told.json.get("error", {})
            if told.status != status or "\n" in error["message"] or "bug" in told.body.decode():
                wrong.append((path, body if len(str(body)) < 200 else "long", told))
        # a page in a browser may look at nothing that does something
        for path in ("/purge", "/drain", "/undrain", "/explain"):
            told = ask(door.admin, ALL, path=path, headers=["origin: http://localhost:8000"])
            if told.status != 403:
                wrong.append((path, "origin", told))
        assert wrong == []
        # what is known is named to whoever asked for what is not
        assert "/metrics" in get(door.admin, "/nothing").body.decode()
        with Client(door.admin) as client:
            client.send(request(b"", method="HEAD", path="/metrics"))
            assert client._until(b"\r\n\r\n").startswith(b"HTTP/1.1 200")

        # no HTTP, TLS, half a head, and bodies beyond measure: the connection is closed, and nothing is kept for it
        before = door.program.rss_bytes()
        length = f"content-length: {10**12}"
        for data in (
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 300,
            b"SSH-2.0-OpenSSH_9.6\r\n\r\n",
            b"GET /state HTTP/1.1\r\nhost: localhost\r\nx: " + b"y" * 200_000,
            request(b"", path="/purge", headers=[JSON, length]) + b"x" * MIB,
            request(b"", path="/purge", headers=[JSON, "content-length: 2", "transfer-encoding: chunked"]),
        ):  # fmt: skip
            with Client(door.admin) as client:
                try:
                    client.send(data)
                    told = client.reply()
                    assert 400 <= told.status < 500, data[:80]
                    assert told.headers["connection"] == "close", data[:80]
                except ConnectionError:
                    # it was gone before all was sent
                    pass
                assert client.is_closed(), data[:80]
        huge = json.dumps(ALL | {"model": "x" * 64 * MIB}).encode()
        with Client(door.admin) as client:
            try:
                client.send(request(huge, path="/purge"))
                assert client.reply().status == 413
            except ConnectionError:
                pass
        until(lambda: door.program.rss_bytes() - before < 64 * MIB)

        # nothing was let go or drained by all that, and it is answered as ever
        assert ask(door.url).is_hit
        assert get(door.url, "/ready").status == 200
        state = get(door.admin, "/state").json
        assert (state["draining"], state["upstreams"][0]["draining"]) == (False, False)
        assert ask(door.admin, ALL, path="/purge").json == {"purged": 1}
