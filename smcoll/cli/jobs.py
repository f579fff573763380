"""Jobs of ranks that measure: a task goes to them, their rows come back."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TextIO

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from smcoll import config
from smcoll.bench.measure_rank import RECORD_MARK
from smcoll.cli import info, page
from smcoll.cli.selection import ONE_THREAD
from smcoll.cli.words import counted
from smcoll.launch import launch
from smcoll.launch.hosts import Host

POLL_SECONDS = 0.1


@dataclass(frozen=True)
class Where:
    """Where the ranks of jobs run."""

    layout: str | None = None  # as ``launch.place`` takes it; None: mpiexec's own
    hosts: Sequence[Host] = ()  # none: this machine

    @property
    def is_chosen(self) -> bool:
        """Whether it differs from what mpiexec does by itself."""
        return bool(self.layout or self.hosts)

    @property
    def title(self) -> str:
        """For tables and records."""
        return self.layout or "mpiexec's own"

    def options(self) -> list[str]:
        """That say the same to another smcoll."""
        return [*(["--layout", self.layout] if self.layout else []),
                *(["--hosts", ",".join(map(str, self.hosts))] if self.hosts else [])]


class Stopped(Exception):
    """Ctrl-C, SIGTERM or SIGHUP while a job ran: what it had measured by then."""

    def __init__(self, rows: list[dict], error: BaseException):
        super().__init__()
        self.rows = rows
        self.by, self.exit_code = stopped_by(error)


def stopped_by(error: BaseException) -> tuple[str, int]:
    """(what somebody did, a shell's exit code for it)."""
    if isinstance(error, launch.Terminated):
        return error.signal, error.code
    return "Ctrl-C", 128 + signal.SIGINT


def run_until_stopped(task, ranks: int, where: Where, environment: dict[str, str],
                      advance: Callable[[dict], None], meta: dict) -> tuple[list[dict], dict]:
    """As ``run_job``; where it is stopped, the rows so far, and ``meta`` says ``partial``."""
    try:
        return run_job(task, ranks, where, environment, advance)
    except Stopped as stop:
        meta["partial"], meta["exit_code"] = stop.by, stop.exit_code
        return stop.rows, {"ranks": ranks, "nodes": [], "left_out": [], "partial": True}


def run_job(task, ranks: int, where: Where, environment: dict[str, str],
            advance: Callable[[dict], None]) -> tuple[list[dict], dict]:
    """One mpiexec. Returns the rows, and the facts about the job that belong to its record; raises
    ``Stopped`` where somebody ends it.

    The task goes to the ranks as an argument and the rows come back on rank 0's standard output,
    since ranks on other hosts share no folder with this process.
    """
    kind = type(task)
    description = json.dumps({"kind": f"{kind.__module__}:{kind.__name__}", "task": asdict(task)})
    with tempfile.TemporaryFile("w+") as printed, tempfile.TemporaryFile("w+") as errors:
        records = RecordReader(printed, advance)
        try:
            with launch.job(ranks, launch.own_command("measure-rank", description),
                            layout=where.layout, hosts=where.hosts,
                            environment={**ONE_THREAD, **environment}, stdout=printed,
                            stderr=errors, stdin=subprocess.DEVNULL) as process:
                while process.poll() is None:
                    records.read()
                    time.sleep(POLL_SECONDS)
        except (KeyboardInterrupt, launch.Terminated) as error:
            records.read()
            raise Stopped([row for row in records.found if "meta" not in row], error) from None
        records.read()
        errors.seek(0)
        text = "\n".join([*records.others, errors.read().strip()]).strip()
    found = records.found
    if process.returncode != 0 or not found or "meta" not in found[-1]:
        raise launch.LaunchError(f"the job of {ranks} ranks failed (exit code "
                                 f"{process.returncode}):\n{text[-4000:]}")
    if text:
        print(text, file=sys.stderr)
    *rows, last = found
    return rows, last["meta"]


class RecordReader:
    """Takes the records out of what a job has printed so far; other lines are kept apart."""

    def __init__(self, file: TextIO, advance: Callable[[dict], None]):
        self.descriptor = file.fileno()
        self.advance = advance
        self.position = 0
        self.found: list[dict] = []
        self.others: list[str] = []

    def read(self) -> None:
        """What was added. Not by the file object: the job writes at the descriptor's position."""
        size = os.fstat(self.descriptor).st_size
        *lines, rest = os.pread(self.descriptor, size - self.position, self.position).split(b"\n")
        self.position = size - len(rest)
        for line in lines:
            # A terminal, which some launchers give to ranks, ends lines with "\r".
            before, mark, record = line.decode(errors="replace").rstrip("\r").rpartition(
                RECORD_MARK)
            if before:
                self.others.append(before)
            if mark:
                self.found.append(json.loads(record))
                self.advance(self.found[-1])
            elif record:
                self.others.append(record)


@contextmanager
def progress_bar(title: str, total: int) -> Iterator[Callable[[dict], None]]:
    """A bar with the time left, on a terminal. Gives the function to call with each row."""
    errors = Console(stderr=True, highlight=False)
    if not errors.is_terminal:
        yield lambda record: None
        return
    with Progress(SpinnerColumn(), TextColumn(title), BarColumn(), MofNCompleteColumn(),
                  TextColumn("{task.description}"), TimeElapsedColumn(), TimeRemainingColumn(),
                  console=errors, transient=True) as progress:
        bar = progress.add_task("starting", total=total)

        def advance(record: dict) -> None:
            if "meta" not in record:
                # Parameters of the model are no rows of the result.
                progress.update(bar, advance=0 if "parameter" in record else 1,
                                description=f"{record['collective']} {record['bytes']}")

        yield advance


# What validation and waiting add to the time budgets.
ADDED = 1.3


def announce(console: Console, what: str, counts: Sequence[int], jobs: int,
             seconds: float) -> None:
    """The first line of a command that measures; ``seconds``: all time budgets of all its jobs."""
    ranks = "the ranks of this job" if not counts else (
        f"{' and '.join(map(str, dict.fromkeys(counts)))} ranks")
    where = f" in {counted(jobs, 'job')}" if jobs else ""
    page.announce(console, f"{what} on {ranks}{where}",
                  jobs * page.SECONDS_A_JOB + ADDED * seconds)


def inside_job(task) -> dict | None:
    """Under somebody's mpiexec: measure with these ranks. The record on rank 0, else None."""
    import mpi4py

    from smcoll.mpi.abort import end_job

    mpi4py.rc.thread_level = task.thread_level
    from mpi4py import MPI

    rows: list[dict] = []
    try:
        mpi = launch.mpi_info()
        facts = task.measure(MPI.COMM_WORLD, rows.append)
    except BaseException as error:
        end_job(error)
        raise
    if MPI.COMM_WORLD.Get_rank() != 0:
        return None
    meta = describe(task, mpi)
    meta["layout"] = "by the launcher of this job"
    meta["jobs"].append(facts)
    return {"meta": meta, "rows": rows}


def describe(task, mpi: launch.MPIInfo) -> dict:
    """The record's meta: what was measured where."""
    return {
        "command": ["smcoll", *sys.argv[1:]],
        "date": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "versions": info.versions(),
        "mpi": {**asdict(mpi), "title": mpi.title},
        "machine": info.machine_facts() | {"load_average": os.getloadavg()},
        "task": asdict(task),
        "config": asdict(config.Config(**task.config)),
        "jobs": [],
    }
