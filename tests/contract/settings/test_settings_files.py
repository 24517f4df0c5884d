"""Files of settings, stacks and sweeps: what each may say is taken, and what it may not gets one error that names file, key and a way out."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from contract.harness.programs import ROOT, run

if TYPE_CHECKING:
    from subprocess import CompletedProcess

UPSTREAM = '[[upstream]]\nurl = "http://10.0.0.4:8000"\n'
TEAM = '[[team]]\nname = "red"\nkey_env = "RED"\n'
ENGINE = '[[engine]]\nkind = "sim"\nmodel = "fp8"\n'
ONE = '[[configurations]]\nname = "fp8"\nsim = "fp8"\n'
SECRET = "hunter2"

Case = tuple[str, tuple[str, ...]]
"""A file's text, and what the error names."""


def words(kind: str, file: Path) -> tuple[object, ...]:
    """The command that reads such a file and starts nothing."""
    return {
        "proxy": ("proxy", "--config", file, "--check"),
        "stack": ("serve", file, "--check"),
        "sweep": ("sweep", file, "--sim", "--dry-run"),
    }[kind]


def read(kind: str, texts: Iterable[str], folder: Path) -> list["CompletedProcess[str]"]:
    """What the command says of each of these files, all named alike."""

    done = []
    for number, text in enumerate(texts):
        home = folder / str(number)
        home.mkdir()
        (home / "it.toml").write_text(text)
        done.append(run(*words(kind, Path("it.toml")), cwd=home, env={"RED": "key-of-red"}))
    return done


def refused(kind: str, cases: list[Case], folder: Path) -> None:
    for (text, named), done in zip(
        cases, read(kind, (text for text, _ in cases), folder), strict=True
    ):
        assert done.returncode == 1, (text, done)
        assert done.stdout == "", text
        assert "Traceback" not in done.stderr, done.stderr
        error, hint, *more = filter(None, done.stderr.splitlines())
        assert error.startswith("Error: "), (text, done.stderr)
        assert hint.startswith("Hint: "), (text, done.stderr)
        assert more == [], (text, done.stderr)
        assert SECRET not in done.stderr
        for word in ("it.toml", *named):
            assert word in f"{error} {hint}", (text, done.stderr)


def taken(kind: str, texts: Iterable[str], folder: Path) -> list[str]:
    """What is said of each: all are good."""
    texts = list(texts)
    said = []
    for text, done in zip(texts, read(kind, texts, folder), strict=True):
        assert done.returncode == 0, (text, done.stderr)
        said.append(done.stdout + done.stderr)
    return said


def top(line: str) -> str:
    """A proxy's file with this line at its top."""
    return f"{line}\n{UPSTREAM}"


def below(lines: str) -> str:
    """One with these after its upstream."""
    return f"{UPSTREAM}{lines}"


# --- the proxy's settings ----------------------------------------------------------------------------


