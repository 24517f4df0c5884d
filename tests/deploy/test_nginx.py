"""nginx's file: who is asked, by which paths, for how long; that nginx takes it the contract shows, whatever stands in the stack."""

from pathlib import Path

import pytest
from support.deployed import site, text_of
from support.nginxes import checked

from toolkit.deploy.nginx import groups, kit, paths
from toolkit.deploy.site import Site, SiteProxy

BARE = "proxy = false\n"
ENGINE = '[[engine]]\nname = "{0}"\nmodel = "{1}"\n'


def conf(site: Site) -> str:
    return text_of(kit(site), ".conf")


@pytest.mark.parametrize(
    "made",
    [
        site(listen="0.0.0.0", name="7 \n Ünï; code"),
        # nginx knows `combined` by itself; its packages' nginx.conf says `main`
        *(site(name=name) for name in ("combined", "main", "off")),
        site('[[engine]]\nkind = "tiny"\nhost = "::1"\n[proxy]\nhost = "::1"\n'),
    ],
)
def test_nginx_takes_odd_names_and_none_of_its_own_formats(tmp_path: Path, made: Site) -> None:
    told = checked(tmp_path, f"log_format main '';\n{conf(made)}")
    assert told.returncode == 0, told.stderr


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


def test_only_these_paths_are_let_through() -> None:
    # read off proxy/routes.py by eye; what is not here is refused
    posts = (
        "/v1/chat/completions /v1/chat/completions/batch /v1/completions /v1/responses /v1/messages /v1/embeddings"
        " /v2/embed /v1/score /v1/rerank /v2/rerank /v1/messages/count_tokens /v1/chat/completions/render"
        " /v1/completions/render"
    ).split()
    every = paths(None)
    assert {path for path, methods in every.items() if methods == ["POST"]} == set(posts)
    assert len(every) == len(posts) + 3
    opened = ("/tokenize", "/metrics", "/version", "/v1/load_lora_adapter")
    # none that steers the server
    assert set(paths(SiteProxy(paths=opened))) == {*every, "/ready", "/tokenize"}
