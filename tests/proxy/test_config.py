"""The proxy's settings: what a file and flags mean, what does not go together, and what no file may do."""

from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from toolkit.config_file import name_in_file, schema
from toolkit.errors import ToolkitError
from toolkit.proxy import config
from toolkit.proxy.config import (
    AdmissionSetting,
    CacheSetting,
    FrontSetting,
    RoutingSetting,
    Settings,
    TeamSetting,
    TellSetting,
    UpstreamSetting,
    checked,
    read,
)

ONE = '[[upstream]]\nurl = "http://10.0.0.4:8000"\n'
UPSTREAM = UpstreamSetting(name="10.0.0.4:8000", url="http://10.0.0.4:8000")
TABLES = {"cache": CacheSetting, "admission": AdmissionSetting, "routing": RoutingSetting, "front": FrontSetting, "tell": TellSetting}  # fmt: skip


def refused(text: str, flags: dict[str, Any] | None = None) -> ToolkitError:
    with pytest.raises(ToolkitError) as caught:
        read(text, "proxy.toml", flags)
    return caught.value


def test_the_example_in_the_docstring_is_read() -> None:
    text = (config.__doc__ or "").split("\n\n", 1)[1].rsplit("\n\n", 1)[0]
    assert read(text, "doc") == Settings(
        port=8000,
        drain_s=30.0,
        keys_file="proxy-keys.txt",
        upstreams=(replace(UPSTREAM, key_env="VLLM_API_KEY"),),
        teams=(TeamSetting(name="red", concurrency=8),),
        cache=CacheSetting(ttl_s=3600.0, memory_bytes=256 * 2**20, file_bytes=2 * 2**30),
        admission=AdmissionSetting(first_token_s=120.0),
    )
    assert read(ONE, "proxy.toml") == Settings(upstreams=(UPSTREAM,))


ALL = read(
    """
admin_port = 9100
[[upstream]]
name = "gpu-1"
url = "https://10.0.0.4:8443/"
key_env = "UP"
[cache]
redis_env = "REDIS_URL"
""",
    "proxy.toml",
)


@pytest.mark.parametrize(("host", "url", "itself"), [
    ("127.0.0.1", "http://localhost:8000", "listens"),
    ("0.0.0.0", "http://[::1]:8000", "listens"),
    ("10.0.0.7", "http://10.0.0.7:8000", "listens"),
    ("10.0.0.7", "http://127.0.0.1:8001", "has its admin"),
])  # fmt: skip
def test_a_proxy_that_would_ask_itself_is_refused(host: str, url: str, itself: str) -> None:
    text = f'host = "{host}"\nadmin_port = 8001\n[[upstream]]\nname = "me"\nurl = "{url}"'
    message = f"`proxy.toml`: upstream `me` is where this proxy {itself}, `{url}`"
    assert refused(text).message == message


def test_every_variable_that_is_named_must_be_set() -> None:
    environ = {"UP": " key ", "REDIS_URL": "redis://h", "RED": "not asked for here"}
    assert checked(ALL, environ) == {"UP": "key", "REDIS_URL": "redis://h"}
    assert checked(Settings(upstreams=(UPSTREAM,)), {}) == {}
    for missing, what in (
        ("UP", "the key of upstream `gpu-1`"),
        ("REDIS_URL", "the address of Redis"),
    ):
        for told in ("", " \n"):
            with pytest.raises(ToolkitError) as caught:
                checked(ALL, {**environ, missing: told})
            assert caught.value.message == f"`{missing}`, {what}, is not set"


def test_a_huge_file_costs_no_second_to_find_its_line() -> None:
    # no line then, for each line of a long value would mean to parse all before it again
    for long in ("# x\n" * 300_000, "paths = [\n" + "'/a',\n" * 30_000 + "]\n"):
        assert refused(f"{long}port = -1\n{ONE}").message.startswith("`proxy.toml`: `port` is not")


PLACES = [
    *(("", key) for key in schema(Settings)["properties"]),
    *((f"[{table}]\n", name_in_file(each.name)) for table, record in TABLES.items() for each in fields(record)),
    *(("[[upstream]]\n", name_in_file(each.name)) for each in fields(UpstreamSetting)),
    *(("[[team]]\n", name_in_file(each.name)) for each in fields(TeamSetting)),
]  # fmt: skip
ODD = some.one_of(
    some.sampled_from([
        *("true", "nan", "-inf", "1979-05-27T07:32:00Z", "07:32:00", "{}", "[]", "[[]]", "{a = 1}", "[{}]"),
        *("0", "-1", "1", "1e308", "9" * 400, "0.5", '""', '"none"', '"\\u0000"', '"all"', '["/a"]', "[1]"),
        *(f'"{"9" * 400}{unit}"' for unit in ("", "s", "GiB", "d")),
        *('"http://[::1]:80"', '"http://["', '"//h"', '"http://h:\\uff11"', '"::1"', '"1.2.3.4.5"', '"h"'),
    ]),
    some.text(max_size=8).map(lambda text: f"'{text}'"),
)  # fmt: skip


@settings(deadline=None)
@given(place=some.sampled_from(PLACES), value=ODD)
def test_no_value_anywhere_makes_it_raise_what_a_user_could_not_read(
    place: tuple[str, str], value: str
) -> None:
    table, key = place
    said = ""
    try:
        read(f"{ONE}{table}{key} = {value}" if table else f"{key} = {value}\n{ONE}", "proxy.toml")
    except ToolkitError as error:
        said = error.message
    assert not said or (said.isprintable() and "`proxy.toml`" in said)
