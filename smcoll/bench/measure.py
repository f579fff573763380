"""The benchmark protocol, run inside every rank of a job.

A *contender* is one way to do the collectives: MPI's own, smcoll's, one algorithm of smcoll's. All
contenders of a job are measured side by side: blocks of calls alternate between them, so that a
noisy machine disturbs all alike, and what is reported is the ratio, with its spread.

One block is an inner loop of calls between two barriers; a rank's time is the mean per call, the
block's time that of the slowest rank. Before each call every rank writes new data into its send
buffer, as a program would: reducing the same unchanged buffer measures the cache. Writing takes
time, so a block of writing alone is a contender too ("nothing"), and its time is taken off the
others. With ``read``, every rank reads its result behind each call; the time of reading one that
was read before is taken off in the same way. What was written around the caches takes longer to
read, so who does not read rates such results too high. Rooted collectives rotate the root over all
ranks equally often.

Between repetitions the distance of the ranks' cores is measured (`distance`), and ratios are made
of those repetitions in which it was the usual one of the row.

What ranks must agree on (how many calls fit the time, results of validation) goes over a private
duplicate of the communicator, by mpi4py's own allgather.
"""

from __future__ import annotations

import gc
import itertools
import math
import mmap
import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field

import numpy as np
from mpi4py import MPI

from smcoll.bench.workloads import WORKLOADS, Place, Validator
from smcoll.tuning import distance

MAX_CALLS = 20_000  # in one block
MIN_REPETITIONS = 5
BOOTSTRAP_SAMPLES = 400
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Contender:
    """One way to do collectives.

    ``call_of(collective)`` gives the function that is timed; it takes what mpi4py's method of that
    name takes. ``prepare()`` is called before each block of calls, on every rank.
    """

    name: str
    call_of: Callable[[str], Callable]
    prepare: Callable[[], None] = lambda: None


def methods_of(name: str, comm: MPI.Intracomm) -> Contender:
    """The communicator's own upper-case methods, as programs call them."""
    return Contender(name, lambda collective: getattr(comm, WORKLOADS[collective].method))


@dataclass(frozen=True)
class Settings:
    """How much to measure. ``iterations`` and ``warmup`` of 0: chosen by the time budget."""

    budget: float = 1.2  # seconds of calls per (collective, size), validation apart
    repetitions: int = 15  # blocks of each contender
    iterations: int = 0  # calls in a block
    warmup: int = 0  # calls of each contender before the first block
    validate: bool = True
    dtype: str = "float64"  # a numpy name; floating point and integers
    root: int = -1  # of rooted collectives; -1: every rank equally often
    read: bool = False  # results behind each call
    offset: int = 16  # where in a page arrays begin: malloc puts large ones, so numpy's, at 16


@dataclass
class Result:
    """What was measured of one (collective, size): per contender, µs of each block."""

    collective: str
    nbytes: int
    ranks: int
    iterations: int
    times: dict[str, list[float]]
    nothing: float
    valid: dict[str, bool | None]
    problems: list[str] = field(default_factory=list)
    # ns of a line there and back between the ranks' cores: before each repetition, after the last.
    round_trips: list[float | None] = field(default_factory=list)

    def states(self) -> list[str]:
        """How far the cores were in each repetition: ``near``, ``between``, ``far``, ``mixed``."""
        before = [distance.state_of(ns) for ns in self.round_trips]
        return [state if state == after else "mixed" for state, after in itertools.pairwise(before)]

    def state(self) -> str:
        """That of most repetitions; ``mixed`` where no state has more than half of them."""
        (state, count), *_ = Counter(self.states()).most_common(1) or [("unknown", 1)]
        return state if 2 * count > len(self.states()) else "mixed"

    def chosen(self, name: str) -> np.ndarray:
        """µs of each block: in the repetitions of that state, of all where it is mixed."""
        state, times = self.state(), np.asarray(self.times[name], dtype=float)
        if state == "mixed" or not self.states():
            return times
        return times[[one == state for one in self.states()]]

    def median(self, name: str) -> float:
        """Median µs per call."""
        return float(np.median(self.chosen(name)))

    def ratio(self, slower: str, faster: str) -> tuple[float, float, float]:
        """How many times faster `faster` is: median of the blocks' ratios, and its 95 % bounds."""
        ratios = np.divide(self.chosen(slower), self.chosen(faster))
        return float(np.median(ratios)), *median_bounds(ratios)

    def as_dict(self) -> dict:
        """For JSON."""
        return asdict(self)


