"""Many command lines of `toolkit` for the price of one start; `programs.run_each` is how tests call it.

    python forks.py TOOLKIT < '[[["proxy", "--check"], "/folder/of/it"], ...]'

runs the script that `pip install` made for each of these lines, in a process forked off this one and in a folder that is its home too.
What one has imported this process imports for the next ones; it runs none of them itself. Prints
`[[exit code, standard output, standard error], ...]`.
"""

import gc
import importlib
import json
import os
import runpy
import sys
import tempfile
from contextlib import suppress


def _child(script: str, words: list[str], folder: str, files: list[int]) -> None:
    """Ends as the script ends, with whatever that prints last."""
    out, err, modules = files
    os.chdir(folder)
    os.environ["HOME"] = folder
    os.dup2(out, 1)
    os.dup2(err, 2)
    sys.argv = [script, *words]
    try:
        runpy.run_path(script, run_name="__main__")
        sys.exit(0)
    finally:
        os.write(modules, " ".join(sys.modules).encode())


def _run(script: str, words: list[str], folder: str) -> tuple[int, str, str]:
    with (
        tempfile.TemporaryFile() as out,
        tempfile.TemporaryFile() as err,
        tempfile.TemporaryFile() as modules,
    ):
        files = [out, err, modules]
        child = os.fork()
        if not child:
            _child(script, words, folder, [file.fileno() for file in files])
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        texts = []
        for file in files:
            file.seek(0)
            texts.append(file.read().decode())
    for name in texts[2].split():
        if name not in sys.modules:
            with suppress(Exception):
                importlib.import_module(name)
    gc.freeze()
    return code, texts[0], texts[1]


if __name__ == "__main__":
    lines = json.load(sys.stdin)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    print(json.dumps([_run(sys.argv[1], *line) for line in lines]))
