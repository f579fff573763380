"""What is measured: for each collective its buffers, its loop of calls and its right results.

``nbytes`` of a row counts, as in the tables of this field, one vector or one block: the vector in
bcast, reduce, allreduce, scan and exscan; in all others the block that one rank sends to one other
or receives as its own. The v- and w-forms get blocks of two sizes by turns (half, and one and a
half times as many elements), so that they are not the plain forms in disguise.
"""

from __future__ import annotations

import functools
import operator
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from mpi4py import MPI

# ---------------------------------------------------------------------- loops of calls

# One loop for each form of arguments: an argument tuple made anew for each call, or a wrapper
# around it, would be measured with it. Each call is preceded by new data in the send buffer.


def _nothing_loop(_, view, data, schedule, arguments):
    for _root, number in schedule:
        view[:] = data[number]


def _empty_loop(_, view, data, schedule, arguments):
    for _ in schedule:
        pass


def _synchronise_loop(call, view, data, schedule, arguments):
    for _ in schedule:
        call()


def _buffer_root_loop(call, view, data, schedule, arguments):
    (buffer,) = arguments
    for root, number in schedule:
        view[:] = data[number]
        call(buffer, root)


def _two_buffers_loop(call, view, data, schedule, arguments):
    send, recv = arguments
    for _root, number in schedule:
        view[:] = data[number]
        call(send, recv)


def _two_buffers_root_loop(call, view, data, schedule, arguments):
    send, recv = arguments
    for root, number in schedule:
        view[:] = data[number]
        call(send, recv, root)


def _two_buffers_operation_root_loop(call, view, data, schedule, arguments):
    send, recv = arguments
    operation = MPI.SUM
    for root, number in schedule:
        view[:] = data[number]
        call(send, recv, operation, root)


def _two_buffers_counts_loop(call, view, data, schedule, arguments):
    send, recv, counts = arguments
    for _root, number in schedule:
        view[:] = data[number]
        call(send, recv, counts)


def _from_root_loop(call, view, data, schedule, arguments):
    send, recv, rank = arguments
    for root, number in schedule:
        if root == rank:
            view[:] = data[number]
        call(send, recv, root)


def _from_root_nothing_loop(call, view, data, schedule, arguments):
    _, _, rank = arguments
    for root, number in schedule:
        if root == rank:
            view[:] = data[number]


# ---------------------------------------------------------------------- workloads


@dataclass(frozen=True)
class Place:
    """A rank, the number of ranks, the elements of a row, and the element's type."""

    rank: int
    ranks: int
    count: int
    dtype: np.dtype

    def blocks(self) -> list[int]:
        """Elements per rank in the v-forms: two sizes by turns, ``count`` on the average."""
        half = self.count // 2
        counts = [self.count - half if r % 2 else self.count + half for r in range(self.ranks)]
        if self.ranks % 2:
            counts[-1] = self.count
        return counts

    def start(self) -> int:
        """Where this rank's block begins in the v-forms."""
        return sum(self.blocks()[:self.rank])


def _total(place: Place) -> int:
    return place.ranks * place.count


def _mine(place: Place) -> int:
    return place.blocks()[place.rank]


def _vector(place: Place) -> int:
    return place.count


def _with_counts(buffer, place: Place, counts: Sequence[int]):
    return [buffer, (list(counts), np.cumsum([0, *counts[:-1]]).tolist()),
            MPI.Datatype.fromcode(place.dtype.char)]


def _with_bytes_and_types(buffer, place: Place, counts: Sequence[int]):
    size = place.dtype.itemsize
    displacements = np.cumsum([0, *counts[:-1]]) * size
    return [buffer, list(counts), displacements.tolist(),
            [MPI.Datatype.fromcode(place.dtype.char)] * place.ranks]


def _alltoall_counts(place: Place) -> tuple[list[int], list[int]]:
    """(sent to each, received from each): what r sends to s is what blocks() gives for r + s."""
    counts = place.blocks()
    shifted = [counts[(place.rank + other) % place.ranks] for other in range(place.ranks)]
    return shifted, shifted


@dataclass(frozen=True)
class Workload:
    """One collective: elements of its buffers, arguments of its method, and its right result.

    ``expected(place, root, data)``: what ``recv`` holds on that rank; None where that is undefined.
    ``data(rank)`` is all that a rank sends, ``data(rank, start, stop)`` a part of it.
    ``reads(rank, root)``: whether that rank has a result, which its program would read.
    """

    method: str
    loop: Callable
    sent: Callable[[Place], int]
    received: Callable[[Place], int] | None
    expected: Callable
    rooted: bool = False
    arguments: Callable = lambda send, recv, place: (send, recv)
    idle: Callable = _nothing_loop
    reads: Callable[[int, int], bool] = lambda rank, root: True


