"""The ranks' part of ``smcoll compare``: measures, and rank 0 appends each row to a file."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from .run_program import end_job


@dataclass(frozen=True)
class Task:
    """What to measure; travels to the ranks as JSON."""

    collectives: list[str]
    sizes: list[int]
    settings: dict  # of measure.Settings
    config: dict  # of smcoll.Config
    thread_level: str = "multiple"

    def points(self) -> Iterator[tuple[str, int]]:
        """Each (collective, bytes); a barrier has no bytes."""
        for collective in self.collectives:
            for nbytes in [0] if collective == "barrier" else self.sizes:
                yield collective, nbytes


def measure_task(comm, task: Task, report: Callable[[dict], None]) -> dict:
    """Measure on the ranks of ``comm``; ``report(row)`` is called on rank 0. Returns the facts
    about this job that belong to its record.
    """
    from mpi4py import MPI

    import smcoll
    from smcoll import measure

    accelerated = smcoll.Comm(comm, config=smcoll.Config(**task.config))
    plain = MPI.Intracomm.Dup(MPI.Intracomm(comm))
    contenders = [measure.methods_of("mpi", plain), measure.methods_of("smcoll", accelerated)]
    bench = measure.Bench(comm, contenders, measure.Settings(**task.settings))
    facts = {
        "ranks": bench.ranks,
        "placement": bench.placement(),
        "thread_level": _thread_level(MPI),
        "library": MPI.Get_library_version().split("\0")[0].strip(),
    }
    for collective, nbytes in task.points():
        result = bench.measure(collective, nbytes)
        explanation = accelerated.explain(collective, nbytes=nbytes)
        if comm.Get_rank() == 0:
            report(row_of(result, explanation))
    bench.close()
    plain.Free()
    accelerated.Free()
    return facts


def row_of(result, explanation) -> dict:
    """One row of the table, as in the JSON."""
    row = {"collective": result.collective, "bytes": result.nbytes, "ranks": result.ranks}
    for name in ("mpi", "smcoll"):
        row[f"{name}_us"] = result.median(name)
        row[f"{name}_us_min"] = min(result.times[name])
        row[f"{name}_us_max"] = max(result.times[name])
    # Wrong results are never faster or slower than anything.
    wrong = False in result.valid.values()
    ratios = (None, None, None) if wrong else result.ratio("mpi", "smcoll")
    row["ratio"], row["ratio_low"], row["ratio_high"] = ratios
    return row | {
        "algorithm": explanation.algorithm,
        "path": explanation.path,
        "parameters": explanation.parameters,
        "reason": explanation.reason,
        "valid": result.valid["smcoll"],
        "mpi_valid": result.valid["mpi"],
        "problems": result.problems,
        "iterations": result.iterations,
        "repetitions": len(result.times["smcoll"]),
    }


def _thread_level(MPI) -> str:
    names = ("single", "funneled", "serialized", "multiple")
    return {getattr(MPI, f"THREAD_{name.upper()}"): name for name in names}[MPI.Query_thread()]


def rank_main(folder: str) -> None:
    """A rank of a job that ``smcoll compare`` started: task from, rows to files in ``folder``."""
    task = Task(**json.loads(Path(folder, "task.json").read_text()))

    import mpi4py

    mpi4py.rc.thread_level = task.thread_level
    from mpi4py import MPI

    try:
        with open(Path(folder, "rows.jsonl") if MPI.COMM_WORLD.Get_rank() == 0 else os.devnull,
                  "w") as rows:
            def report(record: dict) -> None:
                rows.write(json.dumps(record) + "\n")
                rows.flush()

            report({"meta": measure_task(MPI.COMM_WORLD, task, report)})
    except BaseException as error:
        end_job(error)
        raise


def write_task(folder: str, task: Task) -> None:
    """For ``rank_main``."""
    Path(folder, "task.json").write_text(json.dumps(asdict(task)))
