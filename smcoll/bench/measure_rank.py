"""A rank of a job that measures (see jobs.py): its task is an argument, its rows are printed."""

from __future__ import annotations

import importlib
import json

from smcoll.mpi.abort import end_job

# In front of each record on rank 0's standard output (RFC 7464): libraries print there, too.
RECORD_MARK = "\x1e"


def rank_main(description: str) -> None:
    """Measure what ``description`` (JSON) says; rank 0 prints a line for each row.

    ``kind``: the task's class as ``module:name``; ``task``: its fields.
    """
    described = json.loads(description)
    module, _, name = described["kind"].partition(":")
    task = getattr(importlib.import_module(module), name)(**described["task"])

    import mpi4py

    mpi4py.rc.thread_level = task.thread_level
    from mpi4py import MPI

    is_first = MPI.COMM_WORLD.Get_rank() == 0

    def report(record: dict) -> None:
        if is_first:
            print(f"{RECORD_MARK}{json.dumps(record)}", flush=True)

    try:
        report({"meta": task.measure(MPI.COMM_WORLD, report)})
    except BaseException as error:
        end_job(error)
        raise