def test_everything_that_a_proxys_file_may_say_is_taken(tmp_path: Path) -> None:
    everything = """
host = "0.0.0.0"
port = 9000
admin_host = "::1"
admin_port = 9100
workers = 2
keys_file = "keys"
paths = ["/tokenize", "/v1/audio/transcriptions"]
media_hosts = ["images.Example.com", "*"]
drain = 0
[[upstream]]
name = "gpu-1"
url = "https://10.0.0.4:8443/"
key_env = "RED"
concurrency = 8
probes = false
[[upstream]]
url = "10.0.0.5"
fallback = true
model = "small"
[[team]]
name = "red"
key_env = "RED"
concurrency = 4
queue = 0
priority = -1
max_prompt_tokens = 1000
max_output_tokens = 100
pool = "shared"
policy = "declared"
[[team]]
name = "blue"
[cache]
policy = "declared"
ttl = "10m"
memory = 1000000
file = "answers.db"
file_size = "8GB"
redis_timeout = "20ms"
redis_wait = "5s"
max_answer = "1MiB"
replay = 50
epoch = "change"
inert = ["user", "metadata"]
longest_flight = "10m"
obeys_upstream = false
asks_usage = false
[admission]
concurrency = 32
queue = 100
wait = 1.5
first_token = "none"
token_gap = "30s"
whole = "1h30m"
max_prompt_tokens = 8000
max_output_tokens = 4000
[routing]
affinity = true
look = "500ms"
stuck = 5
probe = "2s"
back = "1s"
retries = 0
[front]
header_size = "32KiB"
headers = 50
body_size = "1MiB"
held = "2MiB"
header_time = "5s"
body_time = "6s"
idle = "7s"
stall = "8s"
connections = 100
[tell]
log = "-"
log_prompts = true
database = "t.db"
metrics_on_port = true
"""
    (tmp_path / "it.toml").write_text(everything)
    (tmp_path / "keys").write_text("red key-1\nblue key-2\n")
    (tmp_path / "keys").chmod(0o600)
    done = run(*words("proxy", Path("it.toml")), cwd=tmp_path, env={"RED": "key"})
    assert done.returncode == 0, done.stderr
    said = done.stderr
    # an address is completed, and a slash at its end left out
    assert "http://0.0.0.0:9000 in front of https://10.0.0.4:8443, http://10.0.0.5:8000\n" in said
    assert "temperature 0 or a seed are kept for 10 min, in memory and `answers.db`" in said
    assert "Teams: red, blue" in said
    assert "Admin: http://::1:9100/metrics" in said


def test_what_a_proxys_file_does_not_say_has_a_default_and_a_flag_goes_over_it(
    tmp_path: Path,
) -> None:
    plain, none, near = taken(
        "proxy",
        [
            UPSTREAM,
            below('[cache]\nttl = "none"\nfile = "none"\npolicy = "all"'),
            '[[upstream]]\nurl = "http://127.0.0.1:8001/v1"\n[[upstream]]\nurl = "localhost:8002"',
        ],
        tmp_path,
    )
    assert "http://127.0.0.1:8000 in front of http://10.0.0.4:8000\n" in plain
    assert "Every complete answer is kept for 1 h, in memory and `data/proxy-cache.db`," in plain
    assert "Admin: http://127.0.0.1:8001/metrics" in plain
    assert "Every complete answer is kept without end, in memory, and" in none
    # the admin makes room for servers on the next ports
    assert "in front of http://127.0.0.1:8001, http://localhost:8002\n" in near
    assert "Admin: http://127.0.0.1:8003/metrics" in near

    (tmp_path / "it.toml").write_text(below('[cache]\nttl = "1h"\npolicy = "off"'))
    flags = ("--port", 7000, "--policy", "all", "--ttl", "10m", "--upstream", "big=10.0.0.9")
    over = run(*words("proxy", Path("it.toml")), *flags, "--no-cache-file", cwd=tmp_path)
    assert over.returncode == 0, over.stderr
    assert "http://127.0.0.1:7000 in front of http://10.0.0.9:8000\n" in over.stderr
    assert "is kept for 10 min, in memory, and" in over.stderr


