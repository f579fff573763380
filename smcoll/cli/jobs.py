"""Jobs of ranks that measure: a task goes to them in a file, their rows come back in another."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from .. import config, launch
from . import info
from .selection import ONE_THREAD

POLL_SECONDS = 0.1


def run_job(task, ranks: int, layout: str | None, environment: dict[str, str],
            advance: Callable[[dict], None]) -> tuple[list[dict], dict]:
    """One mpiexec. Returns the rows, and the facts about the job that belong to its record."""
    with tempfile.TemporaryDirectory(prefix="smcoll-measure-") as folder, \
            tempfile.TemporaryFile("w+") as printed:
        Path(folder, "task.json").write_text(json.dumps({"kind": task.kind, "task": asdict(task)}))
        records: list[dict] = []
        position = 0

        def collect() -> None:
            nonlocal position
            file = Path(folder, "rows.jsonl")
            if not file.exists():
                return
            with open(file) as lines:
                lines.seek(position)
                while (line := lines.readline()).endswith("\n"):
                    records.append(json.loads(line))
                    advance(records[-1])
                    position = lines.tell()

        with launch.job(ranks, launch.own_command("measure-rank", folder), layout=layout,
                        environment={**ONE_THREAD, **environment}, stdout=printed, stderr=printed,
                        stdin=subprocess.DEVNULL) as process:
            while process.poll() is None:
                collect()
                time.sleep(POLL_SECONDS)
        collect()
        printed.seek(0)
        text = printed.read().strip()
    if process.returncode != 0 or not records or "meta" not in records[-1]:
        raise launch.LaunchError(f"the job of {ranks} ranks failed (exit code "
                                 f"{process.returncode}):\n{text[-4000:]}")
    if text:
        print(text, file=sys.stderr)
    *rows, last = records
    return rows, last["meta"]


@contextmanager
def progress_bar(title: str, total: int) -> Iterator[Callable[[dict], None]]:
    """A bar with the time left, on a terminal. Gives the function to call with each row."""
    errors = Console(stderr=True, highlight=False)
    if not errors.is_terminal:
        yield lambda record: None
        return
    with Progress(TextColumn(title), BarColumn(), MofNCompleteColumn(),
                  TextColumn("{task.description}"), TimeRemainingColumn(), console=errors,
                  transient=True) as progress:
        bar = progress.add_task("starting", total=total)

        def advance(record: dict) -> None:
            if "meta" not in record:
                progress.update(bar, advance=1,
                                description=f"{record['collective']} {record['bytes']}")

        yield advance


def inside_job(task) -> dict | None:
    """Under somebody's mpiexec: measure with these ranks. The record on rank 0, else None."""
    import mpi4py

    from .run_program import end_job

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
