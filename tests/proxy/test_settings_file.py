"""Settings from TOML: what a file may say, and one sentence for each mistake in it."""

from dataclasses import fields, replace
from typing import Any

import pytest

from toolkit.errors import ToolkitError
from toolkit.proxy import settings_file
from toolkit.proxy.settings import (
    AdmissionSetting,
    CacheSetting,
    FrontSetting,
    RoutingSetting,
    Settings,
    TeamSetting,
    TellSetting,
    UpstreamSetting,
)
from toolkit.proxy.settings_file import admin_port, checked, merged, names, read

ONE = '[[upstream]]\nurl = "http://10.0.0.4:8000"\n'
UPSTREAM = UpstreamSetting(name="10.0.0.4:8000", url="http://10.0.0.4:8000")


def problem(text: str, flags: dict[str, Any] | None = None) -> tuple[str, str]:
    with pytest.raises(ToolkitError) as caught:
        read(text, "proxy.toml", flags)
    return caught.value.message, caught.value.hint


def complaint(top: str = "", below: str = "") -> str:
    """What is said of a file that is well but for this."""
    return problem(f"{top}\n{ONE}{below}")[0].removeprefix("`proxy.toml`: ")


def test_an_upstream_is_all_that_must_be_said() -> None:
    assert read(ONE, "proxy.toml") == Settings(upstreams=(UPSTREAM,))


def test_the_example_in_the_docstring_is_read() -> None:
    text = (settings_file.__doc__ or "").split("\n\n", 1)[1].rsplit("\n\nNames", 1)[0]
    assert read(text, "doc") == Settings(
        port=8000,
        drain_s=30.0,
        keys_file="proxy-keys.txt",
        upstreams=(replace(UPSTREAM, key_env="VLLM_API_KEY"),),
        teams=(TeamSetting(name="red", concurrency=8),),
        cache=CacheSetting(ttl_s=3600.0, memory_bytes=256 * 2**20, file_bytes=2 * 2**30),
        admission=AdmissionSetting(first_token_s=120.0),
    )


EVERYTHING = """
host = "0.0.0.0"
port = 9000
admin_host = "::1"
admin_port = 9100
workers = 2
keys_file = "keys"
paths = ["/tokenize", "/v1/audio/transcriptions"]
media_hosts = ["images.Example.com", "*"]
drain = 0

[[upstream]]
name = "gpu-1"
url = "https://10.0.0.4:8443/"
key_env = "UP"
concurrency = 8
probes = false
[[upstream]]
url = "10.0.0.5"
fallback = true
model = "small"

[[team]]
name = "red"
key_env = "RED"
concurrency = 4
queue = 0
priority = -1
max_prompt_tokens = 1000
max_output_tokens = 100
pool = "shared"
policy = "declared"
[[team]]
name = "blue"

[cache]
policy = "off"
ttl = "none"
memory = 1000000
file = "none"
file_size = "8GB"
redis_env = "REDIS_URL"
redis_timeout = "20ms"
redis_wait = "5s"
max_answer = "1MiB"
replay = 50
verify_share = 0.01
epoch = "change"
inert = ["user", "metadata"]
longest_flight = "10m"
obeys_upstream = false
asks_usage = false

[admission]
concurrency = 32
queue = 100
wait = 1.5
first_token = "none"
token_gap = "30s"
whole = "1h30m"
max_prompt_tokens = 8000
max_output_tokens = 4000

[routing]
affinity = true
look = "500ms"
stuck = 5
probe = "2s"
back = "1s"
retries = 0

[front]
header_size = "32KiB"
headers = 50
body_size = "1MiB"
held = "2MiB"
header_time = "5s"
body_time = "6s"
idle = "7s"
stall = "8s"
connections = 100

[tell]
log = "-"
log_prompts = true
database = "t.db"
metrics_on_port = true
"""
ALL = Settings(
    host="0.0.0.0",
    port=9000,
    admin_host="::1",
    admin_port=9100,
    workers=2,
    keys_file="keys",
    paths=("/tokenize", "/v1/audio/transcriptions"),
    media_hosts=("images.example.com", "*"),
    drain_s=0.0,
    upstreams=(
        UpstreamSetting(
            name="gpu-1", url="https://10.0.0.4:8443", key_env="UP", concurrency=8, probes=False
        ),
        UpstreamSetting(
            name="10.0.0.5:8000", url="http://10.0.0.5:8000", fallback=True, model="small"
        ),
    ),
    teams=(
        TeamSetting(
            name="red",
            key_env="RED",
            concurrency=4,
            queue=0,
            priority=-1,
            max_prompt_tokens=1000,
            max_output_tokens=100,
            pool="shared",
            policy="declared",
        ),
        TeamSetting(name="blue"),
    ),
    cache=CacheSetting(
        policy="off",
        ttl_s=None,
        memory_bytes=1_000_000,
        file=None,
        file_bytes=8_000_000_000,
        redis_env="REDIS_URL",
        redis_timeout_s=0.02,
        redis_wait_s=5.0,
        max_answer_bytes=2**20,
        replay=50.0,
        verify_share=0.01,
        epoch="change",
        inert=frozenset({"user", "metadata"}),
        longest_flight_s=600.0,
        obeys_upstream=False,
        asks_usage=False,
    ),
    admission=AdmissionSetting(
        concurrency=32,
        queue=100,
        wait_s=1.5,
        first_token_s=None,
        token_gap_s=30.0,
        whole_s=5400.0,
        max_prompt_tokens=8000,
        max_output_tokens=4000,
    ),
    routing=RoutingSetting(
        affinity=True, look_s=0.5, stuck_s=5.0, probe_s=2.0, back_s=1.0, retries=0
    ),
    front=FrontSetting(
        header_bytes=32 * 1024,
        headers=50,
        body_bytes=2**20,
        held_bytes=2**21,
        header_s=5.0,
        body_s=6.0,
        idle_s=7.0,
        stall_s=8.0,
        connections=100,
    ),
    tell=TellSetting(log="-", log_prompts=True, database="t.db", metrics_on_port=True),
)