WRONG_PROXY: list[Case] = [
    ("port = ", ("no TOML",)),
    ("a = " + "[" * 5000, ("no TOML",)),
    ("port = " + "9" * 5000, ("no TOML",)),
    ("port = 8000", ("names no upstream", "[[upstream]]", "--upstream")),
    # a name nobody knows: which one is meant, or where it belongs
    (top("prot = 1"), ("unknown key `prot`", "`port`")),
    (below("[cahce]"), ("unknown key `cahce`", "`cache`")),
    (below("[cache]\ntll = 5"), ("[cache]", "unknown key `tll`", "`ttl`")),
    (below("[cache]\nttl_s = 5"), ("[cache]", "unknown key `ttl_s`", "`ttl`")),
    (top("ttl = 5"), ("unknown key `ttl`", "[cache]")),
    (below("[tell]\nqueue = 5"), ("[tell]", "unknown key `queue`", "[admission]", "[[team]]")),
    (below("ulr = 1"), ("upstream 1", "unknown key `ulr`", "`url`")),
    (top('"a\\nb\\u001b[2J" = 1'), ("unknown key `a",)),
    # one thing where another belongs
    (top("cache = 5"), ("`cache`",)),
    (top("team = 5"), ("`team`", "[[team]]")),
    (top('port = "80"'), ("`port`", "0 to 65,535")),
    (below("[tell]\nlog_prompts = 1"), ("`tell.log_prompts`", "true")),
    (below("[cache]\nttl = '5'"), ("`cache.ttl`", "`90s`")),
    (below("[cache]\nttl = nan"), ("`cache.ttl`",)),
    (below("[cache]\nmemory = 1.5"), ("`cache.memory`", "`8GiB`")),
    (below("[cache]\npolicy = 'declard'"), ("`cache.policy`", "`all`", "`off`", "`declared`")),
    (below("[cache]\nreplay = 'fast'"), ("`cache.replay`", "`instant`")),
    (below("[cache]\nmemory = 'none'"), ("`cache.memory`",)),
    (top("paths = '/tokenize'"), ("`paths`", "list")),
    (top('keys_file = "a\\nb"'), ("`keys_file`", "one line")),
    (top("host = 'http://h'"), ("`host`", "127.0.0.1")),
    # what must be there
    ('[[upstream]]\nname = "x"', ("upstream 1", "`url`")),
    (below("[[team]]\nkey_env = 'RED'"), ("team 1", "`name`")),
    # values of their own kind
    ('[[upstream]]\nurl = "http://h:1/api"', ("upstream 1", "`url`", "has a path")),
    (f'[[upstream]]\nurl = "http://user:{SECRET}@h:1"', ("upstream 1", "`url`", "user or password")),
    (below("name = 'a b'"), ("upstream 1", "`name`")),
    (below("[[team]]\nname = 'a/b'\nkey_env = 'RED'"), ("team 1", "`name`")),
    (below(f"key_env = 'sk-{SECRET}'"), ("upstream 1", "`key_env`", "environment variable")),
    (below(f"[cache]\nredis_env = 'redis://:{SECRET}@h'"), ("`cache.redis_env`", "environment variable")),
    (top("paths = ['/a/../b']"), ("`paths`", "`/a/../b` is no plain path")),
    (top("paths = ['/v1/chat/completions']"), ("`paths`", "forwarded already")),
    (top("paths = ['/v1/load_lora_adapter']"), ("`paths`", "never forwarded")),
    (top("paths = ['/a', '/a']"), ("`paths`", "twice")),
    (top("media_hosts = ['http://h']"), ("`media_hosts`", "no host's name")),
    (below("[cache]\ninert = ['user', 'temperature']"), ("`cache.inert`", "`temperature` changes the answer")),
    (below("[cache]\ninert = ['cache_salt']"), ("`cache.inert`", "`cache_salt` changes the answer")),
    # what does not go together
    (below(UPSTREAM), ("`10.0.0.4:8000` stands twice",)),
    (below(f"{UPSTREAM}name = 'other'"), ("`http://10.0.0.4:8000` stands twice",)),
    (below("fallback = true"), ("every upstream is a fallback",)),
    (below("model = 'other'"), ("`10.0.0.4:8000` has a `model` and is no fallback",)),
    (below(TEAM + TEAM), ("team `red` stands twice",)),
    (below(TEAM + TEAM.replace("red", "blue")), ("variable `RED` stands twice",)),
    (below("[[team]]\nname = 'red'"), ("team `red` has no key", "key_env")),
    (top("keys_file = 'k'"), ("`keys_file` is set and there is no team",)),
    (top("port = 5\nadmin_port = 5"), ("`port` and `admin_port` are both 5",)),
    (top("port = 65535"), ("no port is above `port`", "admin_port")),
    (top('host = "10.0.0.4"\nport = 8000'), ("`10.0.0.4:8000` is where this proxy listens", "`port`")),
    (top('admin_host = "10.0.0.4"\nadmin_port = 8000'), ("`10.0.0.4:8000` is where this proxy has its admin", "`admin_port`")),
    (below("[front]\nheld = '1MiB'"), ("`front.held` is less than `front.body_size`",)),
]  # fmt: skip