def median_bounds(values: Sequence[float]) -> tuple[float, float]:
    """Bootstrap percentile bounds of the median (the same for the same values)."""
    values = np.asarray(values, dtype=float)
    draw = np.random.default_rng(0).integers(len(values), size=(BOOTSTRAP_SAMPLES, len(values)))
    tail = 50 * (1 - CONFIDENCE)
    low, high = np.percentile(np.median(values[draw], axis=1), [tail, 100 - tail])
    return float(low), float(high)


# ---------------------------------------------------------------------- measuring


class Bench:
    """Measures contenders on the ranks of a communicator. Collective, like all its methods."""

    def __init__(self, comm: MPI.Intracomm, contenders: Sequence[Contender],
                 settings: Settings | None = None):
        # mpi4py's own class: `comm` may be smcoll's, what is agreed must not go through it.
        self.control = MPI.Intracomm.Dup(MPI.Intracomm(comm))
        self.ranks = self.control.Get_size()
        self.contenders = list(contenders)
        self.settings = settings or Settings()
        # Of one host: only there rank 0 can look.
        hosts = self.control.allgather(os.uname().nodename)
        self.cpus = sorted({cpu for host, cpus in zip(hosts, self.placement(), strict=True)
                            if host == hosts[0] for cpu in cpus})
        self.dtype = np.dtype(self.settings.dtype)

    def close(self) -> None:
        """Free the private communicator."""
        self.control.Free()

    def slowest(self, values: Sequence[float]) -> list[float]:
        """Per position the largest value of all ranks."""
        return np.max(self.control.allgather(list(values)), axis=0).tolist()

    def placement(self) -> list[list[int]]:
        """The CPUs that each rank may run on."""
        return self.control.allgather(sorted(os.sched_getaffinity(0)))

    def measure(self, collective: str, nbytes: int) -> Result:
        """One row of a table."""
        if nbytes % self.dtype.itemsize:
            raise ValueError(f"{nbytes} bytes are no whole number of {self.dtype.name}")
        valid, problems = self._validate(collective, nbytes)
        block = _Blocks(self, collective, nbytes)
        # A garbage collection inside a block is no property of a contender.
        collecting = gc.isenabled()
        gc.collect()
        gc.disable()
        try:
            iterations, repetitions = self._plan(block)
            samples, trips = self._sample(block, iterations, repetitions)
        finally:
            if collecting:
                gc.enable()
        # The least: a disturbed block of the empty loop would be taken off every other block.
        nothing = float(np.min(samples.pop("")))
        # Below the clock's reach there is nothing to divide by.
        times = {name: np.maximum(np.subtract(values, nothing), 0.01).tolist()
                 for name, values in samples.items()}
        return Result(collective, nbytes, self.ranks, iterations, times, nothing, valid, problems,
                      trips)

    def _validate(self, collective, nbytes):
        valid: dict[str, bool | None] = {}
        problems: list[str] = []
        validator = Validator(self.control, collective, nbytes // self.dtype.itemsize,
                              self.dtype, self.settings.root) if self.settings.validate else None
        for contender in self.contenders:
            if validator is None:
                valid[contender.name] = None
                continue
            contender.prepare()
            problem = validator.problem(contender.call_of(collective))
            valid[contender.name] = not problem
            if problem:
                problems.append(f"{contender.name} {collective} of {nbytes} bytes: {problem}")
        return valid, problems

    def _plan(self, block: _Blocks) -> tuple[int, int]:
        """Warm up, and from that: (calls in a block, blocks of each contender)."""
        settings = self.settings
        rotating = WORKLOADS[block.collective].rooted and settings.root < 0
        if settings.warmup:
            for contender in range(-1, len(self.contenders)):
                block.time(contender, settings.warmup)
        # Double the calls until they take long enough to be extrapolated from, twice: once may be
        # a disturbance.
        calls = self.ranks if rotating else 1
        while True:
            estimates = self._estimate(block, calls)
            if self._is_long(calls, estimates):
                estimates = [min(pair) for pair in zip(estimates, self._estimate(block, calls),
                                                       strict=True)]
                if self._is_long(calls, estimates):
                    break
            calls *= 2
        repetitions = settings.repetitions
        if settings.iterations:
            iterations = settings.iterations
        else:
            fitting = settings.budget * 1e6 / sum(estimates)
            iterations = min(MAX_CALLS, int(fitting / repetitions))
            least = self.ranks if rotating else 2
            if iterations < least:
                iterations = least
                repetitions = min(repetitions, max(MIN_REPETITIONS, int(fitting / least)))
        if rotating:
            iterations = math.ceil(iterations / self.ranks) * self.ranks
        return iterations, repetitions

    def _estimate(self, block: _Blocks, calls: int) -> list[float]:
        return self.slowest([block.time(i, calls) for i in range(-1, len(self.contenders))])

    def _is_long(self, calls: int, estimates: list[float]) -> bool:
        return (calls * sum(estimates) > 0.04 * self.settings.budget * 1e6
                or calls >= MAX_CALLS)

    def round_trip(self) -> float | None:
        """ns of a line there and back between the ranks' cores, on rank 0; None on the others.

        Only rank 0 measures; the others sleep meanwhile, so that the cores are free.
        """
        found = None
        if self.control.Get_rank() == 0:
            found = distance.farthest(self.cpus)
        request = self.control.Ibarrier()
        while not request.Test():
            time.sleep(0.0002)
        return found

    def _sample(self, block: _Blocks, iterations: int, repetitions: int
                ) -> tuple[dict[str, list[float]], list[float | None]]:
        order = list(range(-1, len(self.contenders)))
        mine: list[list[float]] = []
        trips = [self.round_trip()]
        for number in range(repetitions):
            times = [0.0] * len(order)
            # Back and forth, so that nobody always follows the same neighbour.
            for contender in order if number % 2 else reversed(order):
                times[contender + 1] = block.time(contender, iterations)
            mine.append(times)
            trips.append(self.round_trip())
        slowest = np.max(self.control.allgather(mine), axis=0)
        names = ["", *(contender.name for contender in self.contenders)]
        return {name: slowest[:, i].tolist() for i, name in enumerate(names)}, trips


