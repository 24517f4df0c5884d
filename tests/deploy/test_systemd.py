"""The service's unit: systemd itself reads it, and what it says is read off the stack file by eye."""

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from support.sites import TEMPLATES, TWO, site, text_of

from toolkit.deploy.site import Site
from toolkit.deploy.systemd import kit
from toolkit.errors import ToolkitError

INSTALL = "apt-get install systemd"
KEYS = (
    TWO
    + 'key_env = "VLLM_API_KEY"\n[proxy]\ndrain = "45s"\n[[proxy.team]]\nname = "red"\nkey_env = "RED_KEY"\n'
    + '[proxy.cache]\nredis_env = "REDIS"\n[guard]\nstop = "20s"\n'
)
TOOLKIT = str(Path(sys.executable).parent / "toolkit")


def unit(made: Site) -> str:
    return text_of(kit(made, TEMPLATES), ".service")


def settings(made: Site) -> dict[str, list[str]]:
    """Key -> its values, comments left out."""
    found: dict[str, list[str]] = {}
    for line in unit(made).splitlines():
        if "=" in line and not line.startswith("#"):
            key, _, value = line.partition("=")
            found.setdefault(key, []).append(value)
    return found


def verified(folder: Path, made: Site, *, change: tuple[str, str] = ("", "")) -> str:
    """What `systemd-analyze verify` has to say; it exits 0 for a misspelt key, so that only its words count."""
    program = shutil.which("systemd-analyze")
    if program is None:
        missing = f"no systemd-analyze; {INSTALL}"
        if os.environ.get("CI"):
            pytest.fail(missing)
        # outside CI nobody is made to install it; the reason shown is the command that does
        pytest.skip(missing)
    (name,) = [each.path for each in kit(made, TEMPLATES).files if each.path.endswith(".service")]
    text = unit(made)
    assert change[0] in text
    (folder / name).write_text(text.replace(*change) if change[0] else text)
    told = subprocess.run(
        [program, "verify", "--man=no", str(folder / name)],
        capture_output=True,
        text=True,
        check=False,
    )
    return told.stderr + ("" if change[0] else told.stdout)


@pytest.mark.parametrize(
    "made",
    [
        site(),
        site(KEYS),
        site("proxy = false\n" + TWO),
        site(listen="::"),
        site('[[engine]]\nkind = "sim"\nmodel = "fp8"\n'),
        site(
            'folder = "/srv/50% of it"\n[[engine]]\nkind = "tiny"\n',
            name="50% $x; \\ Ünï\n[Service]",
        ),
    ],
    ids=["proxy", "keys", "engines", "everywhere", "sim", "hostile"],
)
def test_systemd_takes_what_is_rendered_without_a_word(tmp_path: Path, made: Site) -> None:
    assert verified(tmp_path, replace(made, command=TOOLKIT)) == ""


@pytest.mark.parametrize(
    "change",
    [
        ("WatchdogSec=", "WatchDogSecs="),
        ("Type=notify", "Type=notified"),
        ("[Service]", "[Servce]"),
        ("TimeoutStopSec=", "TimeoutStopSec=soon "),
    ],
)
def test_a_mistake_in_it_would_be_seen(tmp_path: Path, change: tuple[str, str]) -> None:
    assert verified(tmp_path, replace(site(), command=TOOLKIT), change=change)


def test_a_command_with_strange_signs_in_its_path_is_found(tmp_path: Path) -> None:
    place = tmp_path / "50% of it; #"
    place.mkdir()
    (place / "toolkit").symlink_to(TOOLKIT)
    assert verified(tmp_path, replace(site(), command=str(place / "toolkit"))) == ""
    assert "not executable" in verified(tmp_path, replace(site(), command="/nowhere/toolkit"))


@pytest.mark.parametrize("sign", list("\"'\\$"))
def test_a_command_that_systemd_can_not_start_is_told(sign: str) -> None:
    with pytest.raises(ToolkitError, match="systemd starts no such command"):
        unit(replace(site(), command=f"/opt/a{sign}b/toolkit"))


def test_it_runs_what_serve_runs_from_the_folder_in_which_its_files_lie() -> None:
    found = settings(replace(site(name="prod"), command="/opt/toolkit/bin/toolkit"))
    assert found["ExecStart"] == ["/opt/toolkit/bin/toolkit serve /etc/toolkit/prod.toml"]
    assert found["WorkingDirectory"] == ["/var/lib/toolkit-prod"]
    # vLLM's own command is found beside it
    assert found["Environment"][0].startswith("PATH=/opt/toolkit/bin:/usr/local/sbin:")


