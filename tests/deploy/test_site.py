"""A stack as other machines need it: expected values are read off the stack file by eye."""

import tomllib

import pytest
from support.deployed import HELP, IMAGE, ROOT, site

from toolkit.deploy.site import SiteEngine
from toolkit.errors import ToolkitError
from toolkit.serving.flags import known

VLLM = '[[engine]]\nmodel = "Qwen/Qwen2.5-7B-Instruct"\n'


def engine(text: str) -> SiteEngine:
    (found,) = site(text).engines
    return found


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


def test_the_catalog_names_the_flags_of_the_vllm_that_it_says() -> None:
    vllm = tomllib.loads((ROOT / "toolkit/catalog/vllm.toml").read_text())
    assert known(vllm["flags"]) == known(HELP)
    assert vllm["image"] == IMAGE


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
