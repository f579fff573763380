"""Questions before a command does what may take the machine down or spoil what it writes."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Sequence
from statistics import median

import psutil
import typer

from smcoll import config
from smcoll.cli.words import size
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
        typer.echo(f"smcoll: {problem} (--yes: all the same)", err=True)
        raise typer.Exit(2)
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
        needed += memory_cost(config.Config().settled(most > cores), most)["total"]
    if needed > free / 2:
        return (f"{most} ranks need about {size(needed)}, more than half of the "
                f"{size(free)} of memory that are free")
    return ""


# ---------------------------------------------------------------------- a busy machine

BUSY = 0.1                  # the share of a core that others may have while it is measured
MOST_CORES_TRIED = 16
SPIN_SECONDS = 0.1


def busy_share() -> float:
    """The largest share of a core that somebody else takes: of a spin on each, the time not had.

    Not the load average, which still counts what ended a minute ago.
    """
    mine = os.sched_getaffinity(0)
    shares = []
    try:
        for core in launch.cores(node.allowed_cpus())[:MOST_CORES_TRIED]:
            os.sched_setaffinity(0, {core[0]})
            began, had = time.perf_counter(), time.thread_time()
            while (elapsed := time.perf_counter() - began) < SPIN_SECONDS:
                pass
            shares.append(1 - (time.thread_time() - had) / elapsed)
    finally:
        os.sched_setaffinity(0, mine)
    return max(shares)


def check_quiet(yes: bool) -> None:
    """Ask before a busy machine is measured for a table that decides in all later jobs."""
    if yes:
        return
    share = busy_share()
    if share > BUSY:
        time.sleep(1)               # something short?
        share = min(share, busy_share())
    if share > BUSY:
        ask(f"other processes take {100 * share:.0f} % of a core: what is measured now is noise, "
            "and the table is what all later jobs choose by", "Measure all the same?", yes)


# Of a quiet machine 10 to 40 %, of one under load 60 to 80 % (docs/model.md).
DOUBTFUL_ERROR = 0.5


def doubtful(rows: Sequence[dict]) -> str:
    """Why the measurements do not deserve a table; ""."""
    worst = ""
    for ranks in dict.fromkeys(row["ranks"] for row in rows):
        error = median(abs(row["error"]) for row in rows if row["ranks"] == ranks)
        if error > DOUBTFUL_ERROR:
            worst = (f"the model is {100 * error:.0f} % off in the median at {ranks} ranks, as on "
                     "a busy machine")
    return worst
