"""The command line. ``main`` is the entry point of ``smcoll`` and of ``python -m smcoll``."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command in ``sys.argv``.

    The first words for ranks of jobs that smcoll itself starts bypass the option parser, whose
    import would cost every rank a quarter of a second.
    """
    word = sys.argv[1] if len(sys.argv) > 1 else ""
    if word == "run-rank":
        from smcoll.cli.run_program import run_program

        run_program(sys.argv[3:], sys.argv[2])
    elif word == "measure-rank":
        from smcoll.bench.measure_rank import rank_main

        rank_main(sys.argv[2])
    else:
        from smcoll.cli.app import run_command_line

        run_command_line()
