"""The service's unit: when it may reach other machines, and what systemd could not start."""

from dataclasses import replace

import pytest
from support.sites import TWO, site

from toolkit.deploy.systemd import kit
from toolkit.errors import ToolkitError

HERE = TWO.replace('"Qwen/', '"/srv/')


def unit(text: str, **told: str) -> str:
    made = replace(site(text), **told)  # type: ignore[arg-type]
    (found,) = (each.text for each in kit(made).files if each.path.endswith(".service"))
    return found


def test_a_command_with_strange_signs_in_its_path_is_one_word() -> None:
    # systemd.unit(5): `%` begins a specifier, `%%` is one; systemd.service(5): quotes hold spaces together
    found = unit(TWO, command="/opt/50% of it; #/toolkit")
    assert '\nExecStart="/opt/50%% of it; #/toolkit" serve /etc/toolkit/stack.toml\n' in found
    assert '\nEnvironment="PATH=/opt/50%% of it; #:/usr/local/sbin:' in found


@pytest.mark.parametrize("sign", list("\"'\\$"))
def test_a_command_that_systemd_can_not_start_is_told(sign: str) -> None:
    with pytest.raises(ToolkitError, match="systemd starts no such command"):
        kit(replace(site(), command=f"/opt/a{sign}b/toolkit"))


@pytest.mark.parametrize(
    ("host", "is_open"),
    [
        ("0.0.0.0", True),
        ("10.0.0.5", True),
        ("gpu.lan", True),
        ("::1", False),
        ("localhost", False),
    ],
)
def test_a_host_of_the_stack_file_that_lets_everybody_ask_is_told(host: str, is_open: bool) -> None:
    def is_told(text: str) -> bool:
        return any("may ask it" in each for each in kit(site(text)).next_steps)

    proxy = f'{TWO}[proxy]\nhost = "{host}"\n'
    assert is_told(proxy) == is_open
    assert not is_told(proxy + '[[proxy.team]]\nname = "red"\nkey_env = "RED_KEY"\n')


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
