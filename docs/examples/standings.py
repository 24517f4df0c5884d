"""Standings for a slide: `toolkit board --json | python standings.py`. Each verb's `--json` prints one object a line."""

import json
import sys

for line in sys.stdin:
    row = json.loads(line)
    verdicts = ", ".join(each["code"] for each in row["verdicts"])
    rank = f"={row['rank']}" if row["tied"] else row["rank"]
    print(f"{rank!s:>4}  {row['name']:<12} {row['rps'] or 0:>8.1f} requests/s  {verdicts}")
