"""The ranks' part of ``smcoll tune``: the model's parameters, and every variant of every algorithm.

Rounds go through all of it several times: a machine whose state changes within seconds (virtual
cores that move) changes it for parameters and times alike, and medians over rounds compare.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from statistics import median

from smcoll.algorithms import ALGORITHMS, RADICES
from smcoll.bench.points import points_of
from smcoll.config import Config
from smcoll.tuning.model.fit import tuned
from smcoll.tuning.select import SHARED_HEAP, defaults
from smcoll.tuning.variants import radices, section_sizes, worth_its_work

KIB, MIB = 1 << 10, 1 << 20
PROBE_SECTION = 32 * KIB
PROBE_SIZES = (512, 4 * KIB, 32 * KIB, 256 * KIB, MIB, 2 * MIB, 3 * MIB, 4 * MIB, 16 * MIB)
# That a measurement moves, in passes: of 1 MiB the first dozen take up to twice as long, until
# buffers that share the last-level cache have settled in it.
PROBE_BYTES = 32 * MIB


@dataclass(frozen=True)
class TuneTask:
    """What to measure; travels to the ranks as JSON."""

    collectives: list[str]
    sizes: list[int]
    settings: dict  # of measure.Settings; its budget is for each variant
    rounds: int
    cores: int
    thread_level: str = "multiple"
    config: dict = field(default_factory=dict)  # of smcoll.Config
    heap: bool = False  # all arrays in shared heaps; direct access is one more algorithm

    def variants(self, collective: str, nbytes: int, ranks: int) -> list[dict]:
        """Keyword arguments of the engine's call: algorithms, radices, section sizes."""
        found = []
        for algorithm in ALGORITHMS[collective]:
            if algorithm == SHARED_HEAP and not (
                    self.heap and nbytes >= Config(**self.config).internals.heap_threshold):
                continue  # arrays are private
            if not worth_its_work(algorithm, nbytes, ranks):
                continue
            names = [name for name in RADICES.get((collective, algorithm), ())
                     if name in ("fan_in", "fan_out")]
            for radix in radices(ranks) if names else [0]:
                # Where nobody stages there are none.
                for section in ([64 * KIB] if algorithm == SHARED_HEAP else
                                self.sections(collective, nbytes, ranks)):
                    one = {"algorithm": algorithm, **dict.fromkeys(names, radix)}
                    found.append(one | ({"section_bytes": section} if section else {}))
        return found

    def sections(self, collective: str, nbytes: int, ranks: int) -> list[int]:
        """Section sizes worth trying; 0: the collective has none of its own."""
        if collective == "barrier" or collective not in tuned(self.heap):
            return [0]
        config = Config(**self.config).settled(ranks > self.cores)
        return section_sizes(nbytes, ranks, self.usual_section(collective, nbytes, ranks),
                             config.segment_size)

    def usual_section(self, collective: str, nbytes: int, ranks: int) -> int:
        """The built-in default's, which all others are compared with."""
        return next(section for up_to, _, section, _ in defaults(
            collective, ranks, ranks > self.cores) if nbytes <= up_to)

    def points(self) -> Iterator[tuple[str, int]]:
        """Each (collective, bytes). A barrier has no bytes."""
        return points_of(self.collectives, self.sizes)

    def rows(self, ranks: int) -> int:
        """How many there will be."""
        points = sum(len(self.variants(*point, ranks)) for point in self.points())
        return self.rounds * points

    def measure(self, comm, report: Callable[[dict], None]) -> dict:
        """Measure on the ranks of ``comm``; ``report(row)`` is called on rank 0."""
        from mpi4py import MPI

        import smcoll
        from smcoll.bench import measure
        from smcoll.bench.compare_job import facts_about_job, use_heaps

        config = smcoll.Config(**{"learn": "off"} | self.config, strict=True, heap=self.heap)
        if self.heap:
            use_heaps(config)
        plain = MPI.Intracomm.Dup(MPI.Intracomm(comm))
        bench = measure.Bench(comm, [], measure.Settings(**self.settings))
        facts = facts_about_job(MPI, bench)
        prober = Prober(plain, self.cores)
        accelerated = smcoll.Comm(comm, config)
        tell = report if bench.control.Get_rank() == 0 else (lambda row: None)
        try:
            # The first second of a job is slow whatever runs in it: ranks settle on their cores.
            bench.contenders = [measure.methods_of("smcoll", accelerated)]
            bench.measure("allreduce", 1024)
            facts["oversubscribed"] = bool(accelerated.engine.oversubscribed)
            last = ""
            for number in range(self.rounds):
                for collective, nbytes in self.points():
                    # Just before, so that parameters and times are of the same state.
                    distance = prober.distance()
                    # Each is told as soon as it is there: somebody watches.
                    rows = itertools.chain(
                        prober.rows() if collective != last else (),
                        self._point(bench, accelerated, collective, nbytes))
                    last = collective
                    for row in rows:
                        tell(row | {"round": number, "distance_ns": distance})
        finally:
            prober.close()
        accelerated.Free()
        bench.close()
        plain.Free()
        return facts

    def _point(self, bench, accelerated, collective: str, nbytes: int) -> Iterator[dict]:
        from smcoll.bench import measure
        from smcoll.bench.sweep_job import name_of

        variants = {name_of(one): one for one in self.variants(collective, nbytes, bench.ranks)}
        bench.contenders = [contender(accelerated, collective, nbytes, name, one)
                            for name, one in variants.items()]
        bench.settings = measure.Settings(**self.settings | {
            "budget": self.settings["budget"] * len(variants)})
        result = bench.measure(collective if collective != "reduce_scatter"
                               else "reduce_scatter_block", nbytes)
        for name, one in variants.items():
            yield {"collective": collective, "bytes": nbytes, "ranks": bench.ranks, **one,
                   "us": result.median(name)}


