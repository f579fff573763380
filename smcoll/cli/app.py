"""The commands and their options."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable, Mapping
from typing import Annotated, NamedTuple

import typer

from smcoll.base import __version__
from smcoll.cli.run_program import ProgramToRun, run_program
from smcoll.launch import launch

USE, MEASURE, TUNE = "Run and look", "Measure", "Tune"


class Command(NamedTuple):
    """``function`` in ``smcoll.cli.module``, and the part of the help that lists it."""

    module: str
    function: str
    panel: str
    settings: Mapping[str, bool] = {}


COMMANDS = {
    # What follows the program's name belongs to the program.
    "run": Command("run", "run_command", USE, {"allow_interspersed_args": False}),
    "info": Command("info", "info_command", USE),
    "compare": Command("compare", "compare_command", MEASURE),
    "sweep": Command("sweep", "sweep_command", MEASURE),
    "sweep-nodes": Command("sweep_nodes", "sweep_nodes_command", MEASURE),
    "top": Command("top", "top_command", USE),
    "tune": Command("tune", "tune_command", TUNE),
    "model": Command("model", "model_command", TUNE),
}


def show_version(wanted: bool) -> None:
    """``smcoll --version``."""
    if wanted:
        typer.echo(f"smcoll {__version__}")
        raise typer.Exit


def options_of_all(
    version: Annotated[bool, typer.Option(
        "--version", metavar="", show_default=False, callback=show_version, is_eager=True,
        help="Show smcoll's version.")] = False,
) -> None:
    """Shared-memory collectives for mpi4py."""


def app_of(names: Iterable[str] = COMMANDS) -> typer.Typer:
    """The program with these commands; what the others need is not imported."""
    # Plain tracebacks: they belong to the user's program more often than to this one.
    app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False,
                      help="Shared-memory collectives for mpi4py.",
                      context_settings={"help_option_names": ["-h", "--help"]})
    app.callback()(options_of_all)
    for name in names:
        command = COMMANDS[name]
        module = importlib.import_module(f"smcoll.cli.{command.module}")
        app.command(name, context_settings=dict(command.settings), rich_help_panel=command.panel)(
            getattr(module, command.function))
    return app


def run_command_line() -> None:
    """Parse, run, exit."""
    word = sys.argv[1] if len(sys.argv) > 1 else ""
    # All of them where help, or a word that is none of them, is to list them.
    app = app_of([word] if word in COMMANDS else COMMANDS)
    try:
        app(prog_name="smcoll")
    except launch.LaunchError as error:
        sys.exit(f"smcoll: {error}")
    except ProgramToRun as found:
        program, kind = found.args
    # The option parser turns some exceptions into exit codes: a user's program has to run outside
    # of it.
    run_program(program, kind)
