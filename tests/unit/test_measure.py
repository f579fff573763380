"""How much is measured, in which state of the cores, and with which arrays."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from smcoll.bench import measure
from smcoll.bench.measure import Bench, Contender, Result, Settings
from smcoll.bench.workloads import WORKLOADS
from smcoll.topology import node
from smcoll.tuning import distance

LONG = 1e6                         # us


class Block:
    """Calls of 10 us; the first one, say, meets another process's turn."""

    collective = "barrier"

    def __init__(self, disturbed: set[int]):
        self.disturbed = disturbed
        self.timed = 0

    def time(self, contender: int, calls: int) -> float:
        self.timed += 1
        return LONG if self.timed in self.disturbed else 10.0


@pytest.mark.parametrize("disturbed", [set(), {1}, {2}, {3}, {7}])
def test_one_disturbed_call_does_not_make_blocks_short(disturbed):
    bench = object.__new__(Bench)
    bench.settings, bench.ranks = Settings(budget=1.0, repetitions=5), 2
    bench.contenders = [SimpleNamespace(name="mpi"), SimpleNamespace(name="smcoll")]
    bench.slowest = list
    iterations, repetitions = bench._plan(Block(disturbed))
    assert repetitions == 5 and iterations == int(1e6 / 30 / 5)


def result(round_trips, times):
    return Result("bcast", 8, 2, 1, times, 0.0, {}, [], round_trips)


def test_ratios_are_made_of_the_repetitions_in_the_usual_state():
    """Cores that were far in between would mix two machines in one figure."""
    row = result([100, 90, 110, 500, 510, 100, 90], {"mpi": [2, 2, 50, 90, 50, 2],
                                                     "smcoll": [1, 1, 1, 1, 1, 1]})
    assert row.states() == ["near", "near", "mixed", "far", "mixed", "near"]
    assert row.state() == "mixed" and row.ratio("mpi", "smcoll")[0] == 26
    row = result([100, 90, 110, 100, 510], {"mpi": [2, 2, 2, 90], "smcoll": [1, 1, 1, 1]})
    assert row.state() == "near"
    assert row.ratio("mpi", "smcoll") == (2, 2, 2) and row.median("mpi") == 2


def test_without_a_measured_distance_all_repetitions_count():
    row = result([None] * 4, {"mpi": [2, 4, 6], "smcoll": [1, 1, 1]})
    assert row.state() == "unknown" and row.ratio("mpi", "smcoll")[0] == 4
    assert result([], {"mpi": [2, 4], "smcoll": [1, 1]}).median("mpi") == 3


@pytest.mark.parametrize("offset", [0, 16, 4000])
def test_arrays_begin_where_in_a_page_they_are_wanted(offset):
    array = measure.array_at(offset, 1000, np.dtype("float64"))
    assert array.ctypes.data % 4096 == offset and (array == 1).all() and len(array) == 1000


def test_the_distance_of_cores_is_measured_and_named():
    assert [distance.state_of(ns) for ns in (None, 60, 250, 600)] == [
        "unknown", "near", "between", "far"]
    cpus = node.allowed_cpus()
    found = distance.pairs(cpus)
    assert len(found) == min(len(cpus) - 1, distance.MOST_PAIRS)
    assert all(first == cpus[0] and ns > 0 for first, _, ns in found)
    assert distance.farthest(cpus[:1]) is None


@pytest.mark.parametrize(("collective", "roots"), [
    ("reduce", [1]), ("gather", [1]), ("gatherv", [1]), ("bcast", [0, 2]), ("scatter", [0, 1, 2])])
def test_a_result_is_read_by_the_ranks_that_have_one(collective, roots):
    read = []
    blocks = object.__new__(measure._Blocks)
    blocks.rank, blocks.reads = 1, WORKLOADS[collective].reads
    blocks.result = SimpleNamespace(max=lambda: read.append(called[-1]))
    called = []
    call = blocks.with_reading(lambda *arguments: called.append(arguments[-1]))
    for root in range(3):
        call("send", "recv", root)
    assert called == [0, 1, 2] and read == roots


@pytest.mark.mpi(2)
def test_what_reading_alone_takes_is_measured_by_the_same_loop(comm_world):
    bench = Bench(comm_world, [Contender("smcoll", lambda collective: lambda *_: None)],
                  Settings(read=True))
    try:
        for collective in WORKLOADS:
            blocks = measure._Blocks(bench, collective, 64)
            assert (blocks.nothing is None) == (collective == "barrier")
            assert (blocks.idle is blocks.loop) == (collective != "barrier")
            for contender in (-1, 0):
                assert blocks.time(contender, 3) > 0
    finally:
        bench.close()
