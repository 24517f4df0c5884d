"""The proxy's settings elsewhere: read back by the proxy itself, they are the stack's but for addresses and files."""

import tomllib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.deployed import HOSTILE, STACK, site

from toolkit.config_file import toml_text
from toolkit.deploy.proxy_config import ProxyFile, proxy_file
from toolkit.deploy.site import Site
from toolkit.errors import ToolkitError
from toolkit.proxy.config import Settings, read
from toolkit.serving.stack import placed
from toolkit.serving.stack import read as read_stack

ONE = '[[engine]]\nname = "qwen"\nmodel = "m"\nport = 8001\n'


def file_of(found: Site) -> ProxyFile:
    assert found.proxy is not None
    urls = [f"http://{each.name}:{each.port}" for each in found.engines]
    return proxy_file(found, found.proxy, urls)


def settings(text: str) -> Settings:
    return read(file_of(site(text)).text, "proxy.toml")


def refused(text: str) -> ToolkitError:
    with pytest.raises(ToolkitError) as caught:
        file_of(site(text))
    return caught.value


def test_all_settings_are_those_that_serve_would_run_with() -> None:
    text = (
        STACK.replace("concurrency = 48\n", 'concurrency = 96\nwait = "5s"\ntoken_gap = "none"\n')
        + """
[proxy.routing]
affinity = true

[proxy.front]
body_size = "8MiB"
"""
    )
    stack = placed(
        read_stack(text, "stack.toml", lambda _: {}), "`stack.toml`", lambda _host, _port: True
    )
    assert stack.proxy is not None
    found = settings(text)
    same = replace(
        stack.proxy,
        host="0.0.0.0",
        upstreams=found.upstreams,
        cache=replace(stack.proxy.cache, file="/var/lib/toolkit/proxy-cache.db"),
        tell=replace(stack.proxy.tell, log="-"),
    )
    assert found == same
    assert (found.admission.concurrency, found.admission.token_gap_s) == (96, None)


def test_a_fallback_of_the_stack_goes_along_behind_the_engines() -> None:
    more = '[[proxy.upstream]]\nurl = "https://api.example.com"\nfallback = true\nmodel = "big"\n'
    last = settings(STACK + more).upstreams[-1]
    assert (last.url, last.fallback, last.model) == ("https://api.example.com", True, "big")


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]"])
def test_an_upstream_on_this_machine_is_refused(host: str) -> None:
    more = f'[[proxy.upstream]]\nurl = "http://{host}:9000"\n'
    assert f"http://{host}:9000" in refused(STACK + more).message


def test_a_file_of_keys_is_refused_and_its_way_out_named() -> None:
    error = refused(ONE + '[proxy]\nkeys_file = "keys.txt"\n[[proxy.team]]\nname = "red"\n')
    assert "keys_file" in error.message
    assert "key_env" in error.hint


def test_a_cache_without_a_file_stays_without() -> None:
    assert settings(ONE + '[proxy.cache]\nfile = "none"\n').cache.file is None


def test_no_log_stays_none_and_a_database_moves_to_the_state() -> None:
    assert settings(ONE).tell.log is None
    assert settings(ONE + '[proxy.tell]\nlog = "none"\n').tell.log is None
    told = settings(ONE + '[proxy.tell]\ndatabase = "data/toolkit.db"\n').tell
    assert told.database == "/var/lib/toolkit/proxy.db"


@pytest.mark.parametrize(
    ("more", "public"),
    [
        ("", True),
        ('[[proxy.team]]\nname = "red"\nkey_env = "RED_KEY"\n', False),
        (
            '[[proxy.team]]\nname = "red"\nkey_env = "RED_KEY"\n[proxy.tell]\nmetrics_on_port = true\n',
            True,
        ),
        ("[proxy.tell]\nmetrics_on_port = false\n", False),
        ('[proxy.tell]\nmetrics_on_port = "none"\n', True),
    ],
)
def test_whether_clients_may_read_metrics_is_known(more: str, public: bool) -> None:
    assert file_of(site(ONE + more)).has_public_metrics is public


@pytest.mark.parametrize("word", HOSTILE)
def test_a_hostile_word_is_one_string_of_the_file(word: str) -> None:
    text = toml_text({"a": word, "t": {"k": [word]}, "l": [{word: word}]})
    assert tomllib.loads(text) == {"a": word, "t": {"k": [word]}, "l": [{word: word}]}
    assert text.isascii()


@given(st.text(st.characters(exclude_categories=["Cs"])), st.integers(), st.booleans())
def test_any_text_is_read_back_as_it_was(word: str, number: int, switch: bool) -> None:
    told = {"a": word, "n": number % 2**62, "b": switch, word: {"k": word}} if word != "a" else {}
    assert tomllib.loads(toml_text(told)) == told
