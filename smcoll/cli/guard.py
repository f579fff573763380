"""Questions before a command does what may take the machine down or spoil what it writes."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence

import psutil
import typer

from smcoll import config
from smcoll.cli.page import size
from smcoll.launch import hosts as named_hosts
from smcoll.launch import launch
from smcoll.launch.hosts import Host
from smcoll.segment import memory_cost
from smcoll.topology import node

RANKS_A_CORE = 8
# Of its own: Python, numpy and mpi4py 25 MiB, and what the MPIs keep for each rank.
RANK_BYTES = 40 << 20


def ask(problem: str, question: str, yes: bool) -> None:
    """Goes on where ``yes`` or somebody at the terminal says so; else the command ends."""
    if yes:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise typer.BadParameter(f"{problem} (--yes: all the same)")
    typer.echo(f"smcoll: {problem}", err=True)
    if not typer.confirm(question, err=True):
        raise typer.Exit(1)


def check_ranks(counts: Sequence[int], hosts: Sequence[Host], yes: bool) -> None:
    """Ask before so many ranks are started that a slip of the keyboard is likelier than a wish."""
    problem = too_many(max(counts), hosts)
    if problem:
        ask(problem, "Start them all the same?", yes)


def too_many(ranks: int, hosts: Sequence[Host] = ()) -> str:
    """Why so many ranks are too many for one of their machines, taken to be like this; ""."""
    most = ranks
    if hosts:
        with contextlib.suppress(ValueError):   # more than they take: told by who starts them
            most = max(count for _, count in named_hosts.share(hosts, ranks))
    cores = max(1, min(len(launch.cores(node.allowed_cpus())), int(node.cpu_quota())
                       if node.cpu_quota() < 1 << 20 else 1 << 20))
    if most > RANKS_A_CORE * cores:
        return f"{most} ranks on {cores} cores are more than {RANKS_A_CORE} a core"
    free = min(psutil.virtual_memory().available, node.memory_headroom())
    needed = most * RANK_BYTES
    with contextlib.suppress(ValueError):       # of a setting: told by the ranks
        needed += memory_cost(config.Config(), most)["total"]
    if needed > free / 2:
        return (f"{most} ranks need about {size(needed)}, more than half of the "
                f"{size(free)} of memory that are free")
    return ""
