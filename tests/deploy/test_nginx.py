"""nginx's file: what it says, and that nginx takes it, whatever stands in the stack."""

from dataclasses import replace
from pathlib import Path

import pytest
from support.nginxes import checked
from support.sites import TEMPLATES, TWO, site, text_of

from toolkit.deploy.nginx import groups, kit, paths
from toolkit.deploy.site import Site, SiteProxy
from toolkit.errors import ToolkitError

BARE = "proxy = false\n"
ENGINE = '[[engine]]\nname = "{0}"\nmodel = "{1}"\n'
THREE = BARE + ENGINE.format("a", "m") + ENGINE.format("b", "m") + ENGINE.format("c", "n")
HOSTILE = ENGINE.format("A..b", "m") + (
    "served_name = '''x\"; } evil on; # {{ site }} %n \\'''\n"
    '[proxy]\npaths = ["/tokenize", "/~x.y-z/v1"]\n'
)


def conf(site: Site) -> str:
    return text_of(kit(site, TEMPLATES), ".conf")


@pytest.mark.parametrize(
    "made",
    [
        site(),
        site(BARE + TWO),
        site(THREE),
        site(HOSTILE),
        site(BARE + HOSTILE.partition("[proxy]")[0]),
        site(listen="::"),
        site(listen="0.0.0.0", name="7 \n Ünï; code"),
        site('[[engine]]\nkind = "sim"\nmodel = "fp8"\n[proxy.admission]\nwhole = "none"\n'),
        site('[[engine]]\nkind = "tiny"\nhost = "::1"\n[proxy]\nhost = "::1"\n'),
    ],
    ids=["proxy", "engines", "models", "hostile", "hostile-bare", "six", "name", "sim", "tiny"],
)
def test_nginx_takes_what_is_rendered(tmp_path: Path, made: Site) -> None:
    told = checked(tmp_path, conf(made))
    # beside its two usual lines nothing: a warning is a mistake, too
    assert told.stderr.splitlines() == [
        f"nginx: the configuration file {tmp_path}/nginx.conf syntax is ok",
        f"nginx: configuration file {tmp_path}/nginx.conf test is successful",
    ]


def test_a_mistake_in_it_would_be_seen(tmp_path: Path) -> None:
    told = checked(tmp_path, conf(site()).replace("least_conn;", "least_con;"))
    assert (told.returncode, "unknown directive" in told.stderr) == (1, True)


def test_clients_are_taken_on_the_loopback_unless_it_is_told_otherwise() -> None:
    assert [each.listen for each in groups(site())] == ["127.0.0.1:8080"]
    assert [each.listen for each in groups(site(listen="::"))] == ["[::]:8080"]


def test_with_a_proxy_it_alone_is_asked() -> None:
    (group,) = groups(site(TWO + "[proxy]\nport = 8100\n"))
    assert [each.address for each in group.servers] == ["127.0.0.1:8100"]


def test_engines_with_one_model_stand_in_for_each_other_and_another_model_has_its_own_port() -> (
    None
):
    first, second = groups(site(THREE))
    assert [each.address for each in first.servers] == ["127.0.0.1:8001", "127.0.0.1:8002"]
    assert [each.address for each in second.servers] == ["127.0.0.1:8003"]
    assert [each.listen for each in (first, second)] == ["127.0.0.1:8080", "127.0.0.1:8081"]
    assert first.name != second.name


def test_a_team_s_engines_are_asked_by_nobody_else() -> None:
    text = BARE + "".join(
        ENGINE.format(team, "m") + f'team = "{team}"\n' for team in ("red", "blue")
    )
    assert [len(each.servers) for each in groups(site(text))] == [1, 1]


def test_engines_that_want_unlike_keys_do_not_stand_in_for_each_other() -> None:
    # a client has one key, and the other engine would answer it 401
    text = BARE + "".join(
        ENGINE.format(key, "m") + f'key_env = "{key}"\n' for key in ("RED_KEY", "BLUE_KEY")
    )
    red, blue = groups(site(text))
    assert (len(red.servers), len(blue.servers)) == (1, 1)
    assert "RED_KEY" in red.what
    shared = text.replace("BLUE_KEY", "RED_KEY").replace('name = "RED_KEY"', 'name = "a"', 1)
    assert [len(each.servers) for each in groups(site(shared))] == [2]


