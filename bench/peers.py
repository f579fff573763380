"""smcoll beside the fastest of several MPIs, each in a Python environment of its own.

    python bench/peers.py ENVIRONMENT... [options of smcoll compare]
    python bench/peers.py ~/openmpi ~/mpich ~/intel -n 2,8 --collectives all --json peers.json

The same as ``smcoll compare --peers ENVIRONMENT,ENVIRONMENT...``.
"""

import itertools
import sys

import typer

from smcoll.cli.compare import compare_command

if __name__ == "__main__":
    environments = list(itertools.takewhile(lambda word: not word.startswith("-"), sys.argv[1:]))
    if environments:
        sys.argv[1:] = ["--peers", ",".join(environments), *sys.argv[1 + len(environments):]]
    typer.run(compare_command)
