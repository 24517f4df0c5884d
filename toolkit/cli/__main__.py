"""`python -m toolkit.cli`: the command line from a plain checkout, where no `toolkit` was installed."""

from toolkit.cli import main

main(prog_name="toolkit")
