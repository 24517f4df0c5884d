"""`python -m toolkit`: the command line, where no `toolkit` is on the PATH."""

from toolkit.cli import main

main(prog_name="toolkit")
