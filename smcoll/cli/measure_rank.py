"""A rank of a job that measures (see jobs.py): task from a file, rows to a file."""

from __future__ import annotations

import json
import os
from pathlib import Path

from .compare_job import CompareTask
from .run_program import end_job
from .sweep_job import SweepTask
from .tune_job import TuneTask

TASKS = {task.kind: task for task in (CompareTask, SweepTask, TuneTask)}


def rank_main(folder: str) -> None:
    """Measure what ``folder``/task.json says; rank 0 appends each row to ``folder``/rows.jsonl."""
    description = json.loads(Path(folder, "task.json").read_text())
    task = TASKS[description["kind"]](**description["task"])

    import mpi4py

    mpi4py.rc.thread_level = task.thread_level
    from mpi4py import MPI

    try:
        with open(Path(folder, "rows.jsonl") if MPI.COMM_WORLD.Get_rank() == 0 else os.devnull,
                  "w") as rows:
            def report(record: dict) -> None:
                rows.write(json.dumps(record) + "\n")
                rows.flush()

            report({"meta": task.measure(MPI.COMM_WORLD, report)})
    except BaseException as error:
        end_job(error)
        raise