def test_a_mistake_in_a_proxys_file_gets_one_error_that_names_it_and_a_way_out(
    tmp_path: Path,
) -> None:
    refused("proxy", WRONG_PROXY, tmp_path)


ENDS = [
    # where, key, the least, less than that, the most, more than that
    ("", "port", "0\nadmin_port = 0", "-1", "65535\nadmin_port = 1", "65536"),
    ("", "workers", "1", "0", "64", "65"),
    ("", "drain", "0", "-1", "3600", "3601"),
    ("[cache]", "ttl", "0.001", "0.0009", "'3650d'", "'3651d'"),
    ("[cache]", "memory", "1", "0", "'1024TiB'", "'1025TiB'"),
    ("[routing]", "look", "0.05", "0.04", "60", "61"),
    ("[admission]", "queue", "0", "-1", "1000000", "1000001"),
    ("[front]", "header_size", "1024", "1023", "'16MiB'", "'17MiB'"),
]


def with_each(side: int) -> str:
    """A proxy's file with this column of ENDS."""
    tables = dict.fromkeys(row[0] for row in ENDS if row[0])
    lines = [f"{row[1]} = {row[side]}" for row in ENDS if not row[0]] + [UPSTREAM]
    for table in tables:
        lines += [table, *(f"{row[1]} = {row[side]}" for row in ENDS if row[0] == table)]
    return "\n".join(lines)


def test_the_ends_of_each_range_belong_to_it(tmp_path: Path) -> None:
    taken("proxy", [with_each(2), with_each(4)], tmp_path)


BEYOND: list[Case] = [
    (
        below(f"{table}\n{key} = {value}") if table else top(f"{key} = {value}"),
        (f"`{table[1:-1]}.{key}`" if table else f"`{key}`",),
    )
    for table, key, _, less, _, more in ENDS
    for value in (less, more)
]


def test_nothing_beyond_the_ends_of_a_range_is_taken(tmp_path: Path) -> None:
    refused("proxy", BEYOND, tmp_path)


# --- stacks ------------------------------------------------------------------------------------------


def test_everything_that_a_stack_may_say_is_taken(tmp_path: Path) -> None:
    (said,) = taken(
        "stack",
        [
            """
folder = "f"
database = "none"
preflight = false
[[engine]]
name = "q"
kind = "sim"
model = "fp8"
served_name = "qwen"
port = 9001
spare_port = 9002
host = "127.0.0.1"
gpus = 1
key_env = "RED"
vllm = "/v/bin/vllm"
ready = "30m"
team = "red"
[engine.env]
OMP_NUM_THREADS = 2
[engine.flags]
max_num_seqs = 4
enforce-eager = true
speculative-config = { method = "ngram", num_speculative_tokens = 3 }
cudagraph-capture-sizes = [1, 2, 4]
[[engine]]
kind = "sim"
model = "fp8"
[warm]
concurrency = [1, 8]
profile = "contest"
max_tokens = 8
stream = "none"
structured = true
long_prompts = true
tolerance = 0.5
rounds = 2
limit = "2m"
[guard]
look = "500ms"
stuck = 45
answer = "20s"
ask = "1m"
refused = "5s"
backoff = "1s"
backoff_most = "30s"
restarts = 3
restarts_time = "5m"
stop = "5s"
[proxy]
port = 7000
[proxy.cache]
ttl = "10m"
[[proxy.team]]
name = "red"
key_env = "RED"
"""
        ],
        tmp_path,
    )
    assert "Engine q: fp8, by the simulator, at http://127.0.0.1:9001, its successors in turn at 9002" in said  # fmt: skip
    # the second has its model's name, and takes free ports above the proxy's
    assert "Engine fp8: fp8, by the simulator, at http://127.0.0.1:70" in said
    assert "Proxy on http://127.0.0.1:7000 in front of http://127.0.0.1:9001, " in said
    assert "is kept for 10 min, in memory and `f/proxy-cache.db`" in said
    assert "Teams: red" in said