@pytest.mark.parametrize("name", ["combined", "main", "off"])
def test_a_stack_called_as_a_format_of_nginx_s_own_has_its_own(tmp_path: Path, name: str) -> None:
    # nginx knows `combined` by itself; its packages' nginx.conf says `main`
    text = conf(site(name=name))
    assert checked(tmp_path, f"log_format main '';\n{text}").returncode == 0


def test_clients_ports_are_none_of_the_engines() -> None:
    text = THREE.replace('name = "a"\n', 'name = "a"\nport = 8080\n')
    assert [each.listen for each in groups(site(text))] == ["127.0.0.1:8081", "127.0.0.1:8082"]


def test_nor_the_proxy_s_or_a_successor_s() -> None:
    own = "[proxy]\nport = 8080\nadmin_port = 8081\n"
    text = ENGINE.format("a", "m") + "port = 8082\nspare_port = 8083\n" + own
    assert [each.listen for each in groups(site(text))] == ["127.0.0.1:8084"]


def test_only_these_paths_are_let_through() -> None:
    # read off proxy/routes.py by eye; what is not here is refused
    posts = (
        "/v1/chat/completions /v1/chat/completions/batch /v1/completions /v1/responses /v1/messages /v1/embeddings"
        " /v2/embed /v1/score /v1/rerank /v2/rerank /v1/messages/count_tokens /v1/chat/completions/render"
        " /v1/completions/render"
    ).split()
    every = {each.path: each.methods for each in paths(None)}
    assert {path for path, methods in every.items() if methods == ("POST",)} == set(posts)
    reads = {path for path, methods in every.items() if methods == ("GET", "HEAD")}
    assert reads == {"/v1/models", "/health", "/ping"}
    assert len(every) == len(posts) + 3


def test_a_path_that_the_stack_opens_is_let_through_and_none_that_steers_the_server() -> None:
    opened = ("/tokenize", "/metrics", "/version", "/v1/load_lora_adapter")
    found = {each.path: each.methods for each in paths(SiteProxy(paths=opened))}
    assert found["/tokenize"] == ("GET", "HEAD", "POST")
    assert not {"/metrics", "/version", "/v1/load_lora_adapter"} & set(found)
    assert "/ready" in found


def test_limits_are_the_proxy_s() -> None:
    text = conf(
        site(TWO + '[proxy.front]\nbody_size = "20MiB"\n[proxy.admission]\nwhole = "20m"\n')
    )
    # 20 x 1,048,576 bytes; 20 minutes, 30 s of waiting for a slot, and one minute more
    assert "client_max_body_size 20971520;" in text
    assert "proxy_read_timeout 1290s;" in text


def test_a_request_that_waited_in_the_proxy_is_not_cut_off_before_its_answer_ends() -> None:
    text = TWO + '[proxy.admission]\nwait = "5m"\n[proxy.cache]\nredis_env = "R"\n'
    # 300 s for a slot, 30 s for another proxy's answer, 600 s of its own, and 60 more
    assert "proxy_read_timeout 990s;" in conf(site(text))


def test_where_nobody_behind_ends_an_answer_it_may_take_an_hour() -> None:
    assert "proxy_read_timeout 3600s;" in conf(site(BARE + TWO))
    unlimited = TWO + '[proxy.admission]\nwhole = "none"\n'
    assert "proxy_read_timeout 3600s;" in conf(site(unlimited))


def test_a_post_is_never_repeated_once_it_was_sent() -> None:
    settings = [each.strip() for each in conf(site(BARE + TWO)).splitlines()]
    assert "proxy_next_upstream error timeout;" in settings
    assert not any("non_idempotent" in each for each in settings if not each.startswith("#"))


def test_a_dollar_can_not_be_written_and_is_told() -> None:
    odd = site()
    assert odd.proxy is not None
    with pytest.raises(ToolkitError, match="reads as a variable"):
        conf(replace(odd, proxy=replace(odd.proxy, paths=("/a$uri",))))


def test_what_to_do_next_names_an_address_that_can_be_asked() -> None:
    def said(listen: str) -> str:
        return kit(site(listen=listen), TEMPLATES).next_steps[1]

    assert said("::1").startswith("Clients ask http://[::1]:8080: ")
    assert said("0.0.0.0").startswith("Clients ask any address of this machine at port 8080: ")


def test_what_to_do_next_warns_of_keys_in_the_clear() -> None:
    assert not any("in the clear" in each for each in kit(site(), TEMPLATES).next_steps)
    assert any("in the clear" in each for each in kit(site(listen="0.0.0.0"), TEMPLATES).next_steps)
