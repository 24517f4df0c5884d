"""`toolkit completion`: the script that lets a shell complete the toolkit's words."""

import click

from toolkit.cli.help_page import Command


@click.command(
    "completion", cls=Command, short_help="Print the completion script for bash, zsh or fish."
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def command(context: click.Context, shell: str) -> None:
    """Print the script that lets your shell complete verbs, options, files, and names: profiles, presets,
    models, GPUs, runs. SHELL is bash, zsh or fish. Put the line for yours where your shell reads it first:

    \b
      eval "$(toolkit completion bash)"   in ~/.bashrc
      eval "$(toolkit completion zsh)"    in ~/.zshrc, below compinit
      toolkit completion fish | source    in ~/.config/fish/config.fish

    It completes the command called `toolkit`, which must be on the PATH: of an environment that is not
    active, say where it is: `PATH=$PATH:~/toolkit/.venv/bin`.
    """
    from click.shell_completion import get_completion_class

    completing = get_completion_class(shell)
    assert completing is not None, "click knows these shells"
    click.echo(completing(context.find_root().command, {}, "toolkit", "_TOOLKIT_COMPLETE").source())
