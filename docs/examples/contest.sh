#!/usr/bin/env bash
# A contest in small, with simulated servers: look, time, load, rank, report. What it makes lies in ./contest.
# For your own hosts: write hosts.txt, and leave the fleet and `--non-neutral` out.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
seconds=${1:-60}
mkdir contest && cd contest

toolkit sim fleet alice=gptq-int4 bob=awq carol=fp8 dave=cached --time-scale 0.2 --out hosts.txt &
fleet=$!
trap 'kill "$fleet"; wait "$fleet" || true' EXIT
until [ -s hosts.txt ]; do sleep 0.2; done

toolkit scout hosts.txt
toolkit bench hosts.txt --num-prompts 16
toolkit blast hosts.txt --users 8 --duration "${seconds}s" --canaries 10 --non-neutral
toolkit board --json > standings.jsonl
run=$(toolkit runs --verb blast --json | head -n 1 | python3 -c 'import json, sys; print(json.load(sys.stdin)["run"])')
toolkit report "$run" --html report.html
python3 "$here/standings.py" < standings.jsonl
