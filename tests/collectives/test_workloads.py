"""What is measured is checked: right results pass, one wrong element does not."""

from __future__ import annotations

import numpy as np
import pytest
from mpi4py import MPI

COLLECTIVES = (
    "barrier", "bcast", "reduce", "allreduce", "gather", "gatherv", "scatter", "scatterv",
    "allgather", "allgatherv", "alltoall", "alltoallv", "alltoallw", "reduce_scatter",
    "reduce_scatter_block", "scan", "exscan")


def test_the_command_line_knows_the_same_collectives():
    from smcoll.bench.workloads import WORKLOADS
    from smcoll.cli import selection

    assert selection.COLLECTIVES == tuple(WORKLOADS) == COLLECTIVES


def validator(collective, count=5, dtype="float64"):
    from smcoll.bench.workloads import Validator

    return Validator(MPI.COMM_WORLD, collective, count, np.dtype(dtype))


def own_method(collective):
    from smcoll.bench.workloads import WORKLOADS

    return getattr(MPI.COMM_WORLD, WORKLOADS[collective].method)


@pytest.mark.mpi(1, 2, 3)
@pytest.mark.parametrize("dtype", ["float64", "float32", "int8"])
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_right_results_are_valid(collective, dtype):
    for count in (1, 2, 1000):
        assert validator(collective, count, dtype).problem(own_method(collective)) == ""


def received(collective, arguments):
    """The array that a call wrote into, of this collective's arguments."""
    buffer = arguments[0] if collective == "bcast" else arguments[1]
    return buffer[0] if isinstance(buffer, (list, tuple)) else buffer


@pytest.mark.mpi(2, 3)
@pytest.mark.parametrize("collective", COLLECTIVES[1:])
def test_one_wrong_element_on_one_rank_is_found_on_all(collective):
    method, last = own_method(collective), MPI.COMM_WORLD.size - 1

    def wrong_at_last_rank(*arguments):
        method(*arguments)
        if MPI.COMM_WORLD.rank == last:
            received(collective, arguments)[-1] += 1

    problem = validator(collective).problem(wrong_at_last_rank)
    assert problem.startswith(f"rank {last}: wrong data"), problem


@pytest.mark.mpi(2, 3)
@pytest.mark.parametrize("collective", COLLECTIVES[2:])
def test_a_changed_send_buffer_is_found(collective):
    method = own_method(collective)

    def careless(*arguments):
        method(*arguments)
        send = arguments[0][0] if isinstance(arguments[0], (list, tuple)) else arguments[0]
        send[-1] += 1

    assert "send buffer changed" in validator(collective).problem(careless)


@pytest.mark.mpi(2, 3)
def test_a_barrier_that_does_not_wait_is_found():
    assert "left the barrier before" in validator("barrier").problem(lambda: None)


@pytest.mark.mpi(3)
def test_the_v_forms_have_blocks_of_two_sizes():
    from smcoll.bench.workloads import Place

    assert Place(0, 4, 8, np.dtype("f8")).blocks() == [12, 4, 12, 4]
    assert Place(0, 3, 8, np.dtype("f8")).blocks() == [12, 4, 8]
    assert sum(Place(0, 5, 1, np.dtype("f8")).blocks()) == 5
