"""A stack as other machines need it: expected values are read off the stack file by eye."""

import pytest
from support.sites import catalog, site

from toolkit.deploy.site import SiteEngine
from toolkit.errors import ToolkitError
from toolkit.serving.flags import known

VLLM = '[[engine]]\nmodel = "Qwen/Qwen2.5-7B-Instruct"\n'


def engine(text: str) -> SiteEngine:
    (found,) = site(text).engines
    return found


def test_ports_that_are_not_named_are_the_next_ones_on_any_machine() -> None:
    found = site(VLLM + VLLM)
    assert found.proxy is not None
    # 8000 is the proxy's; each engine's successor has a place of its own, and the admin the next one
    assert found.proxy.port == 8000
    assert [(each.port, each.spare_port) for each in found.engines] == [(8001, 8003), (8002, 8004)]
    assert found.proxy.admin_port == 8005


@pytest.mark.parametrize(
    ("flags", "count"),
    [
        ("", 1),
        ("tensor-parallel-size = 4", 4),
        ("tensor-parallel-size = 2\npipeline-parallel-size = 3\ndata-parallel-size = 2", 12),
    ],
)
def test_gpus_are_counted_as_the_flags_split_the_model(flags: str, count: int) -> None:
    assert engine(f"{VLLM}[engine.flags]\n{flags}\n").gpu_count == count


@pytest.mark.parametrize("text", ['kind = "tiny"', 'kind = "sim"\nmodel = "fp8"'])
def test_what_needs_no_gpu_has_none_and_no_flags_of_vllm(text: str) -> None:
    found = engine(f"[[engine]]\n{text}\n[engine.flags]\nseed = 1\n")
    assert (found.gpu_count, found.arguments) == (0, ())


def test_the_catalog_names_the_flags_of_the_vllm_that_it_says() -> None:
    from pathlib import Path

    recorded = Path(__file__).parents[1] / "data" / "startup" / "help-0.32.0.txt"
    vllm = catalog("vllm")
    assert known(vllm["flags"]) == known(recorded.read_text())
    assert vllm["image"] == "vllm/vllm-openai:v0.32.0"


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ('[engine.flags]\nhf-token = "hf_abc"\n', "flags.hf-token"),
        ('[engine.env]\nHF_TOKEN = "hf_abc"\n', "env.HF_TOKEN"),
        ('[engine.env]\nAWS_SECRET_ACCESS_KEY = "hf_abc"\n', "env.AWS_SECRET_ACCESS_KEY"),
        ('[engine.env]\npassword = "hf_abc"\n', "env.password"),
        ('[engine.env]\nPGPASSWORD = "hf_abc"\n', "env.PGPASSWORD"),
        ('[engine.env]\nNGC_APIKEY = "hf_abc"\n', "env.NGC_APIKEY"),
        ('[engine.env]\nSSL_PASSPHRASE = "hf_abc"\n', "env.SSL_PASSPHRASE"),
        ('[engine.env]\nhttps_proxy = "http://ann:hf_abc@proxy:3128"\n', "env.https_proxy"),
        ('[engine.env]\nREDIS = "redis://:hf_abc@cache/0"\n', "env.REDIS"),
        (
            '[engine.flags]\notlp-traces-endpoint = "http://ann:hf_abc@collector:4317"\n',
            "flags.otlp-traces-endpoint",
        ),
    ],
)
def test_a_secret_is_refused_and_not_repeated(text: str, what: str) -> None:
    with pytest.raises(ToolkitError, match=f"`{what}` holds a secret") as told:
        site(VLLM + text)
    assert "hf_abc" not in told.value.message + told.value.hint


def test_words_that_only_sound_like_secrets_pass() -> None:
    env = {
        "TOKENIZERS_PARALLELISM": "1",
        "KEYS": "2",
        "BYPASS": "3",
        "https_proxy": "http://proxy:3128",
        "SOURCE": "http://git@host/a:b@c",
        "JSON": "{'url':'http://host:80','mail':'a@b'}",
    }
    told = "".join(f'{name} = "{value}"\n' for name, value in env.items())
    found = engine(f"{VLLM}[engine.env]\n{told}[engine.flags]\nhf-token = true\n")
    assert dict(found.env) == env


def test_engines_whose_names_differ_in_their_case_stay_two() -> None:
    found = site(VLLM + 'name = "a"\n' + VLLM + 'name = "A"\n')
    assert [each.name for each in found.engines] == ["a", "a-2"]


def test_whole_paths_that_are_written_to_are_told_and_relative_ones_are_not() -> None:
    text = 'folder = "/srv/serve"\ndatabase = "data/x.db"\n' + VLLM
    # the response cache lies in the stack's folder
    assert site(text).writes == ("/srv/serve", "/srv/serve/proxy-cache.db")


def test_what_listens_everywhere_is_asked_here() -> None:
    found = site(VLLM + 'host = "0.0.0.0"\n[proxy]\nhost = "::"\n')
    assert found.proxy is not None
    assert (found.engines[0].host, found.proxy.host) == ("127.0.0.1", "::1")
