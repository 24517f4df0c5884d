"""Each value of a settings file that its key does not take: refused by name, with what would do."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from toolkit.errors import ToolkitError
from toolkit.proxy.setting_values import is_visible, leads_to, same_host
from toolkit.proxy.settings import Settings, TeamSetting, UpstreamSetting
from toolkit.proxy.settings_file import TABLES, names, read

ONE = '[[upstream]]\nurl = "http://10.0.0.4:8000"\n'


def complaint(top: str = "", below: str = "") -> str:
    """What is said of a file that is well but for this."""
    with pytest.raises(ToolkitError) as caught:
        read(f"{top}\n{ONE}{below}", "proxy.toml")
    assert caught.value.message.startswith("`proxy.toml`: ")
    assert caught.value.hint
    return caught.value.message.removeprefix("`proxy.toml`: ")


@pytest.mark.parametrize(
    "value",
    [
        '""',
        '"5"',
        '"5x"',
        '"x"',
        '"0s"',
        '"-5s"',
        "true",
        "[]",
        "{}",
        "nan",
        "inf",
        '"1hh"',
        "1979-05-27",
        '"None"',
    ],
)
def test_what_is_no_duration(value: str) -> None:
    assert complaint("", f"[cache]\nttl = {value}") == "`cache.ttl` is no duration"


@pytest.mark.parametrize(("key", "value", "low", "high"), [
    ("cache]\nttl", "0", "0.001", "3.1536e+08"),
    ("cache]\nttl", "-1", "0.001", "3.1536e+08"),
    ("cache]\nttl", '"99999d"', "0.001", "3.1536e+08"),
    ("cache]\nredis_timeout", '"1m"', "0.001", "10"),
    ("routing]\nlook", '"10ms"', "0.05", "60"),
    ("routing]\nback", '"61s"', "0.1", "60"),
])  # fmt: skip
def test_durations_out_of_range(key: str, value: str, low: str, high: str) -> None:
    named = key.replace("]\n", ".")
    assert complaint("", f"[{key} = {value}") == f"`{named}` is not from {low} to {high} s"


@pytest.mark.parametrize(
    "value",
    [
        '""',
        '"5"',
        '"5GX"',
        "1.5",
        "true",
        "[]",
        '"0B"',
        '"-1GiB"',
        '"8 gib"',
        '"%s GiB"' % ("9" * 400),
    ],
)
def test_what_is_no_size(value: str) -> None:
    assert complaint("", f"[cache]\nmemory = {value}") == "`cache.memory` is no size"


@pytest.mark.parametrize(("key", "value", "low", "high"), [
    ("cache]\nmemory", "0", "1", "1,125,899,906,842,624"),
    ("cache]\nmemory", "-5", "1", "1,125,899,906,842,624"),
    ("cache]\nmemory", '"2000TiB"', "1", "1,125,899,906,842,624"),
    ("front]\nheader_size", "1023", "1,024", "16,777,216"),
])  # fmt: skip
def test_sizes_out_of_range(key: str, value: str, low: str, high: str) -> None:
    named = key.replace("]\n", ".")
    assert complaint("", f"[{key} = {value}") == f"`{named}` is not from {low} to {high} bytes"


@pytest.mark.parametrize(("top", "below", "named", "low", "high"), [
    ("port = 65536", "", "port", "0", "65,535"),
    ("port = -1", "", "port", "0", "65,535"),
    ("port = true", "", "port", "0", "65,535"),
    ("port = 80.0", "", "port", "0", "65,535"),
    ('port = "80"', "", "port", "0", "65,535"),
    ("admin_port = 70000", "", "admin_port", "0", "65,535"),
    ("workers = 0", "", "workers", "1", "64"),
    ("workers = 65", "", "workers", "1", "64"),
    ("", "[admission]\nconcurrency = 0", "admission.concurrency", "1", "1,000,000,000"),
    ("", "[admission]\nqueue = -1", "admission.queue", "0", "1,000,000"),
    ("", "[admission]\nmax_prompt_tokens = 0", "admission.max_prompt_tokens", "1", "1,000,000,000"),
    ("", "[routing]\nretries = 11", "routing.retries", "0", "10"),
    ("", "[front]\nheaders = 0", "front.headers", "1", "10,000"),
    ("", "[front]\nconnections = 0", "front.connections", "1", "1,000,000,000"),
    ("", "[front]\nconnections = " + "9" * 400, "front.connections", "1", "1,000,000,000"),
    ("", "concurrency = 0", "upstream 1: `concurrency", "1", "1,000,000,000"),
    ("", "[[team]]\npriority = 101", "team 1: `priority", "-100", "100"),
    ("", "[[team]]\nqueue = -1", "team 1: `queue", "0", "1,000,000"),
])  # fmt: skip
def test_whole_numbers_out_of_range_and_what_is_none(
    top: str, below: str, named: str, low: str, high: str
) -> None:
    named = named if "`" in named else f"`{named}"
    assert complaint(top, below) == f"{named}` is not a whole number from {low} to {high}"


@pytest.mark.parametrize("value", ["1", '"true"', "0", '"yes"', "[]"])
def test_what_is_neither_true_nor_false(value: str) -> None:
    told = complaint("", f"[tell]\nlog_prompts = {value}")
    assert told == "`tell.log_prompts` is neither true nor false"


@pytest.mark.parametrize("value", ['"ALL"', '"declard"', '""', "true", "1", '["all"]'])
def test_what_is_none_of_the_choices(value: str) -> None:
    told = complaint("", f"[cache]\npolicy = {value}")
    assert told == "`cache.policy` is none of `all`, `declared`, `off`"


def test_a_choice_that_is_nearly_right_is_offered() -> None:
    with pytest.raises(ToolkitError) as caught:
        read(f'{ONE}[cache]\nepoch = "restarts"', "p")
    assert caught.value.hint == "Did you mean `restart`?"


@pytest.mark.parametrize("value", ['"fast"', "0", "-1", "true", "nan", "1000001", '"50"'])
def test_what_is_no_way_to_replay(value: str) -> None:
    assert complaint("", f"[cache]\nreplay = {value}").startswith("`cache.replay` is neither ")


@pytest.mark.parametrize("value", ["-0.1", "1.1", "nan", "true", '"0.5"'])
def test_what_is_no_share(value: str) -> None:
    told = complaint("", f"[cache]\nverify_share = {value}")
    assert told == "`cache.verify_share` is not a number from 0 to 1"


def test_none_is_for_what_may_be_none_alone() -> None:
    assert read(f'{ONE}[admission]\nwhole = "none"', "p").admission.whole_s is None
    assert complaint("", '[admission]\nwait = "none"') == "`admission.wait` is no duration"
    assert complaint("", '[cache]\nmemory = "none"') == "`cache.memory` is no size"
    assert complaint('port = "none"').startswith("`port` is not a whole number")


@pytest.mark.parametrize(("value", "message"), [
    ("5", "is no URL"),
    ('""', "`` is not an http or https URL with a valid port"),
    ('"http://h:1/api"', "`http://h:1/api` has a path"),
    ('"http://h:1/v1/models"', "`http://h:1/v1/models` has a path"),
    ('"http://h:1/../x"', "`http://h:1/../x` has a path"),
    ('"http://h:1?a=b"', "`http://h:1?a=b` has a `?` or `#` part"),
    ('"http://h:1#a"', "`http://h:1#a` has a `?` or `#` part"),
    ('"http://user:secret@h:1"', "the URL carries a user or password"),
    ('"ftp://h:1"', "`ftp://h:1` is not an http or https URL with a valid port"),
    ('"file:///etc/passwd"', "`file:///etc/passwd` is not an http or https URL with a valid port"),
    ('"unix:///tmp/s"', "`unix:///tmp/s` is not an http or https URL with a valid port"),
    ('"http://h:0"', "`http://h:0` is not an http or https URL with a valid port"),
    ('"http://h:99999"', "`http://h:99999` is not an http or https URL with a valid port"),
    ('"http://"', "`http://` is not an http or https URL with a valid port"),
    ('"http://[::1"', "`http://[::1` is not an http or https URL with a valid port"),
    ('"http://h 1"', "is no URL"),
    ('"http://h\\r\\nx"', "is no URL"),
    ('"http://h\\u0000"', "is no URL"),
])  # fmt: skip
def test_an_upstreams_address_is_scheme_host_and_port_and_no_more(value: str, message: str) -> None:
    with pytest.raises(ToolkitError) as caught:
        read(f"[[upstream]]\nurl = {value}", "proxy.toml")
    told = caught.value.message
    assert told.startswith("`proxy.toml`: upstream 1: `url`")
    assert message in told
    assert "secret" not in told + caught.value.hint


@pytest.mark.parametrize(
    "name",
    ["", " ", "a b", "a\\nb", "-a", ".a", "a" * 65, "\\u00e9", 'a\\"b', "a{b}", "a/b", "pool:a"],
)
def test_a_teams_name_or_pool_that_is_no_good_label(name: str) -> None:
    for key in ("name", "pool"):
        told = complaint("", f'[[team]]\n{key} = "{name}"')
        assert told == f"team 1: `{key}` is no good label: it stands in metrics and logs"


@pytest.mark.parametrize("name", ["", "a b", "a\\nb", "-a", "a" * 129, 'a\\"b'])
def test_an_upstreams_name_that_is_no_good_label(name: str) -> None:
    told = complaint("", f'name = "{name}"')
    assert told == "upstream 1: `name` is no good label: it stands in metrics and logs"


def test_what_names_a_variable_and_is_none_is_not_shown() -> None:
    for key, below in (
        ("upstream 1: `key_env`", 'key_env = "sk-hunter2"'),
        ("team 1: `key_env`", '[[team]]\nname = "a"\nkey_env = "hunter2"'),
        ("team 1: `key_env`", '[[team]]\nname = "a"\nkey_env = ""'),
        ("`cache.redis_env`", '[cache]\nredis_env = "redis://:hunter2@h"'),
    ):
        with pytest.raises(ToolkitError) as caught:
            read(ONE + below, "proxy.toml")
        told = caught.value.message
        assert told == f"`proxy.toml`: {key} is not the name of an environment variable"
        assert "hunter2" not in told + caught.value.hint


@pytest.mark.parametrize(
    "value",
    ['""', '"a b"', '"h:80"', '"http://h"', '"[::1]"', '"h/x"', "5", '"-h"', '"h\\n"', '"a..b/"'],
)
def test_what_is_no_address_to_listen_on(value: str) -> None:
    assert complaint(f"host = {value}") == "`host` is no address"


@pytest.mark.parametrize(("value", "message"), [
    ('["tokenize"]', "`tokenize` is no plain path"),
    ('["/tokenize/"]', "`/tokenize/` is no plain path"),
    ('["//tokenize"]', "`//tokenize` is no plain path"),
    ('["/a/../b"]', "`/a/../b` is no plain path"),
    ('["/./b"]', "`/./b` is no plain path"),
    ('["/%74okenize"]', "`/%74okenize` is no plain path"),
    ('["/a?b"]', "`/a?b` is no plain path"),
    ('["/a*"]', "`/a*` is no plain path"),
    ('["/a\\n"]', "`/a?` is no plain path"),
    ('["/"]', "`/` is no plain path"),
    ('["/v1/chat/completions"]', "`/v1/chat/completions` is forwarded already"),
    ('["/v1/models"]', "`/v1/models` is forwarded already"),
    ('["/metrics"]', "`/metrics` is the proxy's own page"),
    ('["/health"]', "`/health` is the proxy's own page"),
    ('["/v1/load_lora_adapter"]', "`/v1/load_lora_adapter` is never forwarded: it changes what all others are answered"),
])  # fmt: skip
def test_a_path_that_may_not_be_added(value: str, message: str) -> None:
    assert complaint(f"paths = {value}") == f"`paths`: {message}"


@pytest.mark.parametrize("value", ['"/tokenize"', "[5]", '[""]', "5"])
def test_what_is_no_list_of_texts(value: str) -> None:
    assert complaint(f"paths = {value}") == "`paths` is no list of texts"


def test_a_list_names_nothing_twice() -> None:
    assert complaint('paths = ["/a", "/a"]') == "`paths` names one thing twice"


@pytest.mark.parametrize(
    "field", ["messages", "prompt", "input", "model", "seed", "temperature", "max_tokens", "tools",
              "system", "response_format", "cache_salt", "chat_template", "n", "documents", "query"],
)  # fmt: skip
def test_a_field_that_changes_the_answer_is_never_inert(field: str) -> None:
    told = complaint("", f'[cache]\ninert = ["user", "{field}"]')
    assert told == f"`cache.inert`: `{field}` changes the answer"


@pytest.mark.parametrize("value", ["5", '""', '" "', '"a\\nb"', '"a\\u001b[2J"'])
def test_what_is_not_one_line_of_text(value: str) -> None:
    assert complaint(f"keys_file = {value}") == "`keys_file` is not one line of text"
    assert complaint("", f"[cache]\nfile = {value}") == "`cache.file` is not one line of text"


def test_what_must_be_said_and_is_not_is_named() -> None:
    assert complaint("", '[[upstream]]\nname = "x"') == "upstream 2 has no `url`"
    assert complaint("", '[[team]]\nkey_env = "X"') == "team 1 has no `name`"


TEAM = '[[team]]\nname = "red"\nkey_env = "RED"\n'


@pytest.mark.parametrize(("top", "below", "message"), [
    ("", ONE, "the upstream's name `10.0.0.4:8000` stands twice"),
    ("", f'{ONE}name = "other"', "the upstream `http://10.0.0.4:8000` stands twice"),
    ("", 'name = "a"\n[[upstream]]\nname = "a"\nurl = "http://h"', "the upstream's name `a` stands twice"),
    ("", "fallback = true", "every upstream is a fallback"),
    ("", 'model = "other"', "upstream `10.0.0.4:8000` has a `model` and is no fallback"),
    ("", TEAM + TEAM, "the team `red` stands twice"),
    ("", f'{TEAM}[[team]]\nname = "blue"\nkey_env = "RED"', "the teams' variable `RED` stands twice"),
    ("", '[[team]]\nname = "red"', "team `red` has no key"),
    ('keys_file = "k"', "", "`keys_file` is set and there is no team"),
    ("port = 5\nadmin_port = 5", "", "`port` and `admin_port` are both 5"),
    ('port = 5\nadmin_port = 5\nhost = "0.0.0.0"', "", "`port` and `admin_port` are both 5"),
    ('port = 5\nadmin_port = 5\nadmin_host = "::"', "", "`port` and `admin_port` are both 5"),
    ("port = 65535", "", "no port is above `port` for the admin"),
    ("", '[front]\nheld = "1MiB"', "`front.held` is less than `front.body_size`"),
])  # fmt: skip
def test_what_does_not_go_together(top: str, below: str, message: str) -> None:
    assert complaint(top, below) == message


def test_what_does_go_together() -> None:
    apart = 'port = 5\nadmin_port = 5\nhost = "10.0.0.1"\n'
    assert read(apart + ONE, "p").admin_port == 5
    assert read(f"port = 0\nadmin_port = 0\n{ONE}", "p").port == 0
    assert read(f"port = 65534\n{ONE}", "p").port == 65534
    assert read(f'{ONE}[front]\nheld = "1MiB"\nbody_size = "1MiB"', "p").front.held_bytes == 2**20
    assert read(f"port = 65535\nadmin_port = 1\n{ONE}", "p").port == 65535
    keys = f'keys_file = "k"\n{ONE}[[team]]\nname = "red"\n[[team]]\nname = "blue"'
    assert len(read(keys, "p").teams) == 2


@pytest.mark.parametrize(("host", "url", "itself"), [
    ("127.0.0.1", "http://127.0.0.1:8000", "listens"),
    ("127.0.0.1", "http://localhost:8000", "listens"),
    ("0.0.0.0", "http://127.0.0.1:8000", "listens"),
    ("0.0.0.0", "http://[::1]:8000", "listens"),
    ("10.0.0.7", "http://10.0.0.7:8000", "listens"),
    ("10.0.0.7", "http://127.0.0.1:8001", "has its admin"),
])  # fmt: skip
def test_a_proxy_that_would_ask_itself_is_refused(host: str, url: str, itself: str) -> None:
    with pytest.raises(ToolkitError) as caught:
        read(f'host = "{host}"\nadmin_port = 8001\n[[upstream]]\nname = "me"\nurl = "{url}"', "p")
    assert caught.value.message == f"`p`: upstream `me` is where this proxy {itself}, `{url}`"


@pytest.mark.parametrize(("host", "url"), [
    ("127.0.0.1", "http://127.0.0.1:8002"), ("127.0.0.1", "http://10.0.0.7:8000"), ("10.0.0.7", "http://127.0.0.1:8000"),
])  # fmt: skip
def test_another_port_or_machine_is_not_itself(host: str, url: str) -> None:
    assert read(f'host = "{host}"\n[[upstream]]\nurl = "{url}"', "p").host == host


def test_a_url_without_a_port_leads_to_its_schemes() -> None:
    assert leads_to("http://h", "h", 80)
    assert leads_to("https://h", "h", 443)
    assert not leads_to("https://h", "h", 80)


def test_addresses_meet_on_a_port_if_equal_or_one_is_every_address() -> None:
    assert same_host("127.0.0.1", "127.0.0.1")
    assert same_host("0.0.0.0", "10.0.0.1")
    assert same_host("localhost", "127.0.0.1")
    assert same_host("::1", "localhost")
    assert not same_host("127.0.0.1", "127.0.0.2")
    assert not same_host("127.0.0.1", "10.0.0.1")
    assert not same_host("localhost", "10.0.0.1")


def test_what_is_visible_has_no_space_and_is_not_empty() -> None:
    assert is_visible("sk-1!~")
    assert not any(is_visible(text) for text in ("", "a b", "a\n", "\x7f", "\N{NO-BREAK SPACE}"))


PLACES = [
    *(("", key) for key in [*names(Settings), "upstream", "team"]),
    *((f"[{table}]\n", key) for table, record in TABLES.items() for key in names(record)),
    *(("[[upstream]]\n", key) for key in names(UpstreamSetting)),
    *(("[[team]]\n", key) for key in names(TeamSetting)),
]
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
