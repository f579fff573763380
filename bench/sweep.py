"""Sweep algorithm x fan-in x fan-out x segment size x message size x placement of the ranks, as in
the figures of Graham & Shipman 2008.

    python bench/sweep.py -n 2,8 --collectives allreduce --layout compact --layout spread \\
        --json sweep.json --plot sweep.png

The same as ``smcoll sweep``; ``--help`` lists the options.
"""

import typer

from smcoll.cli.sweep import sweep_command

if __name__ == "__main__":
    typer.run(sweep_command)
