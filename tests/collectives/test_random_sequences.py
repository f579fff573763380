"""Long random sequences of mixed collectives on several communicators at once: finds races.

10^5 calls in total, each with its data checked. ``soak.py`` runs the same for minutes.
"""

import pytest
from sequences import RandomProgram

CALLS = {2: 20_000, 3: 10_000, 4: 6_000, 5: 6_000, 7: 4_000, 8: 5_000, 16: 1_500}


def test_enough_calls():
    assert 2 * sum(CALLS.values()) >= 100_000


@pytest.mark.lengthy
@pytest.mark.one_node      # names algorithms by the call; on several nodes: differential.py --nodes
@pytest.mark.mpi(*CALLS)
@pytest.mark.parametrize("seed, delays", [(1, False), (2, True)])
def test_random_sequence(comm_world, mpi_ranks, seed, delays):
    program = RandomProgram(comm_world, seed * 100 + mpi_ranks, delays)
    program.run(CALLS[mpi_ranks])
    program.free()
