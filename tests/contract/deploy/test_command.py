"""`toolkit deploy` as a user meets it: what it writes, says and refuses, and that no file of somebody else's is replaced."""

import subprocess
from pathlib import Path

import pytest
from contract.harness.deploys import Deployed, deploy_each
from contract.harness.programs import rows, run

KINDS = ("nginx", "compose", "k8s", "systemd", "prometheus", "grafana")
ENGINE = '[[engine]]\nmodel = "Qwen/Qwen2.5-7B-Instruct"\nkey_env = "VLLM_API_KEY"\n'
BARE = 'proxy = false\n[[engine]]\nname = "blue"\nmodel = "x"\ngpus = "1"\n'
TWO = BARE + ENGINE + 'name = "red"\ngpus = "0"\n'
TEAM = '[[proxy.team]]\nname = "red"\nkey_env = "RED_KEY"\n'
WRONG = {
    "[[engine]\n": "is no TOML",
    "": "names no engine",
    '[[engine]]\nmodle = "x"\n': "unknown key `modle`",
    '[[engine]]\nmodel = "x"\npreset = "fastest"\n': "no preset is called `fastest`",
    '[[engine]]\nmodel = "x"\n[engine.flags]\nswap-space = 4\n': "has no flag `--swap-space`",
    '[[engine]]\nmodel = "x"\n[engine.flags]\nmax-modle-len = 4\n': "no flag `--max-modle-len`",
    '[[engine]]\nmodel = "x"\n[engine.env]\nHF_TOKEN = "hf"\n': "`env.HF_TOKEN` holds a secret",
    '[[engine]]\nmodel = "x"\n[engine.env]\nALL_PROXY = "http://u:p@h"\n': "holds a secret",
    **{
        f'[[engine]]\nmodel = "x"\n[engine.env]\n{name} = "v"\n': f"`env.{name}` holds a secret"
        for name in ("CLIENT_SECRET", "OTEL_AUTHORIZATION", "DB_PASS", "aws_accesskey", "APIKEYS")
    },
    '[[engine]]\nmodel = "x"\n[engine.flags]\nhf-token = "k"\n': "`flags.hf-token` holds a secret",
    '[[engine]]\nmodel = "https://me:pw@hub/x"\n': "`model` holds a secret",
}
OPTIONS = {
    ("compose", "--gpus-per-node", "8"): "--gpus-per-node is for k8s, not compose",
    ("nginx", "--toolkit-image", "x"): "--toolkit-image is for compose and k8s, not nginx",
    ("systemd", "--replicas", "2"): "--replicas is for k8s, not systemd",
    ("grafana", "--prometheus", "http://p"): "--prometheus is for k8s, not grafana",
    ("k8s", "--gpus-per-node", "0"): "0 is not in the range",
    ("apache",): "'apache' is not one of",
}
OLD = '[[engine]]\nmodel = "x"\n[engine.flags]\n'
CASES = {
    **{kind: (kind, ENGINE, "--json") for kind in KINDS},
    **{f"bare-{kind}": (kind, TWO, "--listen", "10.0.0.5") for kind in KINDS},
    **{f"open-{kind}": (kind, ENGINE, "--listen", "0.0.0.0") for kind in KINDS[:4]},
    **{f"team-{kind}": (kind, ENGINE + TEAM, "--listen", "0.0.0.0") for kind in KINDS[:4]},
    **{f"wrong-{number}": (KINDS[number % 6], text) for number, text in enumerate(WRONG)},
    **{f"option-{number}": (kind, ENGINE, *words) for number, (kind, *words) in enumerate(OPTIONS)},
    **{
        f"listen-{number}": ("nginx", ENGINE, "--listen", word)
        for number, word in enumerate(("everywhere", "10.0.0.1:80", "", "fe80::1%eth0"))
    },
    "preset": ("nginx", 'proxy = false\n[[engine]]\nmodel = "x"\npreset = "throughput"\n'),
    "ended": ("nginx", OLD + 'guided-decoding-backend = "xgrammar"\n'),
    "turned": ("compose", OLD + "disable-log-requests = true\n"),
    "image": ("compose", OLD + "max-num-seqs = 9\nbrand-new = 7\n", "--image", "r:5/vllm:v0.33.0"),
    "unknown": ("compose", OLD + "max-num-sequences = 64\n"),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Deployed]:
    folder = tmp_path_factory.mktemp("command")
    return deploy_each(folder, CASES, {"VLLM_API_KEY": "sk-never-written"})


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_names_what_it_writes_and_says_what_comes_next(
    kind: str, made: dict[str, Deployed]
) -> None:
    found = made[kind]
    assert found.code == 0, found.err
    written = rows(found.out)
    assert all(set(row) == {"path", "written", "mode"} and row["written"] for row in written)
    names = {str(Path(row["path"]).relative_to("out")) for row in written}
    assert names == found.files - {".toolkit-deploy.sha256"}
    assert {row["mode"] for row in written} <= {"644", "600"}
    assert found.err.startswith("Next, in `out`:\n  ")
    assert not any("sk-never" in found.text(name) for name in found.files)
    done = subprocess.run(
        ["sha256sum", "--check", "--quiet", ".toolkit-deploy.sha256"],
        cwd=found.folder, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    bare = made[f"bare-{kind}"]
    assert "the proxy" not in bare.err + "".join(bare.text(name) for name in bare.files)
    assert bare.out.splitlines() == [line for line in bare.out.splitlines() if line[:4] == "out/"]


@pytest.mark.parametrize("kind", KINDS[:4])
def test_what_everybody_may_ask_is_told_with_what_to_do(
    kind: str, made: dict[str, Deployed]
) -> None:
    def said(name: str) -> list[str]:
        return [step for step in made[f"{name}-{kind}"].steps if "may ask" in step]

    # the engine's own key is the proxy's to send, and no client's
    assert said("open") == [
        (
            "No team has a key, so whoever reaches the proxy may ask it: put a `[[proxy.team]]` with `name` and"
            ' `key_env = "VARIABLE"` into the stack file, and deploy again'
        )
    ]
    assert said("team") == []
    assert [x for x in made[kind].steps if "may ask" in x] == []
    # the other one has a key
    assert said("bare") == [
        (
            "Whoever reaches an engine without a key may ask it (`blue`): give each a"
            ' `key_env = "VARIABLE"` in the stack file, and deploy again'
        )
    ]


def test_a_stack_that_is_wrong_is_one_error_and_writes_nothing(made: dict[str, Deployed]) -> None:
    for number, message in enumerate(WRONG.values()):
        found = made[f"wrong-{number}"]
        assert (found.code, found.out, found.folder.exists()) == (1, "", False), found
        assert found.err.startswith("Error: ")
        assert (message in found.err, found.err.count("Error:")) == (True, 1), found.err
        assert "\n\nHint: " in found.err
    assert "Did you mean `max-num-seqs`?" in made["unknown"].err
    for number in range(4):
        found = made[f"listen-{number}"]
        assert (found.code, "is no IP address to listen on" in found.err) == (1, True)


def test_an_option_of_another_kind_is_a_wrong_command_line(
    made: dict[str, Deployed], tmp_path: Path
) -> None:
    for number, message in enumerate(OPTIONS.values()):
        found = made[f"option-{number}"]
        assert (found.code, found.folder.exists()) == (2, False)
        assert message in found.err
    missing = run("deploy", "nginx", "no.toml", "--out", "o", cwd=tmp_path)
    unnamed = run("deploy", "nginx", cwd=tmp_path)
    assert (missing.returncode, "no such file or directory" in missing.stderr) == (1, True)
    assert unnamed.returncode == 2


def test_what_became_of_flags_and_ports_is_said(made: dict[str, Deployed]) -> None:
    assert 'server "127.0.0.1:8001" ' in made["preset"].text("contest.conf")
    assert "`--guided-decoding-backend xgrammar` ended with vLLM 0.11.2" in made["ended"].err
    assert "the other way round" in made["turned"].err
    command = made["turned"].document("compose.yaml")["services"]["x"]["command"]
    assert "--no-enable-log-requests" in command
    image = made["image"]
    assert image.err.count("`r:5/vllm:v0.33.0` was not asked for its flags") == 1
    assert "passed on as given: `--brand-new`" in image.err
    assert image.document("compose.yaml")["services"]["x"]["command"][5:9] == [
        *("--max-num-seqs", "9", "--brand-new", "7"),
    ]


def test_a_file_that_is_not_ours_or_was_changed_stays_and_nothing_is_written(
    tmp_path: Path,
) -> None:
    out = tmp_path / "out"

    def deploy(*words: str) -> "subprocess.CompletedProcess[str]":
        line = ("deploy", "systemd", "prod.toml", "--out", "out", "--json", *words)
        return run(*line, cwd=tmp_path)

    (tmp_path / "prod.toml").write_text(ENGINE)
    assert deploy().returncode == 0
    assert [row["written"] for row in rows(deploy().stdout)] == [False] * 3
    (out / "prod.env.example").write_text("mine\n")
    (tmp_path / "prod.toml").write_text(ENGINE + "[proxy]\ndrain = '9s'\n")
    done = deploy()
    assert done.returncode == 1
    assert done.stderr == (
        "Error: `out/prod.env.example` was changed since it was written\n\n"
        "Hint: Move it away, name another --out, or replace it with --force\n"
    )
    assert (out / "prod.env.example").read_text() == "mine\n"
    assert (out / "prod.toml").read_text() == ENGINE
    (out / ".toolkit-deploy.sha256").unlink()
    assert "`out/toolkit-prod.service` is there, and not from `deploy`" in deploy().stderr
    assert [row["written"] for row in rows(deploy("--force").stdout)] == [True] * 3
    assert (out / "prod.env.example").stat().st_mode & 0o777 == 0o600


def test_no_file_leaves_the_folder_and_one_that_can_not_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "prod.toml").write_text(ENGINE)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "rules").symlink_to(tmp_path)
    (tmp_path / "file").write_text("a file")
    link, file = (
        run("deploy", "prometheus", "prod.toml", "--out", out, "--force", cwd=tmp_path)
        for out in ("out", "file/out")
    )
    assert (link.returncode, "does not lie below `out`" in link.stderr) == (1, True)
    assert not (tmp_path / "recording.yml").exists()
    assert (file.returncode, "can't be written: not a directory" in file.stderr) == (1, True)
    assert sorted(x.name for x in tmp_path.rglob("*.part")) == []


def test_the_help_shows_an_example_of_each_kind(tmp_path: Path) -> None:
    told = run("deploy", "--help", cwd=tmp_path).stdout
    assert "toolkit deploy nginx stack.toml --out" in told
    assert all(f"  {kind} " in told for kind in KINDS)
    assert max(map(len, told.splitlines())) <= 80