def test_clients_are_taken_elsewhere_only_where_that_is_told() -> None:
    assert settings(site(listen="0.0.0.0"))["ExecStart"][0].endswith("stack.toml --host 0.0.0.0")
    assert settings(site())["ExecStart"][0].endswith("/stack.toml")
    assert settings(site(listen="::1"))["ExecStart"][0].endswith("stack.toml --host ::1")
    bare = site("proxy = false\n" + TWO, listen="0.0.0.0")
    # serve refuses that option where there is no proxy
    assert settings(bare)["ExecStart"][0].endswith("/stack.toml")
    assert any("each engine's `host`" in each for each in kit(bare, TEMPLATES).next_steps)


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
        return any("may ask it" in each for each in kit(site(text), TEMPLATES).next_steps)

    proxy = f'{TWO}[proxy]\nhost = "{host}"\n'
    assert is_told(proxy) == is_open
    assert not is_told(proxy + '[[proxy.team]]\nname = "red"\nkey_env = "RED_KEY"\n')


def test_it_waits_for_the_word_that_clients_are_let_in_and_for_signs_of_life() -> None:
    found = settings(site())
    assert (found["Type"], found["NotifyAccess"]) == (["notify"], ["main"])
    assert found["WatchdogSec"] == ["60s"]
    assert (found["Restart"], found["KillMode"]) == (["always"], ["mixed"])
    assert (found["StartLimitBurst"], found["OOMPolicy"]) == (["5"], ["continue"])


def test_it_is_killed_only_after_all_that_an_end_takes() -> None:
    # 45 s for answers, 20 s for an engine, 60 s for memory; without a proxy 30 s, and 10 s are usual
    assert settings(site(KEYS))["TimeoutStopSec"] == ["125s"]
    assert settings(site("proxy = false\n" + TWO))["TimeoutStopSec"] == ["100s"]


def test_nothing_takes_the_gpus_away_or_forbids_to_compile() -> None:
    breaking = {
        "PrivateDevices",
        "DevicePolicy",
        "DeviceAllow",
        "ProtectClock",
        "MemoryDenyWriteExecute",
    }
    assert not breaking & set(settings(site()))


def test_keys_are_named_and_stand_nowhere() -> None:
    made = site(KEYS)
    assert settings(made)["EnvironmentFile"] == ["/etc/toolkit/stack.env"]
    (example,) = [each for each in kit(made, TEMPLATES).files if "env" in each.path]
    lines = [line for line in example.text.splitlines() if not line.startswith("#")]
    assert lines == ["VLLM_API_KEY=", "RED_KEY=", "REDIS="]
    assert (example.path, example.mode) == ("stack.env.example", 0o600)


def test_the_key_of_a_server_elsewhere_is_asked_for_too() -> None:
    more = '[proxy]\n[[proxy.upstream]]\nurl = "https://api.example.com"\nkey_env = "FAR_KEY"\nfallback = true\n'
    found = kit(site(TWO + more), TEMPLATES)
    assert "\nFAR_KEY=\n" in next(each.text for each in found.files if "env" in each.path)
    # without the file `serve` would not start, and say so only in its journal
    assert settings(site(TWO + more))["EnvironmentFile"] == ["/etc/toolkit/stack.env"]


def test_without_keys_it_starts_without_a_file_of_them() -> None:
    assert settings(site())["EnvironmentFile"] == ["-/etc/toolkit/stack.env"]


def test_the_stack_file_goes_along_as_it_is() -> None:
    assert text_of(kit(site(KEYS), TEMPLATES), ".toml") == KEYS


def test_what_lies_where_the_service_may_not_look_is_told() -> None:
    text = '[[engine]]\nmodel = "/home/ann/model"\nkind = "vllm"\n'
    steps = "\n".join(
        kit(replace(site(text), command="/home/bob/venv/bin/toolkit"), TEMPLATES).next_steps
    )
    assert "`/home/ann/model` lies in a home" in steps
    assert "`/home/bob/venv/bin/toolkit` lies in a home" in steps
    assert "lies in a home" not in "\n".join(kit(site(), TEMPLATES).next_steps)


def test_a_second_deployment_empties_no_file_of_keys_and_takes_effect() -> None:
    steps = kit(site(KEYS), TEMPLATES).next_steps
    (keys,) = [step for step in steps if "env.example" in step]
    assert keys.startswith("sudo test -e /etc/toolkit/stack.env || sudo install -m 0600 ")
    # `enable --now` leaves a service that runs as it is
    assert any("systemctl restart toolkit-stack.service" in step for step in steps)


def test_whole_paths_that_are_written_to_are_opened_for_it() -> None:
    made = site('folder = "/srv/serve"\n' + TWO)
    assert settings(made)["ReadWritePaths"] == ["-/srv/serve", "-/srv/serve/proxy-cache.db"]
    assert any("`/srv/serve` is written to" in each for each in kit(made, TEMPLATES).next_steps)