def _concatenated(place, root, data):
    return np.concatenate([data(rank) for rank in range(place.ranks)])


def _at_root(expected):
    return lambda place, root, data: expected(place, root, data) if place.rank == root else None


def _sum(place, data, bounds=(), ranks=None):
    return functools.reduce(np.add, (data(rank, *bounds) for rank in ranks or range(place.ranks)))


def _block(place):
    return place.rank * place.count, (place.rank + 1) * place.count


def _uneven_block(place):
    return place.start(), place.start() + _mine(place)


def _alltoallv_result(place, root, data):
    parts = []
    for rank in range(place.ranks):
        counts, _ = _alltoall_counts(Place(rank, place.ranks, place.count, place.dtype))
        start = sum(counts[:place.rank])
        parts.append(data(rank, start, start + counts[place.rank]))
    return np.concatenate(parts)


def _alltoallv_arguments(specify):
    def arguments(send, recv, place):
        sent, received = _alltoall_counts(place)
        return specify(send, place, sent), specify(recv, place, received)

    return arguments


def _alltoallv_total(place: Place) -> int:
    return sum(_alltoall_counts(place)[0])


WORKLOADS: dict[str, Workload] = {
    "barrier": Workload("Barrier", _synchronise_loop, lambda place: 0, None, lambda *_: None,
                        arguments=lambda *_: (), idle=_empty_loop),
    "bcast": Workload("Bcast", _buffer_root_loop, _vector, None,
                      lambda place, root, data: data(root), rooted=True,
                      arguments=lambda send, recv, place: (send,), reads=operator.ne),
    "reduce": Workload("Reduce", _two_buffers_operation_root_loop, _vector, _vector,
                       _at_root(lambda place, root, data: _sum(place, data)), rooted=True,
                       reads=operator.eq),
    "allreduce": Workload("Allreduce", _two_buffers_loop, _vector, _vector,
                          lambda place, root, data: _sum(place, data)),
    "gather": Workload("Gather", _two_buffers_root_loop, _vector, _total,
                       _at_root(_concatenated), rooted=True, reads=operator.eq),
    "gatherv": Workload(
        "Gatherv", _two_buffers_root_loop, _mine, _total, _at_root(_concatenated), rooted=True,
        arguments=lambda send, recv, place: (send, _with_counts(recv, place, place.blocks())),
        reads=operator.eq),
    "scatter": Workload(
        "Scatter", _from_root_loop, _total, _vector,
        lambda place, root, data: data(root, *_block(place)), rooted=True,
        arguments=lambda send, recv, place: (send, recv, place.rank), idle=_from_root_nothing_loop),
    "scatterv": Workload(
        "Scatterv", _from_root_loop, _total, _mine,
        lambda place, root, data: data(root, *_uneven_block(place)), rooted=True,
        arguments=lambda send, recv, place: (
            _with_counts(send, place, place.blocks()), recv, place.rank),
        idle=_from_root_nothing_loop),
    "allgather": Workload("Allgather", _two_buffers_loop, _vector, _total, _concatenated),
    "allgatherv": Workload(
        "Allgatherv", _two_buffers_loop, _mine, _total, _concatenated,
        arguments=lambda send, recv, place: (send, _with_counts(recv, place, place.blocks()))),
    "alltoall": Workload(
        "Alltoall", _two_buffers_loop, _total, _total, lambda place, root, data: np.concatenate(
            [data(rank, *_block(place)) for rank in range(place.ranks)])),
    "alltoallv": Workload("Alltoallv", _two_buffers_loop, _alltoallv_total, _alltoallv_total,
                          _alltoallv_result, arguments=_alltoallv_arguments(_with_counts)),
    "alltoallw": Workload("Alltoallw", _two_buffers_loop, _alltoallv_total, _alltoallv_total,
                          _alltoallv_result, arguments=_alltoallv_arguments(_with_bytes_and_types)),
    "reduce_scatter": Workload(
        "Reduce_scatter", _two_buffers_counts_loop, _total, _mine,
        lambda place, root, data: _sum(place, data, _uneven_block(place)),
        arguments=lambda send, recv, place: (send, recv, place.blocks())),
    "reduce_scatter_block": Workload(
        "Reduce_scatter_block", _two_buffers_loop, _total, _vector,
        lambda place, root, data: _sum(place, data, _block(place))),
    "scan": Workload("Scan", _two_buffers_loop, _vector, _vector, lambda place, root, data:
                     _sum(place, data, ranks=range(place.rank + 1))),
    "exscan": Workload("Exscan", _two_buffers_loop, _vector, _vector, lambda place, root, data:
                       _sum(place, data, ranks=range(place.rank)) if place.rank else None),
}

