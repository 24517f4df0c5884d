"""`toolkit blast --dry-run`: who would be sent what, with nothing sent."""

import json
import socket
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from toolkit.cli.blast.verb import command

CHAIN = """
stream_share = 0.25
max_tokens = 64
think_time_s = [1, 3]
[[prompts]]
name = "often"
text = "four"
weight = 3
[[prompts]]
name = "chained"
text = "seventeen letters"
max_tokens = 8
then = ["Shorten: {answer}"]
"""


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TOOLKIT_DB", raising=False)
    monkeypatch.delenv("TOOLKIT_HOSTS", raising=False)
    Path("hosts.txt").write_text("alice 10.0.0.4 model=x/y api_key_env=ALICE_KEY\nbob 10.0.0.5\n")


def dry(*words: str) -> Result:
    return CliRunner().invoke(command, ["--dry-run", *words])


def rows(*words: str) -> list[dict[str, Any]]:
    result = dry(*words, "--json")
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_nothing_is_sent_and_nothing_is_kept() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        result = dry(f"127.0.0.1:{server.getsockname()[1]}")
        assert result.exit_code == 0, result.output
        with pytest.raises(BlockingIOError):
            server.accept()
    assert result.stdout.endswith("Nothing was sent.\n")
    assert [file.name for file in Path().iterdir()] == ["hosts.txt"]


def test_no_name_server_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    look_up = socket.getaddrinfo

    def noted(*words: Any, **more: Any) -> Any:
        asked.append(more.get("flags"))
        return look_up(*words, **more)

    monkeypatch.setattr(socket, "getaddrinfo", noted)
    assert dry("http://some.name.invalid:8000").exit_code == 0
    assert asked == [socket.AI_NUMERICHOST]


def test_json_has_each_hosts_part() -> None:
    alice, bob = rows("--users", "3", "--duration", "1h")
    # 3 users become 4, 2 a host; 2 users x 3,600 s / 2 s an answer
    assert alice == {
        "name": "alice",
        "url": "http://10.0.0.4:8000",
        "model": "x/y",
        "users": 2,
        "rate": None,
        "duration_s": 3600,
        "requests": None,
        "requests_at_2s": 3600,
        "stream_share": 0.5,
        "canary_share": 0.01,
        "sends_key": True,
        "prompts": [
            {"name": "robot", "share": 0.5, "prompt_chars": 55, "max_tokens": 256, "steps": 1},
            {"name": "singapore", "share": 0.5, "prompt_chars": 33, "max_tokens": 256, "steps": 1},
        ],
    }
    assert (bob["model"], bob["sends_key"]) == (None, False)
    # a rate says how many there will be
    (alice, _) = rows("--rate", "2.5", "--duration", "10m")
    assert (alice["requests"], alice["requests_at_2s"]) == (1500, None)


def test_shares_lengths_and_chains_are_the_profiles() -> None:
    Path("p.toml").write_text(CHAIN)
    (alice, _) = rows("--profile", "p.toml", "--users", "2", "--duration", "40s")
    assert alice["stream_share"] == 0.25
    assert alice["prompts"] == [
        {"name": "often", "share": 0.75, "prompt_chars": 4, "max_tokens": 64, "steps": 1},
        {"name": "chained", "share": 0.25, "prompt_chars": 17, "max_tokens": 8, "steps": 2},
    ]
    # one user, 40 s / (2 s an answer + 2 s of thought)
    assert alice["requests_at_2s"] == 10


def test_phases_are_named_and_their_users_counted() -> None:
    Path("p.toml").write_text(
        '[[prompts]]\ntext = "Hi"\n[[phases]]\nname = "ramp"\nfor = "1m"\nusers = [0, 10]\n'
        '[[phases]]\nname = "hold"\nfor = "2m"\nusers = 10\n'
        '[[phases]]\nname = "calm"\nfor = "2s"\nusers = 1\n'
    )
    (alice, _) = rows("--profile", "p.toml")
    # (60 s x 5 + 120 s x 10 + 2 s x 1) / 2 s
    assert (alice["users"], alice["duration_s"], alice["requests_at_2s"]) == (10, 182, 751)
    text = dry("--profile", "p.toml").stdout
    assert "Phase `ramp`: 1 min, 0 to 10 users a host." in text
    assert "Phase `hold`: 2 min, 10 users a host." in text
    assert "Phase `calm`: 2 s, 1 user a host." in text


def test_the_tables_show_a_person_the_same() -> None:
    result = dry("--users", "4", "--duration", "2h", "--canaries", "2")
    lines = result.stdout.splitlines()
    assert lines[2].split()[:5] == ["alice", "http://10.0.0.4:8000", "2", "-", "7,200"]
    assert "what it serves" in lines[3]
    assert "ALICE_KEY" in lines[2]
    assert "2 h under load: 4 users, the same number on every host." in lines
    assert "50% of the answers are streamed." in lines
    assert any(line.startswith("2 % of the requests are canaries") for line in lines)
    assert result.stderr == ""


def test_what_is_left_out_or_stands_in_the_way_is_said_beforehand() -> None:
    text = dry("--canaries", "0", "--no-scout").stdout
    assert "canaries" not in text
    assert "The hosts are not scraped during the load." in text
    result = dry("127.0.0.1:9", "10.0.0.5", "--users", "3")
    assert "3 users were rounded up to 4" in result.stderr
    assert "Warning: `127.0.0.1:9` (127.0.0.1) is on this machine" in result.stderr
    assert "--non-neutral" not in dry("127.0.0.1:9", "--non-neutral").stderr
    contradiction = dry("--resume", "abc")
    assert contradiction.exit_code == 2
    assert "leave --resume out" in contradiction.stderr