def test_a_file_may_say_everything_there_is() -> None:
    assert read(EVERYTHING, "proxy.toml") == ALL


def test_that_file_leaves_no_setting_at_its_default() -> None:
    # a new field of settings.py has to be added above, or this fails
    for told, plain in (
        *((getattr(ALL, name), record()) for name, record in settings_file.TABLES.items()),
        (ALL, Settings(upstreams=())),
        (ALL.upstreams[0], UpstreamSetting(name="", url="", fallback=True, model="m")),
        (
            ALL.upstreams[1],
            UpstreamSetting(name="", url="", key_env="UP", concurrency=8, probes=False),
        ),
        (ALL.teams[0], TeamSetting(name="")),
    ):
        same = [
            field.name
            for field in fields(told)
            if getattr(told, field.name) == getattr(plain, field.name)
        ]
        assert same == [], type(told)


def test_names_are_those_of_the_settings_without_their_unit() -> None:
    assert names(CacheSetting)["ttl"] == "ttl_s"
    assert names(CacheSetting)["memory"] == "memory_bytes"
    assert (names(CacheSetting)["file"], names(CacheSetting)["file_size"]) == ("file", "file_bytes")
    front = names(FrontSetting)
    assert (front["header_size"], front["header_time"]) == ("header_bytes", "header_s")
    for record in (Settings, UpstreamSetting, TeamSetting, *settings_file.TABLES.values()):
        assert sorted(names(record).values()) == sorted(field.name for field in fields(record))


def test_replay_is_a_word_or_a_rate() -> None:
    for told, expected in (
        ('"instant"', "instant"),
        ('"original"', "original"),
        ("2.5", 2.5),
        ("0.5", 0.5),
        ("1000000", 1e6),
    ):
        assert read(f"{ONE}[cache]\nreplay = {told}", "p").cache.replay == expected


def test_the_ends_of_a_range_belong_to_it() -> None:
    ends = (
        'redis_timeout = 0.001\nttl = "3650d"\nmemory = 1\nfile_size = "1024TiB"\nverify_share = 1'
    )
    cache = read(f"{ONE}[cache]\n{ends}\n[front]\nheader_size = 1024\nheaders = 1", "p").cache
    assert (cache.redis_timeout_s, cache.ttl_s) == (0.001, 3650 * 86400)
    assert (cache.memory_bytes, cache.file_bytes, cache.verify_share) == (1, 2**50, 1.0)


