"""A program that fails on one rank says so once."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
from programs import run_ranks

import smcoll
from smcoll.mpi import uncaught

FAILS = """
    import os, sys
    from mpi4py import MPI
    place, way = sys.argv[1:]
    if place == "two nodes":
        os.environ["SMCOLL_NODE"] = str(MPI.COMM_WORLD.rank // 2)
    import smcoll
    def rounds(comm):
        for number in range(3):
            comm.Barrier()
            if comm.rank == 1 and number == 1:
                raise ValueError("the program's own mistake")
    comm = smcoll.Comm(MPI.COMM_WORLD)
    if way == "block":
        with comm:
            rounds(comm)
    else:
        rounds(comm)
"""


@pytest.mark.parametrize("place", ["one node", "two nodes"])
@pytest.mark.parametrize("way", ["block", "plain"])
def test_one_traceback_a_job_and_a_line_for_each_rank_that_failed_with_it(way, place):
    result = run_ranks(4, FAILS, place, way, alone=True)
    assert result.returncode != 0
    assert result.stderr.count("Traceback") == 1, result.stderr
    assert "ValueError: the program's own mistake" in result.stderr
    lines = [line for line in result.stderr.splitlines() if "PeerError" in line]
    # Some MPIs end the job before all have spoken.
    for line in lines:
        assert line.startswith("rank ") and "rank 1 gave the communicator up" in line, lines


@pytest.mark.mpi(2)
@pytest.mark.parametrize("passed_on", [False, True])
def test_what_a_rank_says_is_one_write_that_others_cannot_come_into(
        comm_world, monkeypatch, passed_on):
    written = []
    monkeypatch.setattr(uncaught, "_ends_by", None)
    monkeypatch.setattr(sys, "stderr", SimpleNamespace(write=written.append, flush=lambda: None))
    error = ValueError("the program's own mistake")
    error.passed_on = passed_on
    try:
        raise error
    except ValueError:
        uncaught._tell(*sys.exc_info())
    monkeypatch.undo()
    assert len(written) == 1
    assert written[0].endswith("ValueError: the program's own mistake\n")
    assert written[0].startswith(
        f"rank {comm_world.rank}: " if passed_on else "Traceback (most recent call last):\n")


@pytest.mark.mpi(3)
def test_errors_know_whether_they_were_passed_on(comm_world):
    comm = smcoll.Comm(comm_world, smcoll.Config(timeout=20))
    comm.Barrier()
    if comm.rank == 1:
        comm.engine.abandon()
        return
    with pytest.raises(smcoll.PeerError) as raised:
        comm.Barrier()
    assert raised.value.passed_on
