"""The service's unit: when it may reach other machines, and what systemd could not start."""

from dataclasses import replace

import pytest
from support.deployed import site

from toolkit.deploy.systemd import kit

TWO = """
[[engine]]
name = "red"
model = "Qwen/Qwen2.5-7B-Instruct"
gpus = "0"
[[engine]]
name = "blue"
model = "Qwen/Qwen2.5-7B-Instruct"
gpus = "1"
"""
"""Two engines with one model, behind a proxy."""
HERE = TWO.replace('"Qwen/', '"/srv/')


def unit(text: str, **told: str) -> str:
    made = replace(site(text), **told)  # type: ignore[arg-type]
    (found,) = (each.text for each in kit(made).files if each.path.endswith(".service"))
    return found


def test_a_command_with_strange_signs_in_its_path_is_one_word() -> None:
    # systemd.unit(5): `%` begins a specifier, `%%` is one; systemd.service(5): quotes hold spaces together
    found = unit(TWO, command="/opt/50% of it; #/toolkit")
    assert '\nExecStart="/opt/50%% of it; #/toolkit" serve /etc/toolkit/contest.toml\n' in found
    assert '\nEnvironment="PATH=/opt/50%% of it; #:/usr/local/sbin:' in found


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (HERE, None),
        (TWO, "models come from Hugging Face"),
        (HERE.replace('"0"', '"0,2"'), "NCCL's processes"),
        (HERE + '[proxy]\nmedia_hosts = ["cdn.example.com"]\n', "engines fetch what requests name"),
        (HERE + '[proxy.cache]\nredis_env = "REDIS"\n', "the proxy asks other machines"),
        (
            HERE + '[[proxy.upstream]]\nurl = "https://api.example.com"\nfallback = true\n',
            "the proxy asks other machines",
        ),
        (HERE + '[proxy]\nhost = "0.0.0.0"\n', "clients of other machines are taken"),
    ],
)
def test_it_reaches_other_machines_only_where_it_must(text: str, why: str | None) -> None:
    assert ("IPAddressDeny=any" in unit(text)) == (why is None)
    assert why is None or why in unit(text)