def test_a_pasted_v1_or_slash_at_the_end_of_an_address_is_left_out() -> None:
    for url in ("http://10.0.0.4:8000/", "http://10.0.0.4:8000/v1", "10.0.0.4"):
        assert read(f'[[upstream]]\nurl = "{url}"', "p").upstreams == (UPSTREAM,)


@pytest.mark.parametrize(("text", "message"), [
    ("port = ", "`proxy.toml` is no TOML: "),
    ("port 8", "`proxy.toml` is no TOML: "),
    ("port = 1\nport = 2", "`proxy.toml` is no TOML: "),
    ("port = " + "9" * 5000, "`proxy.toml` is no TOML: "),
    ("a = " + "[" * 5000, "`proxy.toml` is no TOML: nested too deep"),
    ("", "no upstream is named"),
    ("port = 8000", "`proxy.toml` names no upstream"),
    ("upstream = []", "`proxy.toml` names no upstream"),
])  # fmt: skip
def test_a_file_that_is_no_toml_or_names_no_upstream(text: str, message: str) -> None:
    assert problem(text)[0].startswith(message)


@pytest.mark.parametrize(("top", "below", "message", "hint"), [
    ("prot = 1", "", "`proxy.toml`: unknown key `prot`", "Did you mean `port`?"),
    ("[cahce]", "", "`proxy.toml`: unknown key `cahce`", "Did you mean `cache`?"),
    ("ttl = 5", "", "`proxy.toml`: unknown key `ttl`", "It belongs into [cache]"),
    ("", "[cache]\ntll = 5", "`proxy.toml`: [cache]: unknown key `tll`", "Did you mean `ttl`?"),
    ("", "[cache]\nttl_s = 5", "`proxy.toml`: [cache]: unknown key `ttl_s`", "Did you mean `ttl`?"),
    ("", "[cache]\nmemory_bytes = 5", "`proxy.toml`: [cache]: unknown key `memory_bytes`", "Did you mean `memory`?"),
    ("", "[cache]\nport = 5", "`proxy.toml`: [cache]: unknown key `port`",
     "It belongs into the top of the file, before the first table"),
    ("", "[tell]\nqueue = 5", "`proxy.toml`: [tell]: unknown key `queue`", "It belongs into [admission] or [[team]]"),
    ("", "ulr = 1", "`proxy.toml`: upstream 1: unknown key `ulr`", "Did you mean `url`?"),
    ("", "[[team]]\nkey = 'x'", "`proxy.toml`: team 1: unknown key `key`", "Did you mean `key_env`?"),
    ("", "[cache.deep]\na = 1", "`proxy.toml`: [cache]: unknown key `deep`",
     "Known keys: " + ", ".join(names(CacheSetting))),
    ('"a\\nb" = 1', "", "`proxy.toml`: unknown key `a?b`", ""),
])  # fmt: skip
def test_an_unknown_key_is_named_with_the_one_that_may_be_meant(
    top: str, below: str, message: str, hint: str
) -> None:
    told = problem(f"{top}\n{ONE}{below}" if top != "[cahce]" else f"{ONE}{top}")
    assert told[0] == message
    assert told[1].startswith(hint)


def test_all_that_is_no_table_or_list_of_them_is_refused() -> None:
    assert complaint("cache = 5") == "`cache` is no table"
    assert complaint('cache = ["a"]') == "`cache` is no table"
    assert complaint("team = 5") == "`team` is no list of tables"
    assert complaint("[team]\nname = 'a'") == "`team` is no list of tables"
    assert (
        problem('upstream = ["http://h:1"]')[0] == "`proxy.toml`: `upstream` is no list of tables"
    )