def test_a_stack_may_go_without_a_proxy_and_names_twin_engines_apart(tmp_path: Path) -> None:
    alone, two = taken("stack", [f"proxy = false\n{ENGINE}", ENGINE + ENGINE], tmp_path)
    assert "Proxy" not in alone
    assert "successors" not in alone
    assert "Engine fp8: " in two
    assert "in memory and `data/serve/proxy-cache.db`" in two
    assert "Engine fp8-2: " in two


def test_flags_of_a_stack_go_over_its_presets_and_its_stored_answers_outlive_a_restart(
    tmp_path: Path,
) -> None:
    engine = '[[engine]]\nmodel = "org/One"\npreset = "throughput"\n'
    flags = '[engine.flags]\nmax_num_seqs = 7\nspeculative-config = { method = "ngram" }\n'
    (tmp_path / "stack.toml").write_text(f"{engine}{flags}")
    done = run("deploy", "compose", "stack.toml", "--out", "out", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    written = (tmp_path / "out" / "compose.yaml").read_text()
    told = [line.strip().removeprefix("- ") for line in written.splitlines()]
    for flag, value in (
        ('"--max-num-seqs"', '"7"'),
        ('"--max-num-batched-tokens"', '"16384"'),
        ('"--speculative-config"', '"{\\"method\\": \\"ngram\\"}"'),
    ):
        assert told.count(flag) == 1
        assert told[told.index(flag) + 1] == value, told
    assert '"--enable-prefix-caching"' in told
    assert 'epoch = "change"' in (tmp_path / "out" / "proxy" / "proxy.toml").read_text()


WRONG_STACK: list[Case] = [
    ("a = [", ("no TOML",)),
    ("", ("names no engine", "[[engine]]")),
    ("engine = 1", ("`engine`", "[[engine]]")),
    ("[[engine]]\n", ("engine 1 has no `model`",)),
    (f"foldr = 'x'\n{ENGINE}", ("unknown key `foldr`", "`folder`")),
    (f"{ENGINE}prot = 1", ("engine 1", "unknown key `prot`", "`port`")),
    (f"{ENGINE}[warm]\nlimits = 1", ("[warm]", "unknown key `limits`", "`limit`")),
    (f"{ENGINE}[warm]\nlimit = 'soon'", ("`warm.limit`", "`90s`")),
    (f"{ENGINE}[warm]\nconcurrency = [4, 2]", ("`warm.concurrency`", "[1, 2, 4, 8]")),
    (f"{ENGINE}[warm]\ntolerance = 0", ("`warm.tolerance`", "0.2")),
    (f"{ENGINE}[warm]\nrounds = 101", ("`warm.rounds`", "1 to 100")),
    (f"{ENGINE}[warm]\nstream = 1", ("`warm.stream`",)),
    (f"{ENGINE}[guard]\nrestarts = -1", ("`guard.restarts`", "0 to 1,000")),
    (f"{ENGINE}[guard]\nstop = 0", ("`guard.stop`",)),
    (ENGINE.replace('"sim"', '"smi"'), ("engine 1", "`kind`", "`sim`", "`vllm`")),
    (f"{ENGINE}port = 70000", ("engine 1", "`port`", "0 to 65,535")),
    (f"{ENGINE}name = 'a b'", ("engine 1", "`name`", "qwen")),
    (f"{ENGINE}key_env = 'sk-{SECRET}'", ("engine 1", "`key_env`", "environment variable")),
    ('[[engine]]\nmodel = "-x"', ("engine 1", "`model`")),
    (f"{ENGINE}[engine.env]\nVLLM_API_KEY = '{SECRET}'", ("engine 1", "`env`", "key_env")),
    (f'{ENGINE}[engine.env]\nA = "a\\u0000b"', ("engine 1", "`env`", "`A`")),
    (f"{ENGINE}[engine.env]\n'A B' = 1", ("engine 1", "`env`", "`A B`")),
    (f"{ENGINE}[engine.flags]\nport = 1", ("`port` is said by another key here",)),
    (f"{ENGINE}[engine.flags]\napi-key = '{SECRET}'", ("`api-key` is said by another key here", "`key_env`")),
    (f"{ENGINE}[engine.flags]\n'a b' = 1", ("engine 1", "`flags`", "`a b` is no flag")),
    (f"{ENGINE}[engine.flags]\nx = []", ("engine 1", "`flags`", "`x`")),
    (f"{ENGINE}[proxy]\nprot = 1", ("[proxy]", "unknown key `prot`", "`port`")),
    (f"{ENGINE}[proxy.cache]\nttl = 'x'", ("proxy", "cache.ttl`", "`90s`")),
    (f"proxy = true\n{ENGINE}", ("`proxy`", "proxy = false")),
    (f"{ENGINE}port = 8000\n[proxy]\nport = 8000", ("port 8000 is named twice",)),
    (f"{ENGINE}name = 'x'\n{ENGINE}name = 'x'", ("engine `x` stands twice",)),
    (f"{ENGINE}[proxy]\n{TEAM}".replace("[[team]]", "[[proxy.team]]").replace('key_env = "RED"', ""), ("team `red` has no key",)),
]  # fmt: skip


def test_a_mistake_in_a_stack_gets_one_error_that_names_it_and_a_way_out(tmp_path: Path) -> None:
    refused("stack", WRONG_STACK, tmp_path)


# --- sweeps ------------------------------------------------------------------------------------------


def test_everything_that_a_sweep_may_say_is_taken(tmp_path: Path) -> None:
    (said,) = taken(
        "sweep",
        [
            """
summary = "All of it"
look_at = ["ttft_p95_ms", "error_rate"]
blocks = 2
how = "grid"
profile = "mine"
stage = "model"
warm = false
[load]
users = 8
duration = "2m"
settle = "20s"
rate = 2.5
mix = 10
max_tokens = 64
canaries = 0.5
timeout = "30s"
processes = 2
start = "40s"
[base]
settings = { time_scale = 0.1 }
flags = { max-model-len = 512, enforce-eager = true, compilation-config = { level = 3 } }
env = { HF_HOME = "/x" }
gpus = "0"
vllm = "vllm"
key_env = "RED"
served_name = "tiny"
quantization = "fp8"
asked = "json"
[[configurations]]
name = "fp8"
sim = "fp8"
[[configurations]]
name = "gptq"
sim = "gptq-int4"
[[levers]]
name = "batch"
values = [{ name = "16", flags = { max-num-seqs = 16 }, settings = { max_num_seqs = 16 } }]
[plan]
gpu = "a100-80gb"
gpus = 2
model = "no-such-model"
[asking]
requests = 4
concurrency = 2
max_tokens = 20
prompts = ["Name a city."]
schema = "{}"
[profiles.mine]
[[profiles.mine.prompts]]
text = "Name a city."
"""
        ],
        tmp_path,
    )
    assert "2 interleaved blocks" in said
    assert (
        "loaded by 8 users at 2.5 requests a second for 2 min with the prompts of `mine`; "
        "the first 20 s do not count" in said
    )
    assert "batch 16" in said
    assert "After each load 4 requests for JSON" in said
    assert "Look at: TTFT p95, error rate." in said


def test_a_fifth_of_a_sweeps_load_settles_and_ten_seconds_at_most(tmp_path: Path) -> None:
    short, long = taken("sweep", [f"{ONE}[load]\nduration = '20s'", ONE], tmp_path)
    assert "32 users for 20 s with the prompts of `contest`; the first 4 s do not count" in short
    assert "32 users for 1 min with the prompts of `contest`; the first 10 s do not count" in long


WRONG_SWEEP: list[Case] = [
    ("a = [", ("TOML",)),
    ("", ("no configuration and no lever",)),
    (f"blcks = 2\n{ONE}", ("unknown key `blcks`", "`blocks`")),
    (f"blocks = 0\n{ONE}", ("`blocks`", "1 to 100")),
    (f"blocks = 101\n{ONE}", ("`blocks`", "1 to 100")),
    (f"how = 'gird'\n{ONE}", ("`how`", "`grid`")),
    (f"warm = 1\n{ONE}", ("`warm`", "true")),
    (f"look_at = []\n{ONE}", ("`look_at`",)),
    (f"load = 5\n{ONE}", ("`load`",)),
    (f"{ONE}[load]\nuser = 5", ("load", "unknown key `user`", "`users`")),
    (f"{ONE}[load]\nusers = 0", ("load", "users`", "1 to 1,000,000")),
    (f"{ONE}[load]\nmix = 101", ("load", "mix`", "0 to 100")),
    (f"{ONE}[load]\nprocesses = 257", ("load", "processes`", "1 to 256")),
    (f"{ONE}[load]\nrate = 0", ("load", "rate`")),
    (f"{ONE}[load]\ncanaries = -1", ("load", "canaries`")),
    (f"{ONE}[load]\nduration = 'long'", ("load", "duration`", "duration", "s`")),
    (f"{ONE}[load]\nduration = '10s'\nsettle = '10s'", ("`settle` leaves nothing of `duration`",)),
    (ONE + ONE, ("`fp8` stands twice",)),
    ("[[configurations]]\nsim = 'fp8'", ("configurations", "`name`")),
    ("[[configurations]]\nname = 'a/b'\nsim = 'fp8'", ("configurations", "`name`")),
    (f"{ONE}simm = 'fp8'", ("configurations", "unknown key `simm`", "`sim`")),
    (f"{ONE}asked = 'jsn'", ("configurations", "`asked`", "`json`")),
    (f"{ONE}flags = 5", ("configurations", "`flags`")),
    (f"{ONE}tiny = 'yes'", ("configurations", "`tiny`", "true")),
    (f"{ONE}[[levers]]\nname = 'batch'", ("lever", "`values`")),
    (f"{ONE}[[levers]]\nvalues = [{{name = '16'}}]", ("lever", "`name`")),
    (f"{ONE}[plan]\ngpus = 0", ("plan", "gpus`")),
    (f"{ONE}[asking]\nprompts = ['a']\nschema = '{{'", ("asking", "schema`", "JSON")),
    (f"{ONE}[asking]\nschema = '{{}}'", ("asking", "prompts`")),
    (f"{ONE}[profiles]\nmine = 5", ("profiles", "mine")),
    (f"{ONE}[profiles.mine]\nprompt = 5", ("profiles.mine", "unknown key `prompt`", "`prompts`")),
]  # fmt: skip


def test_a_mistake_in_a_sweep_gets_one_error_that_names_it_and_a_way_out(tmp_path: Path) -> None:
    refused("sweep", WRONG_SWEEP, tmp_path)


# --- what the documents and the catalog show ---------------------------------------------------------


@pytest.mark.parametrize("kind", ["proxy", "stack"])
def test_the_files_in_the_manual_are_good(kind: str, tmp_path: Path) -> None:
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    (text,) = (
        block.split("```", 1)[0]
        for page in pages
        for block in page.read_text().split("```toml\n")[1:]
        if block.startswith(f"# {kind}.toml")
    )
    (tmp_path / "it.toml").write_text(text)
    names = ("VLLM_API_KEY", "SPARE_KEY", "RED_KEY", "BLUE_KEY")
    keys = {name: f"key-{name}" for name in names if name in text}
    done = run(*words(kind, Path("it.toml")), cwd=tmp_path, env=keys)
    assert done.returncode == 0, done.stderr
