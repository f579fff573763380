"""install/uninstall, wrap, and the communicators that are made from a smcoll one."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from mpi4py import MPI
from programs import run_ranks

import smcoll


def allreduce(comm, count=4):
    total = np.zeros(count)
    comm.Allreduce(np.full(count, comm.Get_rank() + 1.0), total)
    assert (total == comm.Get_size() * (comm.Get_size() + 1) / 2).all()


def calls(comm) -> int:
    return sum(row["calls"] for row in comm.stats() if row["path"] == "shared memory")


@pytest.mark.mpi(1, 2, 3)
def test_install_and_uninstall(comm_world):
    original = MPI.COMM_WORLD
    assert not isinstance(original, smcoll.Comm)
    smcoll.install()
    try:
        world = MPI.COMM_WORLD
        assert isinstance(world, smcoll.Comm)
        assert world == original and world.handle == original.handle
        allreduce(world)
        smcoll.install()
        assert MPI.COMM_WORLD is world
        if world.size > 1:
            assert calls(world) == 1
        # What programs do with it.
        assert world.bcast({"a": 1} if world.rank == 0 else None) == {"a": 1}
        assert len(world.allgather(world.rank)) == world.size
        assert MPI.COMM_WORLD.Get_group().Get_size() == world.size
    finally:
        smcoll.uninstall()
    assert MPI.COMM_WORLD is original
    smcoll.uninstall()
    assert MPI.COMM_WORLD is original
    allreduce(world)


@pytest.mark.mpi(2)
def test_install_disabled(comm_world):
    original = MPI.COMM_WORLD
    smcoll.install(smcoll.Config(disable=True))
    try:
        allreduce(MPI.COMM_WORLD)
        assert MPI.COMM_WORLD is original or MPI.COMM_WORLD.engine is None
    finally:
        smcoll.uninstall()


@pytest.mark.mpi(2, 3)
def test_wrap_twice_shares_one_sequence(comm_world):
    """Two objects with one handle share one engine, so their calls may be mixed."""
    plain = comm_world.Dup()
    one = smcoll.wrap(plain)
    two = smcoll.wrap(plain)
    assert one == two == plain
    for turn in range(50):
        # Ranks use different objects for the same call.
        allreduce(one if (turn + comm_world.rank) % 2 else two, 1 + turn * 30)
    assert calls(one) == calls(two) == 50
    assert one.engine is two.engine
    assert smcoll.wrap(one) is one
    third = smcoll.wrap(MPI.Comm.fromhandle(plain.handle))
    allreduce(third)
    assert calls(one) == 51
    one.Free()


@pytest.mark.mpi(2)
def test_wrap_after_the_handle_was_freed_and_used_again(comm_world):
    """A reused handle value never meets an old engine."""
    handles = set()
    for turn in range(20):
        comm = smcoll.wrap(comm_world.Dup())
        handles.add(comm.handle)
        allreduce(comm, 10 + turn)
        assert calls(comm) == 1
        comm.Free()
    assert len(handles) < 20, "the handles were never reused: this test has seen nothing"


@pytest.mark.mpi(2, 3)
def test_wrap_keeps_the_kind(comm_world):
    cart = comm_world.Create_cart([comm_world.size], periods=[True])
    wrapped = smcoll.wrap(cart)
    assert isinstance(wrapped, MPI.Cartcomm) and isinstance(wrapped, smcoll.Cartcomm)
    assert wrapped.Get_coords(comm_world.rank) == [comm_world.rank]
    assert wrapped.Shift(0, 1) == cart.Shift(0, 1)
    allreduce(wrapped)
    assert calls(wrapped) == 1
    cart.Free()


@pytest.mark.mpi(2, 3)
def test_dup_of_a_smcoll_communicator(comm_world):
    """A duplicate has its own sequence and segment, and its parent's settings."""
    config = smcoll.Config(allreduce="recursive_doubling", segment_size=4096)
    with smcoll.Comm(comm_world, config) as parent:
        allreduce(parent)
        for make in (parent.Dup, parent.Clone):
            child = make()
            assert isinstance(child, smcoll.Comm)
            allreduce(child, 1000)
            assert calls(child) == 1 and calls(parent) == 1
            assert child.engine is not parent.engine
            assert child.explain("allreduce", nbytes=8).algorithm == "recursive_doubling"
            child.Free()
        allreduce(parent)


@pytest.mark.mpi(2)
def test_idup(comm_world):
    with smcoll.Comm(comm_world) as parent:
        child, request = parent.Idup()
        request.Wait()
        allreduce(child)
        child.Free()
        allreduce(parent)


@pytest.mark.mpi(3)
def test_split_and_the_rest_of_mpi4py(comm_world):
    with smcoll.Comm(comm_world) as comm:
        rank, size = comm.rank, comm.size
        allreduce(comm)
        part = comm.Split(rank % 2, rank)
        allreduce(part)
        with smcoll.Comm(part) as fast:
            allreduce(fast)
        part.Free()
        assert comm.Split(MPI.UNDEFINED) == MPI.COMM_NULL
        everyone = np.zeros(size, "i")
        comm.Allgather(np.array([rank], "i"), everyone)
        assert everyone.tolist() == list(range(size))
        request = comm.Ibarrier()
        allreduce(comm)
        request.Wait()
        assert comm.allreduce(rank) == size * (size - 1) // 2
        comm.Set_name("a name")
        assert comm.Get_name() == "a name"
        partner = comm.sendrecv(rank, dest=(rank + 1) % size, source=(rank - 1) % size)
        assert partner == (rank - 1) % size
        total = np.zeros(1)
        comm.Scan(np.ones(1), total)
        assert total[0] == rank + 1


@pytest.mark.mpi(2)
def test_from_a_smcoll_communicator(comm_world):
    with smcoll.Comm(comm_world) as outer, smcoll.Comm(outer) as inner:
        allreduce(inner)
        allreduce(outer)
        assert inner.engine is not outer.engine


@pytest.mark.mpi(2)
def test_attributes_and_comparison(comm_world):
    with smcoll.Comm(comm_world) as comm:
        assert MPI.Comm.Compare(comm, comm_world) == MPI.CONGRUENT
        assert comm != comm_world
        keyval = MPI.Comm.Create_keyval()
        comm.Set_attr(keyval, "value")
        assert comm.Get_attr(keyval) == "value"
        MPI.Comm.Free_keyval(keyval)


@pytest.mark.mpi(2)
def test_pickle_of_an_installed_world(comm_world):
    smcoll.install()
    try:
        copy = pickle.loads(pickle.dumps(MPI.COMM_WORLD))
        assert copy == MPI.COMM_WORLD
    finally:
        smcoll.uninstall()


PROGRAM = """
    import smcoll
    smcoll.install()
    from mpi4py import MPI
    from mpi4py.MPI import COMM_WORLD as comm
    import numpy as np
    total = np.zeros(3)
    comm.Allreduce(np.ones(3), total)
    assert (total == comm.size).all()
    copy = comm.Dup()
    copy.Allreduce(np.ones(3), total)
    print("types", type(comm).__module__, type(copy).__module__)
"""


def test_program_that_installs():
    result = run_ranks(3, PROGRAM)
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("smcoll") == 6
    assert result.stderr == ""


def test_program_disabled_by_environment():
    result = run_ranks(2, PROGRAM, environment={"SMCOLL_DISABLE": "1"})
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("mpi4py") == 4