def test_a_flag_goes_over_the_file_and_the_file_over_the_defaults() -> None:
    flags = {"port": 9000, "cache.ttl": "10m", "cache.memory": 2**30, "workers": None, "paths": ()}
    settings = read(f'port = 1\nworkers = 3\n{ONE}[cache]\nttl = "1h"\npolicy = "off"', "p", flags)
    assert (settings.port, settings.workers) == (9000, 3)
    assert settings.cache == CacheSetting(ttl_s=600.0, memory_bytes=2**30, policy="off")


def test_flags_alone_will_do() -> None:
    settings = read(
        "", "", {"upstream": ["10.0.0.4", "big=http://10.0.0.5:8000"], "cache.ttl": "none"}
    )
    assert settings.upstreams == (
        UPSTREAM,
        UpstreamSetting(name="big", url="http://10.0.0.5:8000"),
    )
    assert settings.cache.ttl_s is None


def test_upstreams_on_the_command_line_replace_the_files() -> None:
    settings = read(ONE, "p", {"upstream": ("http://10.0.0.9:8000",)})
    assert [each.name for each in settings.upstreams] == ["10.0.0.9:8000"]


def test_flags_over_settings_change_what_they_name_and_nothing_else() -> None:
    changed = merged(
        ALL, {"cache.policy": "all", "front.header_time": 9.0, "host": None, "upstream": []}
    )
    assert changed == replace(
        ALL,
        cache=replace(ALL.cache, policy="all"),
        front=replace(ALL.front, header_s=9.0),
    )
    assert merged(ALL, {"cache.inert": {"user"}}).cache.inert == {"user"}
    assert merged(ALL, {}) == ALL


def test_a_mistake_in_a_flag_is_told_of_the_command_line() -> None:
    assert problem(ONE, {"cache.ttl": "5"})[0] == "the command line: `cache.ttl` is no duration"
    with pytest.raises(ToolkitError, match=r"the command line: \[cache\]: unknown key `tll`"):
        merged(ALL, {"cache.tll": 5})
    with pytest.raises(
        ToolkitError, match=r"the command line: `port` and `admin_port` are both 9100"
    ):
        merged(ALL, {"port": 9100})
    with pytest.raises(ToolkitError, match="the command line: upstream 1: `url`"):
        merged(ALL, {"upstream": ["ftp://h"]})


def test_the_admins_port_is_the_one_above_unless_told() -> None:
    plain = Settings(upstreams=(UPSTREAM,))
    assert admin_port(plain) == 8001
    assert admin_port(replace(plain, port=0)) == 0
    assert admin_port(replace(plain, port=9, admin_port=0)) == 0
    assert admin_port(ALL) == 9100


def test_the_admin_makes_room_for_an_engine_on_the_next_port() -> None:
    found = read("", "x", {"upstream": ["http://127.0.0.1:8001", "http://localhost:8002"]})
    assert admin_port(found) == 8003
    assert admin_port(read("", "x", {"upstream": ["http://10.0.0.4:8001"]})) == 8001


def test_every_variable_that_is_named_must_be_set() -> None:
    environ = {"UP": " key ", "REDIS_URL": "redis://h", "RED": "not asked for here"}
    assert checked(ALL, environ) == {"UP": "key", "REDIS_URL": "redis://h"}
    assert checked(Settings(upstreams=(UPSTREAM,)), {}) == {}
    for missing, what in (
        ("UP", "the key of upstream `gpu-1`"),
        ("REDIS_URL", "the address of Redis"),
    ):
        for told in ({}, {missing: ""}, {missing: " \n"}):
            with pytest.raises(ToolkitError) as caught:
                checked(
                    ALL, {**{name: environ[name] for name in environ if name != missing}, **told}
                )
            assert caught.value.message == f"`{missing}`, {what}, is not set"


@pytest.mark.parametrize(
    "odd", ["sk secret", "sk\r\nx: secret", "sk-secr\N{LATIN SMALL LETTER E WITH ACUTE}t"]
)
def test_a_key_that_would_end_a_header_is_refused_unseen(odd: str) -> None:
    with pytest.raises(ToolkitError) as caught:
        checked(ALL, {"UP": odd, "REDIS_URL": "redis://h"})
    assert "`UP`" in caught.value.message
    assert "sec" not in caught.value.message + caught.value.hint