def bytes_of_buffers(collective: str, nbytes: int, ranks: int) -> int:
    """Bytes of all buffers that measuring a row takes on one rank."""
    workload, place = WORKLOADS[collective], Place(0, ranks, nbytes, np.dtype("b"))
    # Beside the two buffers: two sets of data for the send buffer.
    return 3 * workload.sent(place) + (workload.received(place) if workload.received else 0)


# ---------------------------------------------------------------------- validation


class Validator:
    """Checks a contender's results against numpy's, on calls that are not timed.

    Data differ per rank, position and call, so that a missing rank, a rank counted twice, a
    shifted or a stale part all show. Every rank makes every call, also after it has seen wrong
    data: the others would hang.
    """

    def __init__(self, control: MPI.Intracomm, collective: str, count: int, dtype: np.dtype,
                 root: int = -1):
        self.control = control
        self.root = root  # of rooted collectives; -1: several
        self.collective = collective
        self.workload = WORKLOADS[collective]
        self.count = count
        # Integers show what rounding would hide.
        self.dtypes = list(dict.fromkeys((np.dtype(np.int64), dtype)))
        self.rank, self.ranks = control.Get_rank(), control.Get_size()

    def problem(self, call: Callable) -> str:
        """"" when every rank's results are right, else what is wrong (the same on all ranks)."""
        try:
            mine = self._barrier(call) if self.collective == "barrier" else self._calls(call)
        except MPI.Exception as error:
            mine = f"{type(error).__name__}: {error}"
        found = self.control.allgather(mine)
        return next((f"rank {rank}: {text}" for rank, text in enumerate(found) if text), "")

    def _calls(self, call) -> str:
        roots = [max(self.root, 0)]
        if self.workload.rooted and self.root < 0:
            roots = sorted({0, self.ranks // 2, self.ranks - 1})
        problems = []
        for number, (dtype, root) in enumerate((d, r) for d in self.dtypes for r in roots):
            problems += [f"{problem} ({dtype.name}, root {root})"
                         for problem in self._call(call, dtype, root, number)]
        return "; ".join(problems)

    def _call(self, call, dtype, root, number) -> list[str]:
        workload, place = self.workload, Place(self.rank, self.ranks, self.count, dtype)

        def data(rank: int, start: int = 0, stop: int | None = None) -> np.ndarray:
            sender = Place(rank, self.ranks, self.count, dtype)
            stop = workload.sent(sender) if stop is None else stop
            return contribution(sender, number, np.arange(start, stop))

        send = data(self.rank)
        if workload.received is None and self.rank != root:
            send = np.full_like(send, 77)
        recv = np.full(workload.received(place), 77, dtype) if workload.received else send
        workload.loop(call, memoryview(send), [memoryview(send)], [(root, 0)],
                      workload.arguments(send, recv, place))
        problems = []
        expected = workload.expected(place, root, data)
        if expected is not None and not close_enough(recv, expected, self.ranks):
            problems.append("wrong data")
        if workload.received is not None and not np.array_equal(send, data(self.rank)):
            problems.append("send buffer changed")
        return problems

    def _barrier(self, call) -> str:
        """Nobody may leave before the last has come (one clock: all ranks are on one node)."""
        for late in sorted({0, self.ranks // 2, self.ranks - 1}):
            self.control.Barrier()
            if self.rank == late:
                time.sleep(0.005)
            came = time.monotonic()
            call()
            left = time.monotonic()
            times = self.control.allgather((came, left))
            if min(left for _, left in times) < max(came for came, _ in times):
                return f"a rank left the barrier before rank {late} came"
        return ""


def contribution(place: Place, number: int, positions: np.ndarray) -> np.ndarray:
    """What a rank sends at these positions of its buffer in call ``number``."""
    values = (positions * 2654435761 % (1 << 20) + 1) * (place.rank + 1 + number) + place.rank
    if place.dtype.kind == "f":
        return (values / 3).astype(place.dtype)
    # Sums must not overflow: what C leaves undefined differs from MPI to MPI.
    return (values % (np.iinfo(place.dtype).max // place.ranks)).astype(place.dtype)


def close_enough(result: np.ndarray, expected: np.ndarray, ranks: int) -> bool:
    """Exactly for integers; for floating point as closely as any order of summation comes."""
    if result.dtype.kind != "f":
        return bool(np.array_equal(result, expected))
    tolerance = 5 * np.finfo(result.dtype).eps * (ranks + 4)
    return bool(np.allclose(result, expected, rtol=tolerance, atol=0))