def array_at(offset: int, count: int, dtype: np.dtype) -> np.ndarray:
    """An array of ones that begins ``offset`` bytes behind the beginning of a page."""
    memory = np.empty(count * dtype.itemsize + mmap.PAGESIZE + offset, np.uint8)
    begin = -memory.ctypes.data % mmap.PAGESIZE + offset
    array = memory[begin:begin + count * dtype.itemsize].view(dtype)
    array[:] = 1
    return array


class _Blocks:
    """Times blocks of calls of one (collective, size)."""

    def __init__(self, bench: Bench, collective: str, nbytes: int):
        self.bench = bench
        self.collective = collective
        workload = WORKLOADS[collective]
        place = Place(bench.control.Get_rank(), bench.ranks, nbytes // bench.dtype.itemsize,
                      bench.dtype)
        offset = bench.settings.offset
        send = array_at(offset, workload.sent(place), bench.dtype)
        recv = array_at(offset, workload.received(place) if workload.received else 0, bench.dtype)
        self.loop, self.arguments = workload.loop, workload.arguments(send, recv, place)
        self.idle, self.nothing = workload.idle, None
        self.rank, self.reads = place.rank, workload.reads
        self.result = recv if workload.received else send
        self.view = memoryview(send)
        self.data = [memoryview(np.full_like(send, 1 + (place.rank + change) % 64))
                     for change in range(2)]
        self.schedules: dict[int, list[tuple[int, int]]] = {}
        self.calls = [contender.call_of(collective) for contender in bench.contenders]
        if bench.settings.read and len(self.result):
            self.idle, self.nothing = self.loop, self.with_reading(lambda *_: None)
            self.calls = [self.with_reading(call) for call in self.calls]

    def with_reading(self, call: Callable) -> Callable:
        """The call, and then what a program does with its result: it reads it."""
        rank, reads, read = self.rank, self.reads, self.result.max

        def call_and_read(*arguments):
            call(*arguments)
            # Of rooted calls the last argument is the root.
            if reads(rank, arguments[-1]):
                read()

        return call_and_read

    def schedule(self, calls: int) -> list[tuple[int, int]]:
        """(root, which data) of each call."""
        if calls not in self.schedules:
            ranks, root = self.bench.ranks, self.bench.settings.root
            self.schedules[calls] = [(i % ranks if root < 0 else root, (i + i // ranks) % 2)
                                     for i in range(calls)]
        return self.schedules[calls]

    def time(self, contender: int, calls: int) -> float:
        """µs per call of this rank; contender -1 does nothing but change data, and read."""
        schedule = self.schedule(calls)
        if contender < 0:
            loop, call = self.idle, self.nothing
        else:
            loop, call = self.loop, self.calls[contender]
            self.bench.contenders[contender].prepare()
        barrier = self.bench.control.Barrier
        barrier()
        start = time.perf_counter()
        loop(call, self.view, self.data, schedule, self.arguments)
        seconds = time.perf_counter() - start
        # Ranks that are through must not compete with those that are not.
        barrier()
        return seconds * 1e6 / calls
