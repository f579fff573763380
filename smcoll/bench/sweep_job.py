"""The ranks' part of ``smcoll sweep``."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from smcoll.algorithms import ALGORITHMS, RADICES
from smcoll.tuning.select import SHARED_HEAP


@dataclass(frozen=True)
class SweepTask:
    """What to sweep; travels to the ranks as JSON."""

    collectives: list[str]
    sizes: list[int]
    settings: dict  # of measure.Settings; its budget is for each variant
    algorithms: list[str]  # none: all
    fan_in: list[int]
    fan_out: list[int]
    arity: list[int]
    segment_sizes: list[int]
    thread_level: str = "multiple"
    config: dict = field(default_factory=dict)  # of smcoll.Config

    def variants(self, collective: str, ranks: int) -> list[dict]:
        """Keyword arguments of the engine's call: each algorithm with each of its radices."""
        found = []
        for algorithm in ALGORITHMS[collective]:
            if self.algorithms and algorithm not in self.algorithms:
                continue
            if algorithm == SHARED_HEAP:
                continue  # here all arrays are private: compare --heap measures it
            names = RADICES.get((collective, algorithm), ())
            # Beyond the number of children there can be a tree is flat; n counts the parent, too.
            most = {"arity": max(2, ranks)}
            radices = [sorted({min(radix, most.get(name, max(1, ranks - 1)))
                               for radix in getattr(self, name)}) for name in names]
            for values in itertools.product(*radices):
                found.append({"algorithm": algorithm, **dict(zip(names, values, strict=True))})
        return found

    def points(self) -> Iterator[tuple[int, str, int]]:
        """Each (segment size, collective, bytes). A barrier has neither size."""
        for number, segment_size in enumerate(self.segment_sizes):
            for collective in self.collectives:
                if collective != "barrier":
                    for nbytes in self.sizes:
                        yield segment_size, collective, nbytes
                elif number == 0:
                    yield segment_size, collective, 0

    def rows(self, ranks: int) -> int:
        """How many rows there will be."""
        return sum(len(self.variants(collective, ranks)) for _, collective, _ in self.points())

    def measure(self, comm, report: Callable[[dict], None]) -> dict:
        """Measure on the ranks of ``comm``: every variant of a point is a contender of the same
        interleaved measurement, beside MPI's own collective.
        """
        from mpi4py import MPI

        import smcoll
        from smcoll.bench import measure
        from smcoll.bench.compare_job import facts_about_job

        plain = MPI.Intracomm.Dup(MPI.Intracomm(comm))
        mpi = measure.methods_of("mpi", plain)
        bench = measure.Bench(comm, [mpi], measure.Settings(**self.settings))
        facts = facts_about_job(MPI, bench)
        if len(facts["nodes"]) > 1:
            raise smcoll.Error("the ranks are on several nodes, where these algorithms are stages: "
                               "see smcoll sweep-nodes")
        # The first second of a job is slow whatever runs in it: ranks settle on their cores.
        bench.measure("allreduce", 1024)
        for segment_size, points in itertools.groupby(self.points(), key=lambda point: point[0]):
            config = smcoll.Config(**{"learn": "off"} | self.config, segment_size=segment_size,
                                   strict=True)
            with smcoll.Comm(comm, config) as accelerated:
                for _, collective, nbytes in points:
                    variants = {name_of(one): one for one in self.variants(collective, bench.ranks)}
                    if not variants:
                        continue
                    bench.contenders = [mpi, *(
                        contender(accelerated, collective, name, one)
                        for name, one in variants.items())]
                    bench.settings = measure.Settings(**self.settings | {
                        "budget": self.settings["budget"] * len(bench.contenders)})
                    result = bench.measure(collective, nbytes)
                    if bench.control.Get_rank() == 0:
                        for name, one in variants.items():
                            report(row_of(result, name, one, segment_size))
        bench.close()
        plain.Free()
        return facts


def name_of(variant: dict) -> str:
    """One word for a variant."""
    radices = [f"{name}={value}" for name, value in variant.items() if name != "algorithm"]
    return " ".join([variant["algorithm"], *radices])


def contender(comm, collective: str, name: str, variant: dict):
    """A variant as ``measure`` wants it: the method that programs call, on another table."""
    from smcoll.bench import measure
    from smcoll.tuning import select

    engine = comm.engine
    row = engine.decisions[collective][-1]
    decision = select.override(row, collective, section_bytes=engine.config.segment_size, **variant)
    return replace(measure.methods_of(name, comm),
                   prepare=functools.partial(engine.use, {collective: [decision]}))


def row_of(result, name: str, variant: dict, segment_size: int) -> dict:
    """One row, as in the JSON."""
    wrong = False in (result.valid["mpi"], result.valid[name])
    ratio, low, high = (None, None, None) if wrong else result.ratio("mpi", name)
    return {
        "collective": result.collective, "bytes": result.nbytes, "ranks": result.ranks,
        "segment_size": segment_size, **variant,
        "smcoll_us": result.median(name), "smcoll_us_min": min(result.times[name]),
        "smcoll_us_max": max(result.times[name]), "mpi_us": result.median("mpi"),
        "ratio": ratio, "ratio_low": low, "ratio_high": high,
        "valid": result.valid[name], "mpi_valid": result.valid["mpi"],
    }
