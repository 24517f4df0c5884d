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
