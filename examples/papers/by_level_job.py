"""The ranks' part of ``python examples/papers/by_level.py``."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from smcoll.tuning.model import hockney

# Names and predictions of what Open MPI's tuned component offers; numbers of its own, by
# collective, see ``ompi_info --param coll tuned --level 9``. Split binary is a Bcast only, in-order
# binary a Reduce only.
ALGORITHMS = {
    "linear": (hockney.flat_broadcast, {"bcast": 1, "reduce": 1}),
    "chain": (hockney.chain, {"bcast": 2, "reduce": 2}),
    "pipeline": (hockney.pipeline, {"bcast": 3, "reduce": 3}),
    "split_binary": (hockney.split_binary, {"bcast": 4}),
    "binary": (hockney.binary, {"bcast": 5, "reduce": 4}),
    "binomial": (hockney.binomial, {"bcast": 6, "reduce": 5}),
    "in_order_binary": (hockney.in_order_binary, {"reduce": 6}),
}
COLLECTIVES = ("bcast", "reduce")
PING_PONGS = 20


def environment(algorithm: str) -> dict[str, str]:
    """Open MPI's variables that make it use this algorithm in every communicator."""
    _, numbers = ALGORITHMS[algorithm]
    return {"OMPI_MCA_coll_tuned_priority": "100", "OMPI_MCA_coll_tuned_use_dynamic_rules": "1"} | {
        f"OMPI_MCA_coll_tuned_{collective}_algorithm": str(number)
        for collective, number in numbers.items()}


@dataclass(frozen=True)
class LevelsTask:
    """What to measure, with the algorithm that MPI was told; travels to the ranks as JSON."""

    algorithm: str
    collectives: list[str]
    sizes: list[int]
    settings: dict  # of measure.Settings
    topology: str  # of a made-up machine; "": this one, where it has levels
    thread_level: str = "multiple"
    config: dict = field(default_factory=dict)  # of smcoll.Config

    def points(self) -> Iterator[tuple[str, int]]:
        """Each (collective, bytes) that this algorithm is one of."""
        for collective in self.collectives:
            if collective in ALGORITHMS[self.algorithm][1]:
                for nbytes in self.sizes:
                    yield collective, nbytes

    def rows(self) -> int:
        """How many there will be."""
        return len(list(self.points()))

    def measure(self, comm, report: Callable[[dict], None]) -> dict:
        """Measure on the ranks of ``comm``: MPI's own collective, and a loop of it over levels."""
        import hierarchies
        from mpi4py import MPI

        import smcoll
        from smcoll.bench import measure
        from smcoll.bench.compare_job import facts_about_job

        plain = MPI.Intracomm.Dup(MPI.Intracomm(comm))
        machine = hierarchies.prepare_hardware(plain, self.topology)
        levels = hierarchies.by_hardware(plain)
        with smcoll.Comm(comm) as accelerated:
            contenders = [
                measure.methods_of("native", plain),
                measure.Contender("by level", lambda collective: LOOPS[collective](levels)),
                measure.methods_of("smcoll", accelerated)]
            bench = measure.Bench(comm, contenders, measure.Settings(**self.settings))
            facts = facts_about_job(MPI, bench) | {"levels": machine}
            largest = max(self.sizes)
            links = [link_of(bench.control, level, largest) for level in levels]
            flat = link_of(bench.control, plain, largest)
            facts["links"] = {"all ranks": flat, "by level": links}
            # The first second of a job is slow whatever runs in it: ranks settle on their cores.
            bench.measure(next(self.points())[0], 1024)
            for collective, nbytes in self.points():
                row = row_of(bench.measure(collective, nbytes), self.algorithm)
                row |= predicted(self.algorithm, nbytes, flat, links)
                if bench.control.Get_rank() == 0:
                    report(row)
            bench.close()
        for level in levels:
            if level and level is not plain:
                level.Free()
        plain.Free()
        return facts


# ---------------------------------------------------------------------- by level


def bcast_by_level(levels: list) -> Callable:
    """GJMM's Algorithm 4 for a Bcast of rank 0's: from the top level down."""
    def bcast(buffer, root=0):
        for comm in levels:
            if comm:
                comm.Bcast(buffer, 0)

    return bcast


def reduce_by_level(levels: list) -> Callable:
    """The same for a Reduce to rank 0, which is root of all levels: from the lowest up."""
    from mpi4py import MPI

    def reduce(send, recv, op, root=0):
        own = send
        for comm in reversed(levels):
            if not comm:
                return  # no root below, so not in this level
            if comm.Get_rank() != 0:
                comm.Reduce(own, None, op, 0)
                return
            comm.Reduce(MPI.IN_PLACE if own is recv else send, recv, op, 0)
            own = recv

    return reduce


LOOPS = {"bcast": bcast_by_level, "reduce": reduce_by_level}


# ---------------------------------------------------------------------- prediction


def link_of(control, comm, nbytes: int) -> tuple[int, float, float]:
    """(ranks, alpha in us, beta in us a byte) between first and last rank of a level. Collective.

    Of a level's communicators that of rank 0, as all of them are taken to be alike.
    """
    from mpi4py import MPI

    mine = (0, 0.0, 0.0)
    if comm:
        short, long = ping_pong(comm, 8), ping_pong(comm, max(nbytes, 4096))
        beta = max(long - short, 0.0) / (max(nbytes, 4096) - 8)
        mine = (comm.Get_size(), max(short - 8 * beta, 0.0), beta)
    return MPI.Intracomm.bcast(control, mine)


def ping_pong(comm, nbytes: int) -> float:
    """us of a message, one way."""
    import numpy as np

    buffer = np.zeros(nbytes, np.int8)
    rank, last = comm.Get_rank(), comm.Get_size() - 1
    times = []
    for _ in range(PING_PONGS):
        comm.Barrier()
        start = time.perf_counter()
        if rank == 0:
            comm.Send(buffer, last)
            comm.Recv(buffer, last)
        elif rank == last:
            comm.Recv(buffer, 0)
            comm.Send(buffer, 0)
        times.append((time.perf_counter() - start) * 1e6 / 2)
    return float(np.median(times))


def predicted(algorithm: str, nbytes: int, flat: tuple, links: list[tuple]) -> dict:
    """Hockney's times of both forms."""
    takes, _ = ALGORITHMS[algorithm]
    native = takes(*flat, nbytes)
    by_level = hockney.over_levels(takes, links, nbytes)
    return {"predicted_native_us": native, "predicted_by_level_us": by_level,
            "predicted_ratio": native / by_level if by_level else None}


def row_of(result, algorithm: str) -> dict:
    """One row, as in the JSON."""
    row = {"collective": result.collective, "bytes": result.nbytes, "ranks": result.ranks,
           "algorithm": algorithm}
    for key, name in (("native", "native"), ("by_level", "by level"), ("smcoll", "smcoll")):
        row[f"{key}_us"] = result.median(name)
        row[f"{key}_us_min"] = min(result.times[name])
        row[f"{key}_us_max"] = max(result.times[name])
    wrong = False in (result.valid["native"], result.valid["by level"])
    row["ratio"], row["ratio_low"], row["ratio_high"] = (
        (None, None, None) if wrong else result.ratio("native", "by level"))
    return row | {"valid": None if None in result.valid.values() else
                  all(result.valid.values()), "problems": result.problems}
