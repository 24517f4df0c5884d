"""hosts.txt: what a line means, and what a bad one says."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.errors import ToolkitError
from toolkit.hosts import is_loopback, one_host, read_hosts
from toolkit.records import Host


@pytest.mark.parametrize(
    ("line", "name", "url"),
    [
        ("10.0.0.4", "10.0.0.4:8000", "http://10.0.0.4:8000"),
        ("alice 10.0.0.4", "alice", "http://10.0.0.4:8000"),
        (
            "alice http://10.0.0.4",
            "alice",
            "http://10.0.0.4",
        ),  # a URL's own port is the scheme's: 80
        ("alice https://llm.example.org/", "alice", "https://llm.example.org"),
        ("alice http://h:8000/v1/", "alice", "http://h:8000"),  # pasted from an OpenAI client
        ("alice http://h:8000/team-a/v1", "alice", "http://h:8000/team-a"),
        ("alice http://[::1]:8000", "alice", "http://[::1]:8000"),
        ("  alice\thttp://h:1   # comment", "alice", "http://h:1"),
        ("10.0.0.4 http://h:1", "10.0.0.4", "http://h:1"),  # called by its address
        ("\ufeffalice http://h:1\r", "alice", "http://h:1"),  # saved by an editor on Windows
        ("http://h:1/team-a/v1", "h:1/team-a", "http://h:1/team-a"),
        # where gateways have their servers
        ("gw https://gw/v1/acct/gw/openai", "gw", "https://gw/v1/acct/gw/openai"),
        ("gw http://gw/team/models", "gw", "http://gw/team/models"),
        ("gw http://gw/team/health/v1", "gw", "http://gw/team/health"),
    ],
)
def test_a_line_names_one_host(line: str, name: str, url: str) -> None:
    assert read_hosts(line, "hosts.txt") == [Host(name=name, url=url)]


def test_what_a_host_is_expected_to_serve_can_be_listed() -> None:
    line = "alice http://h:1 root=Qwen/Qwen3.5-35B-A3B-FP8 max_model_len=4096"
    assert read_hosts(line, "hosts.txt") == [
        Host(name="alice", url="http://h:1", root="Qwen/Qwen3.5-35B-A3B-FP8", max_model_len=4096)
    ]


@pytest.mark.parametrize("word", ["0", "-1", "4k", "4096.0", "1_000", "\u0664", "9" * 400])
def test_a_limit_is_a_whole_number_of_tokens(word: str) -> None:
    with pytest.raises(ToolkitError) as caught:
        read_hosts(f"alice http://h:1 max_model_len={word}", "hosts.txt")
    told = "`hosts.txt` line 1: `max_model_len=` is not a whole number of tokens"
    assert caught.value.message == told
    assert "32768" in caught.value.hint


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "`hosts.txt` names no host"),
        ("a b c", "`hosts.txt` line 1: expected `URL` or `NAME URL`, found 3 words"),
        ("team=red", "`hosts.txt` line 1: expected `URL` or `NAME URL`, found 0 words"),
        (
            "ok http://h:1\nalice ftp://h",
            "`hosts.txt` line 2: `ftp://h` is not an http or https URL with a valid port",
        ),
        (
            "alice http://h:99999",
            "`hosts.txt` line 1: `http://h:99999` is not an http or https URL with a valid port",
        ),
        ("alice http://h:1?x=1", "`hosts.txt` line 1: `http://h:1?x=1` has a `?` or `#` part"),
        ("alice http://h:1 color=red", "`hosts.txt` line 1: unknown option `color`"),
        ("alice http://h:1 team=", "`hosts.txt` line 1: `team=` has no value"),
        ("alice http://h:1 team = red", "`hosts.txt` line 1: `=` stands after a space"),
        ("http://h:1 http://h:2", "`hosts.txt` line 1: two URLs on one line"),
        ("alice http://h:1 team=a team=b", "`hosts.txt` line 1: `team=` stands twice"),
        ("alice http://h:1 note=two words", "`hosts.txt` line 1: `words` stands after an option"),
        ("alice http://h:1\nalice http://h:2", "`hosts.txt` line 2: the name `alice` stands twice"),
        ("alice http://h:1\nbob http://h:1/v1", "`hosts.txt` line 2: `http://h:1` stands twice"),
        ("alice http://h\udcff:1", "`hosts.txt` line 1: a control character stands in it"),
    ],
)
def test_a_bad_line_names_its_number_and_what_is_wrong(text: str, message: str) -> None:
    with pytest.raises(ToolkitError) as caught:
        read_hosts(text, "hosts.txt")
    assert caught.value.message == message
    assert caught.value.hint


@pytest.mark.parametrize(
    ("line", "message", "right"),
    [
        (
            "alice = http://h:1 team=red",
            "`=` stands between a name and its URL",
            "alice http://h:1",
        ),
        ("alice= gpu-7:80", "`=` stands between a name and its URL", "alice gpu-7:80"),
        ("http://h:1 alice", "the name `alice` stands after its URL", "alice http://h:1"),
        ("10.0.0.4 alice team=red", "the name `alice` stands after its URL", "alice 10.0.0.4"),
    ],
)
def test_a_name_that_stands_wrong_is_shown_where_it_belongs(
    line: str, message: str, right: str
) -> None:
    with pytest.raises(ToolkitError) as caught:
        read_hosts(f"# the cast\n{line}\n", "hosts.txt")
    assert caught.value.message == f"`hosts.txt` line 2: {message}"
    assert caught.value.hint == f"Write `{right}`"
    # and what the hint says is a line
    assert [host.name for host in read_hosts(right, "hosts.txt")] == ["alice"]


@pytest.mark.parametrize(
    "line",
    [
        "alice http://me:s3cret@h:1",
        "alice = http://me:s3cret@h:1",
        "http://me:s3cret@h:1 alice",
        "http://me:s3cret@h:99999",
        "alice http://h:1 api_key_env=s3cret-key!",
    ],
)
def test_a_secret_in_a_line_is_refused_and_not_repeated(line: str) -> None:
    with pytest.raises(ToolkitError) as caught:
        read_hosts(line, "hosts.txt")
    assert "s3cret" not in caught.value.message + caught.value.hint


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("http://h:1?x=1", "`http://h:1?x=1` has a `?` or `#` part"),
        ("http://me:s3cret@h:1", "the URL carries a user or password"),
        ("h:99999", "`h:99999` is not an http or https URL with a valid port"),
    ],
)
def test_a_bad_url_of_the_command_line_has_no_line(word: str, message: str) -> None:
    with pytest.raises(ToolkitError) as caught:
        one_host(word)
    assert caught.value.message == message


@given(st.text())
def test_any_text_gives_hosts_or_one_clear_error(text: str) -> None:
    try:
        hosts = read_hosts(text, "x")
    except ToolkitError as error:
        assert error.message.startswith("`x`")  # noqa: PT017 (hypothesis draws both outcomes)
    else:
        assert hosts
        assert all(host.url.startswith(("http://", "https://")) for host in hosts)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.10", "::1", "localhost"])
def test_this_machine_alone_is_the_loopback(host):
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.4", "gpu-1", "localhost.example", ""])
def test_what_others_may_reach_is_not_the_loopback(host):
    assert not is_loopback(host)
