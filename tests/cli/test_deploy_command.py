"""`toolkit deploy` as a user meets it: what it writes, what it says, what it refuses."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from toolkit.cli import main
from toolkit.cli.deploy.verb import KINDS

STACK = '[[engine]]\nmodel = "Qwen/Qwen2.5-7B-Instruct"\nkey_env = "VLLM_API_KEY"\n'


@pytest.fixture
def stack(tmp_path: Path) -> Path:
    path = tmp_path / "prod.toml"
    path.write_text(STACK)
    return path


def deploy(*words: object) -> Result:
    return CliRunner().invoke(main, ["deploy", *map(str, words)])


def files(folder: Path) -> set[str]:
    return {str(each.relative_to(folder)) for each in folder.rglob("*") if each.is_file()}


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_writes_files_names_them_and_says_what_comes_next(
    kind: str, stack: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "sk-never-written")
    out = tmp_path / "out"
    told = deploy(kind, stack, "--out", out)
    assert told.exit_code == 0, told.stderr
    named = {str(Path(line).relative_to(out)) for line in told.stdout.splitlines()}
    assert named == files(out) - {".toolkit-deploy.sha256"}
    assert named
    assert told.stderr.startswith(f"Next, in `{out}`:\n  ")
    assert not any(
        "sk-never-written" in each.read_text() for each in out.rglob("*") if each.is_file()
    )
    assert deploy(kind, stack, "--out", out).exit_code == 0


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_written_can_be_read_by_a_program(kind: str, stack: Path, tmp_path: Path) -> None:
    told = deploy(kind, stack, "--out", tmp_path / "out", "--json")
    rows = [json.loads(line) for line in told.stdout.splitlines()]
    assert all(set(row) == {"path", "written", "mode"} for row in rows)
    assert all(row["written"] and Path(row["path"]).is_file() for row in rows)
    again = deploy(kind, stack, "--out", tmp_path / "out", "--json")
    assert not any(json.loads(line)["written"] for line in again.stdout.splitlines())


@pytest.mark.parametrize("kind", KINDS)
def test_a_stack_without_a_proxy_hears_of_none(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "stack.toml"
    path.write_text(f"proxy = false\n{STACK}")
    told = deploy(kind, path, "--out", tmp_path / "out")
    assert told.exit_code == 0, told.stderr
    said = told.stderr + "".join(
        (tmp_path / "out" / each).read_text() for each in files(tmp_path / "out")
    )
    assert "the proxy" not in said.lower()
    assert "ProxyDown" not in said


def test_a_file_that_was_changed_by_hand_stays(stack: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    deploy("nginx", stack, "--out", out)
    (out / "prod.conf").write_text("mine\n")
    told = deploy("nginx", stack, "--out", out)
    assert told.exit_code == 1
    assert told.stderr.splitlines() == [
        f"Error: `{out}/prod.conf` was changed since it was written",
        "",
        "Hint: Move it away, name another --out, or replace it with --force",
    ]
    assert (out / "prod.conf").read_text() == "mine\n"
    assert deploy("nginx", stack, "--out", out, "--force").exit_code == 0
    assert "upstream prod {" in (out / "prod.conf").read_text()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[engine]\n", "is no TOML"),
        ("", "names no engine"),
        ('[[engine]]\nmodle = "x"\n', "unknown key `modle`"),
        ('[[engine]]\nmodel = "x"\npreset = "fastest"\n', "no preset is called `fastest`"),
        ('[[engine]]\nmodel = "x"\n[engine.flags]\nswap-space = 4\n', "has no flag `--swap-space`"),
        (
            '[[engine]]\nmodel = "x"\n[engine.flags]\nmax-modle-len = 4\n',
            "no flag `--max-modle-len`",
        ),
        ('[[engine]]\nmodel = "x"\n[engine.env]\nHF_TOKEN = "hf"\n', "holds a secret"),
    ],
)
def test_a_stack_that_is_wrong_is_one_error_and_writes_nothing(
    kind: str, text: str, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "stack.toml"
    path.write_text(text)
    told = deploy(kind, path, "--out", tmp_path / "out")
    assert told.exit_code == 1
    assert told.stderr.startswith("Error: ")
    assert message in told.stderr
    assert told.stderr.count("Error:") == 1
    assert "\n\nHint: " in told.stderr
    assert not (tmp_path / "out").exists()


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    told = deploy("nginx", tmp_path / "no.toml", "--out", tmp_path / "out")
    assert (told.exit_code, "no such file or directory" in told.stderr) == (1, True)


@pytest.mark.parametrize(
    "words", [("nginx",), ("nginx", "x.toml"), ("apache", "x.toml", "--out", "y")]
)
def test_a_wrong_command_line_is_exit_2(words: tuple[str, ...]) -> None:
    assert deploy(*words).exit_code == 2


@pytest.mark.parametrize("word", ["everywhere", "10.0.0.1:80", "", "fe80::1%eth0"])
def test_an_address_is_an_ip_address(word: str, stack: Path, tmp_path: Path) -> None:
    told = deploy("nginx", stack, "--out", tmp_path / "out", "--listen", word)
    assert (told.exit_code, f"`{word}` is no IP address" in told.stderr) == (1, True)


@pytest.mark.parametrize(("word", "listen"), [("0.0.0.0", "0.0.0.0:8080"), ("[::1]", "[::1]:8080")])
def test_clients_are_taken_where_it_is_told(
    word: str, listen: str, stack: Path, tmp_path: Path
) -> None:
    deploy("nginx", stack, "--out", tmp_path / "out", "--listen", word)
    assert f'listen "{listen}";' in (tmp_path / "out" / "prod.conf").read_text()


TEAM = '[[proxy.team]]\nname = "red"\nkey_env = "RED_KEY"\n'


@pytest.mark.parametrize("kind", ["nginx", "compose", "k8s", "systemd"])
def test_a_proxy_that_everybody_may_ask_is_told_with_what_to_do(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "stack.toml"

    def said(text: str, listen: str) -> list[str]:
        path.write_text(text)
        told = deploy(kind, path, "--out", tmp_path / "out", "--listen", listen, "--force")
        assert told.exit_code == 0, told.stderr
        return [line for line in told.stderr.splitlines() if "may ask" in line]

    # the engine's own key is the proxy's to send, and no client's
    (line,) = said(STACK, "0.0.0.0")
    assert line == (
        "  No team has a key, so whoever reaches the proxy may ask it: put a `[[proxy.team]]` with `name` and"
        ' `key_env = "VARIABLE"` into the stack file, and deploy again'
    )
    assert said(STACK + TEAM, "0.0.0.0") == []
    assert said(STACK, "127.0.0.1") == []


@pytest.mark.parametrize("kind", ["nginx", "compose", "k8s", "systemd"])
def test_engines_that_everybody_may_ask_are_told_with_what_to_do(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "stack.toml"
    bare = 'proxy = false\n[[engine]]\nname = "blue"\nmodel = "x"\ngpus = "1"\n'
    path.write_text(bare + STACK + 'name = "red"\ngpus = "0"\n')
    told = deploy(kind, path, "--out", tmp_path / "out", "--listen", "10.0.0.5")
    assert told.exit_code == 0, told.stderr
    (line,) = [line for line in told.stderr.splitlines() if "may ask" in line]
    # the other one has a key
    assert line == (
        "  Whoever reaches an engine without a key may ask it (`blue`): give each a"
        ' `key_env = "VARIABLE"` in the stack file, and deploy again'
    )


def test_what_became_of_an_old_flag_is_said(tmp_path: Path) -> None:
    path = tmp_path / "stack.toml"
    path.write_text(
        '[[engine]]\nmodel = "x"\n[engine.flags]\nguided-decoding-backend = "xgrammar"\n'
    )
    told = deploy("nginx", path, "--out", tmp_path / "out")
    assert "`--guided-decoding-backend xgrammar` ended with vLLM 0.11.2" in told.stderr


def test_a_preset_and_engines_without_a_port_are_placed(tmp_path: Path) -> None:
    path = tmp_path / "stack.toml"
    path.write_text('proxy = false\n[[engine]]\nmodel = "x"\npreset = "throughput"\n')
    assert deploy("nginx", path, "--out", tmp_path / "out").exit_code == 0
    assert 'server "127.0.0.1:8001" ' in (tmp_path / "out" / "stack.conf").read_text()


def test_the_help_shows_an_example_of_each_line_within_a_screen() -> None:
    told = CliRunner().invoke(main, ["deploy", "--help"]).stdout
    assert "toolkit deploy nginx stack.toml --out" in told
    assert all(f"  {kind} " in told for kind in KINDS)
    assert max(map(len, told.splitlines())) <= 80
