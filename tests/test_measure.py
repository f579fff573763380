"""How much is measured is not decided by a disturbance."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from smcoll.measure import Bench, Settings

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
