"""The ranks' part of ``smcoll compare``."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from smcoll.algorithms import ALGORITHMS
from smcoll.bench.points import points_of
from smcoll.tuning.select import SHARED_HEAP

HEAP = "smcoll heap"  # the contender whose arrays may be used where they lie


@dataclass(frozen=True)
class CompareTask:
    """What to measure; travels to the ranks as JSON."""

    collectives: list[str]
    sizes: list[int]
    settings: dict  # of measure.Settings
    algorithms: list[str] = field(default_factory=lambda: ["auto"])
    memory: int = 0  # bytes that all ranks' buffers may take; 0: any
    thread_level: str = "multiple"
    config: dict = field(default_factory=dict)  # of smcoll.Config
    heap: bool = False  # all arrays in shared heaps; smcoll with and without direct access

    def points(self) -> Iterator[tuple[str, int]]:
        """Each (collective, bytes); a barrier has no bytes."""
        return points_of(self.collectives, self.sizes)

    def rows(self) -> int:
        """How many rows there will be, if memory suffices for all."""
        return sum(len(self.contenders(collective)) for collective, _ in self.points())

    def algorithms_of(self, collective: str) -> list[str]:
        """Those wanted that this collective has; what smcoll chooses where it has none of them."""
        known = ("auto", *ALGORITHMS.get(collective, ()))
        return [name for name in self.algorithms if name in known] or ["auto"]

    def contenders(self, collective: str) -> dict[str, dict]:
        """Name of each of smcoll's rows for a collective: the settings that make it."""
        chosen = {"smcoll" if name == "auto" else f"smcoll {name}":
                  {} if name == "auto" else {"algorithms": f"{collective}={name}"}
                  for name in self.algorithms_of(collective)}
        if self.heap and collective != "barrier":
            return {HEAP: {"heap": True}} | chosen
        return chosen

    def measure(self, comm, report: Callable[[dict], None]) -> dict:
        """Measure on the ranks of ``comm``; ``report(row)`` is called on rank 0. Returns the facts
        about this job that belong to its record.
        """
        from mpi4py import MPI

        import smcoll
        from smcoll.bench import measure
        from smcoll.bench.workloads import bytes_of_buffers

        if self.heap:
            use_heaps(smcoll.Config(heap=True, **self.config))
        plain = MPI.Intracomm.Dup(MPI.Intracomm(comm))
        contenders = [measure.methods_of("mpi", plain)]
        bench = measure.Bench(comm, contenders, measure.Settings(**self.settings))
        facts = facts_about_job(MPI, bench)
        accelerated: dict[tuple, smcoll.Comm] = {}
        # The first second of a job is slow whatever runs in it: ranks settle on their cores.
        bench.measure("allreduce", 1024)
        for collective, nbytes in self.points():
            needed = bench.ranks * bytes_of_buffers(collective, nbytes, bench.ranks)
            if self.memory and needed > self.memory:
                facts["left_out"].append(f"{collective} of {nbytes} bytes: its buffers would take "
                                         f"{needed} bytes of memory")
                continue
            chosen = {}
            for name, setting in self.contenders(collective).items():
                key = tuple(setting.items())
                if key not in accelerated:
                    # While programs learn, rows would mix what is tried and what is kept.
                    learn = os.environ.get("SMCOLL_LEARN", "use")
                    config = smcoll.Config(**({"heap": False, "learn": learn} | self.config
                                              | setting))
                    accelerated[key] = smcoll.Comm(comm, config)
                chosen[name] = accelerated[key]
            bench.contenders = [contenders[0], *(
                measure.methods_of(name, one) for name, one in chosen.items())]
            result = bench.measure(collective, nbytes)
            for name, one in chosen.items():
                explanation = one.explain(collective, nbytes=nbytes)
                if bench.control.Get_rank() == 0:
                    report(row_of(result, name, explanation))
        bench.close()
        plain.Free()
        for one in accelerated.values():
            one.Free()
        return facts


def use_heaps(config) -> None:
    """All arrays that are made from now on lie in shared heaps. smcoll.Error if they can't."""
    import smcoll
    from smcoll.memory import heap_arrays

    if not heap_arrays.use(config):
        raise smcoll.Error("no shared heap can be had")


def facts_about_job(MPI, bench) -> dict:
    """Ranks, their nodes and CPUs, MPI's version and thread level."""
    return {
        "ranks": bench.ranks,
        "nodes": nodes_of(bench.control),
        "placement": bench.placement(),
        "thread_level": _thread_level(MPI),
        "library": MPI.Get_library_version().split("\0")[0].strip(),
        "left_out": [],
    }


def nodes_of(comm) -> list[dict]:
    """Of each node its host's name, its ranks, and how many cores these may use. Collective."""
    import os

    from smcoll.internode.placement import Placement
    from smcoll.launch import launch
    from smcoll.topology import node

    name = " ".join([os.uname().nodename, os.environ.get("SMCOLL_NODE", "")]).rstrip()
    everyone = comm.allgather((node.identity(), name, node.allowed_cpus()))
    place = Placement([identity for identity, _, _ in everyone])
    mine = place.members[place.node_of[comm.Get_rank()]]
    # Which CPUs are one core, only the host itself knows.
    cores = comm.allgather(len(launch.cores(sorted(
        {cpu for rank in mine for cpu in everyone[rank][2]}))))
    return [{"host": everyone[ranks[0]][1], "ranks": ranks, "cores": cores[ranks[0]]}
            for ranks in place.members]


def algorithm_shown(contender: str, explanation) -> str:
    """With what becomes of arrays in shared heaps, where the algorithm's name does not say it."""
    if contender != HEAP or explanation.algorithm == SHARED_HEAP:
        return explanation.algorithm
    direct = explanation.nbytes >= explanation.parameters.get("in_place_from", math.inf)
    return f"{explanation.algorithm}, {'in place' if direct else 'staged'}"


def row_of(result, name: str, explanation) -> dict:
    """One row of the table, as in the JSON: the contender called ``name`` beside MPI."""
    row = {"collective": result.collective, "bytes": result.nbytes, "ranks": result.ranks}
    for key, contender in (("mpi", "mpi"), ("smcoll", name)):
        row[f"{key}_us"] = result.median(contender)
        row[f"{key}_us_min"] = min(result.times[contender])
        row[f"{key}_us_max"] = max(result.times[contender])
    # Wrong results are never faster or slower than anything.
    wrong = False in (result.valid["mpi"], result.valid[name])
    ratios = (None, None, None) if wrong else result.ratio("mpi", name)
    row["ratio"], row["ratio_low"], row["ratio_high"] = ratios
    trips = [ns for ns in result.round_trips if ns is not None]
    return row | {
        "distance": result.state(),
        "round_trip_ns": [min(trips), max(trips)] if trips else None,
        "algorithm": algorithm_shown(name, explanation),
        "path": explanation.path,
        "parameters": explanation.parameters,
        "reason": explanation.reason,
        "valid": result.valid[name],
        "mpi_valid": result.valid["mpi"],
        "problems": [text for text in result.problems if text.startswith(
            (f"{name} {result.collective} ", f"mpi {result.collective} "))],
        "iterations": result.iterations,
        "repetitions": len(result.times[name]),
    }


def _thread_level(MPI) -> str:
    names = ("single", "funneled", "serialized", "multiple")
    return {getattr(MPI, f"THREAD_{name.upper()}"): name for name in names}[MPI.Query_thread()]
