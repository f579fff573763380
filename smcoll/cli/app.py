"""The commands and their options."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from smcoll.base import __version__
from smcoll.cli import compare, info, model, run, sweep, sweep_nodes, top, tune
from smcoll.cli.run_program import run_program
from smcoll.launch import launch

# Plain tracebacks: they belong to the user's program more often than to this one.
app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False,
                  help="Shared-memory collectives for mpi4py.",
                  context_settings={"help_option_names": ["-h", "--help"]})


def show_version(wanted: bool) -> None:
    """``smcoll --version``."""
    if wanted:
        typer.echo(f"smcoll {__version__}")
        raise typer.Exit


@app.callback()
def options_of_all(
    version: Annotated[bool, typer.Option(
        "--version", metavar="", show_default=False, callback=show_version, is_eager=True,
        help="Show smcoll's version.")] = False,
) -> None:
    """Shared-memory collectives for mpi4py."""


USE, MEASURE, TUNE = "Run and look", "Measure", "Tune"
app.command(
    "run",
    # What follows the program's name belongs to the program.
    context_settings={"allow_interspersed_args": False}, rich_help_panel=USE,
)(run.run_command)
app.command("info", rich_help_panel=USE)(info.info_command)
app.command("compare", rich_help_panel=MEASURE)(compare.compare_command)
app.command("sweep", rich_help_panel=MEASURE)(sweep.sweep_command)
app.command("sweep-nodes", rich_help_panel=MEASURE)(sweep_nodes.sweep_nodes_command)
app.command("top", rich_help_panel=USE)(top.top_command)
app.command("tune", rich_help_panel=TUNE)(tune.tune_command)
app.command("model", rich_help_panel=TUNE)(model.model_command)


def run_command_line() -> None:
    """Parse, run, exit."""
    try:
        app(prog_name="smcoll")
    except SystemExit as end:
        # The option parser turns some exceptions into exit codes: a user's program has to run
        # outside of it.
        if end.code or run.postponed is None:
            raise
    except launch.LaunchError as error:
        sys.exit(f"smcoll: {error}")
    program, kind = run.postponed
    run_program(program, kind)