def contender(comm, collective: str, nbytes: int, name: str, variant: dict):
    """A variant as ``measure`` wants it: the method that programs call, on another table."""
    from smcoll.bench import measure
    from smcoll.tuning import select

    engine = comm.engine
    segments = select.usual_segments(collective, comm.size, len(engine.domains), nbytes,
                                     engine.core_cache)
    decision = replace(
        select.override(engine.decisions[collective][-1], collective, **variant),
        segments=min(segments, engine.config.segments))
    method = "reduce_scatter_block" if collective == "reduce_scatter" else collective
    one = measure.methods_of(name, comm)
    return replace(one, call_of=lambda _: one.call_of(method),
                   prepare=functools.partial(engine.use, {collective: [decision]}))


class Prober:
    """Measures the model's parameters on the ranks of a communicator; collective."""

    def __init__(self, comm, cores: int):
        from mpi4py import MPI

        self.comm = comm
        self.rank, self.size = comm.Get_rank(), comm.Get_size()
        self.crowded = self.size > cores
        self.epoch = 0
        self.window = None
        if self.crowded:
            return
        import numpy

        from smcoll.bench.measure import Settings, array_at
        from smcoll.tuning.probe import FLAGS, REGION, REGIONS, Probe

        self.window = MPI.Win.Allocate_shared(FLAGS + REGION * REGIONS, 1, comm=comm)
        shared = []
        for rank in range(self.size):
            memory, _ = self.window.Shared_query(rank)
            shared.append(numpy.frombuffer(memory, numpy.uint8))
        shared[self.rank][:] = 0
        comm.Barrier()
        self.probe = Probe(shared, self.rank)
        self.buffers = [array_at(Settings.offset, max(PROBE_SIZES), numpy.dtype(numpy.int8))
                        for _ in range(4)]
        self.partners = self._partners()

    def close(self) -> None:
        """Give the shared memory back."""
        if self.window is not None:
            del self.probe
            self.window.Free()

    def _partners(self) -> dict[str, list[int]]:
        """Per level of the hardware, nearest first, for each rank one that it meets there; -1."""
        from smcoll.topology import levels, location

        places = self.comm.allgather(location.Selection(levels="node").own_location(self.rank))
        depths: dict[str, int] = {}
        found: dict[str, list[int]] = {}
        for first in range(self.size):
            for other in [*range(first + 1, self.size), *range(first)]:
                path = levels.shared((places[first], places[other]))
                name = levels.name(path)
                depths[name] = len(path)
                partners = found.setdefault(name, [-1] * self.size)
                if partners[first] < 0:
                    partners[first] = other
        return {name: found[name] for name in sorted(found, key=lambda name: -depths[name])}

    def rows(self) -> Iterator[dict]:
        """All parameters once: ns, the mean of the ranks that took part."""
        from smcoll.tuning.probe import yields

        self.comm.Barrier()
        yield self._row("yield", 0, self._middle(yields(200, 25)))
        if self.crowded:
            return
        for level, partners in self.partners.items():
            yield self._row("exchange", 0, self._exchange(self._pair(partners)), level)
            for nbytes in PROBE_SIZES:
                for name, value in self._sections(nbytes, partners):
                    yield self._row(name, nbytes, value, level)

    def _row(self, name: str, nbytes: int, ns: float, level: str = "") -> dict:
        return {"collective": f"parameter {name}", "bytes": nbytes, "ranks": self.size,
                "parameter": name, "level": level, "ns": ns}

    def _middle(self, values: list[float] | None) -> float:
        """Of each rank that took part the median, of those the mean."""
        known = [one for one in self.comm.allgather(median(values) if values else None)
                 if one is not None]
        return sum(known) / len(known) if known else 0.0

    def distance(self) -> float:
        """ns of an exchange between the nearest two ranks: it tells a machine's states apart."""
        if self.crowded:
            return 0.0
        return self._exchange(self._pair(next(iter(self.partners.values()))))

    def _pair(self, partners: list[int]) -> tuple[int, int]:
        first = next(rank for rank in range(self.size) if partners[rank] >= 0)
        return first, partners[first]

    def _exchange(self, pair: tuple[int, int]) -> float:
        self.epoch += 1
        values = None
        self.comm.Barrier()
        if self.rank in pair:
            values = self.probe.exchange(pair[pair[0] == self.rank], self.epoch, 200, 25)
        self.comm.Barrier()
        return self._middle(values)

    def _sections(self, nbytes: int, partners: list[int]) -> Iterator[tuple[str, float]]:
        """ns for all lines of ``nbytes``: one rank alone, and all ranks at once."""
        from smcoll.tuning.probe import COPY, POST, REDUCE

        pair = self._pair(partners)
        # The two by turns, as where roots rotate: the data of both are in use.
        one = (pair[pair[0] == self.rank], self.rank == pair[1], self.rank == pair[0])
        _, inside, outside = self._pass(nbytes, *one, COPY, True, in_place=True)
        yield "copy alone", inside
        yield "read alone", outside
        yield "reduce alone", self._pass(nbytes, *one, REDUCE, True)[2]
        source = partners[self.rank]
        every = (source, True, source >= 0)
        _, inside, outside = self._pass(nbytes, *every, COPY, False)
        yield "copy together", inside
        yield "read together", outside
        fresh, _, outside = self._pass(nbytes, *every, REDUCE, False)
        yield "renew between", fresh
        yield "reduce together", outside
        yield "post together", self._pass(nbytes, *every, POST, False)[2]
        yield "renew alone", self._pass(nbytes, source, False, False, COPY, False)[0]

    def _pass(self, nbytes: int, source: int, copies: bool, reads: bool, what: int,
              turns: bool, in_place: bool = False) -> list[float]:
        self.epoch += 1
        send, recv, *data = self.buffers
        passes = max(4, min(100, PROBE_BYTES // nbytes))
        times = self.probe.sections(
            self.epoch, source, send, send if in_place else recv, *data, nbytes, PROBE_SECTION,
            passes, copies, reads, what, turns)
        return [self._middle(values) for values in times]
