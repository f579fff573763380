"""No shared memory: one warning, right results through MPI; with strict=True a SegmentError.

And no room in /dev/shm: memory without a name.

The ranks start MPI as usual and then enter a mount namespace with a /dev/shm of 1 or 2 MB of their
own (rank 0 makes it), so that only smcoll meets the small one.
"""

from __future__ import annotations

import textwrap

import own_dev_shm
import pytest
from programs import run_ranks

import smcoll

SMALL_DEV_SHM = """
    import os
    import numpy as np
    from mpi4py import MPI
    from own_dev_shm import mount_for_all, mount_for_this_process

    world = MPI.COMM_WORLD
    # MPI attaches to its own shared memory now, while /dev/shm is the usual one.
    world.Alltoall(np.zeros(world.size, "i"), np.zeros(world.size, "i"))
    world.Allreduce(np.zeros(100_000), np.zeros(100_000))
    world.Allgather(np.zeros(4096, "B"), np.zeros(4096 * world.size, "B"))

    def small_dev_shm(size):
        mount_for_all(world, size)

    import smcoll

    def use(comm, counts=(1, 100, 5000, 300_000)):
        rank, ranks = comm.rank, comm.size
        for count in counts:
            total = np.zeros(count)
            comm.Allreduce(np.full(count, rank + 1.0), total)
            assert (total == ranks * (ranks + 1) / 2).all()
            comm.Reduce(np.full(count, rank + 1.0), total, MPI.MAX, 1)
            comm.Bcast(total, 1)
            assert (total == ranks).all()
            comm.Barrier()
"""


needs_mount = pytest.mark.skipif(
    not own_dev_shm.possible(), reason="needs root and mount namespaces to make a small /dev/shm"
)


def run_small(ranks: int, text: str, memory: str = "shm"):
    result = run_ranks(ranks, textwrap.dedent(SMALL_DEV_SHM) + textwrap.dedent(text),
                       # Short messages need no data regions, also where the suite runs in heaps.
                       environment={"SMCOLL_MEMORY": memory,
                                    "SMCOLL_TEST_INTERNALS": "heap_threshold=32768"})
    assert result.returncode == 0, result.stdout + result.stderr
    # Launchers may put the ranks' lines into each other.
    assert result.stdout.count("end") == ranks, result.stdout + result.stderr
    return [line for line in result.stderr.splitlines() if "smcoll" in line.lower()]


@needs_mount
@pytest.mark.parametrize("ranks", [2, 5])
def test_data_regions_do_not_fit(ranks):
    """Control pages fit into 2 MB, data regions do not: long messages go to MPI, by agreement."""
    warnings = run_small(ranks, """
        small_dev_shm("2m")
        with smcoll.Comm(world) as comm:
            for _ in range(3):
                use(comm)
            assert comm.explain("allreduce", nbytes=8).path == "shared memory"
            assert comm.explain("allreduce", nbytes=80_000).path == "MPI"
        assert os.listdir("/dev/shm") == []
        print("end")
        """)
    assert len(warnings) == 1, warnings


@needs_mount
@pytest.mark.parametrize("ranks", [2, 5])
def test_nothing_fits(ranks):
    """Not even the control pages: everything goes to MPI."""
    warnings = run_small(ranks, """
        small_dev_shm("16k")
        with smcoll.Comm(world) as comm:
            for _ in range(3):
                use(comm)
            assert comm.engine is None
            assert comm.explain("barrier").path == "MPI"
        assert os.listdir("/dev/shm") == []
        print("end")
        """)
    assert len(warnings) == 1, warnings


@needs_mount
def test_eager_that_does_not_fit():
    warnings = run_small(3, """
        small_dev_shm("1m")
        with smcoll.Comm(world, smcoll.Config(eager=True)) as comm:
            use(comm)
        print("end")
        """)
    assert len(warnings) == 1, warnings


@pytest.mark.lengthy
@needs_mount
@pytest.mark.parametrize("size, when", [("16k", "first call"), ("1m", "long call"),
                                        ("16k", "creation"), ("1m", "creation")])
def test_strict(size, when):
    """SegmentError on every rank; what was there before works on."""
    warnings = run_small(3, f"""
        with smcoll.Comm(world) as before:
            before.Allreduce(np.ones(10_000), np.ones(10_000))
            small_dev_shm({size!r})
            config = smcoll.Config(strict=True, eager={when == "creation"})
            raised = None
            try:
                comm = smcoll.Comm(world, config)
                if {when == "long call"}:
                    comm.Barrier()
                    comm.Allreduce(np.ones(3), np.ones(3))
                comm.Bcast(np.ones(100_000))
            except smcoll.SegmentError as error:
                raised = str(error)
            assert raised, "no SegmentError"
            assert os.listdir("/dev/shm") == []
            use(before)
        print("end")
        """)
    assert warnings == []


@needs_mount
def test_fills_up_while_in_use():
    """Room for one communicator's data regions only: freeing makes room for the next."""
    cost = smcoll.segment.memory_cost(smcoll.Config(), 2)
    needed = (cost["total"] - cost["streams"]) // 1024 + 1100
    warnings = run_small(2, f"""
        small_dev_shm("{needed}k")
        config = smcoll.Config(budget="1G")
        for _ in range(20):
            with smcoll.Comm(world, config) as comm:
                use(comm)
                assert comm.explain("allreduce", nbytes=80_000).path == "shared memory"
        with smcoll.Comm(world, config) as first, smcoll.Comm(world, config) as second:
            use(first)
            use(second)
            use(first)
            assert first.explain("allreduce", nbytes=80_000).path == "shared memory"
            assert second.explain("allreduce", nbytes=80_000).path == "MPI"
        print("end")
        """)
    assert len(warnings) == 1, warnings


@needs_mount
def test_ranks_that_do_not_share_dev_shm():
    """Each rank has a /dev/shm of its own, as in containers: seen, and a fallback."""
    warnings = run_small(3, """
        mount_for_this_process("64m")
        with smcoll.Comm(world) as comm:
            use(comm)
            assert comm.engine is None
        assert os.listdir("/dev/shm") == []
        print("end")
        """)
    assert len(warnings) == 1, warnings


@needs_mount
@pytest.mark.parametrize("dev_shm", ['small_dev_shm("1m")', 'mount_for_this_process("64m")'])
def test_memfd_where_dev_shm_is_small_or_not_shared(dev_shm):
    """The second choice before MPI: memory without a name, through /proc."""
    warnings = run_small(3, f"""
        {dev_shm}
        with smcoll.Comm(world) as comm:
            use(comm)
            assert comm.gather(comm.rank) == ([0, 1, 2] if comm.rank == 0 else None)
            assert comm.explain("allreduce", nbytes=80_000).path == "shared memory"
            assert comm.engine.segment_name.startswith("/proc/")
            assert os.listdir("/dev/shm") == []
        print("end")
        """, "auto")
    assert warnings == []


@pytest.mark.one_node
@pytest.mark.mpi(3)
def test_wrong_file_under_the_name(comm_world, monkeypatch):
    """The nonce proves that the right segment was mapped (here rank 1 expects another one)."""
    import numpy as np

    from smcoll.comm import setup

    if comm_world.rank == 1:
        real = setup.gather

        def gather(comm, record):
            records = real(comm, record)
            if records[0].get("nonce"):
                records[0]["nonce"] = "00" * 16
            return records

        monkeypatch.setattr(setup, "gather", gather)
    with smcoll.Comm(comm_world) as comm:
        total = np.zeros(3)
        comm.Allreduce(np.ones(3), total)
        assert (total == comm.size).all()
        assert comm.engine is None
        assert comm.explain("allreduce", nbytes=24).path == "MPI"
    monkeypatch.undo()
    with pytest.raises(smcoll.SegmentError):
        if comm_world.rank == 1:
            monkeypatch.setattr(setup, "gather", gather)
        smcoll.Comm(comm_world, smcoll.Config(strict=True)).Barrier()


@pytest.mark.mpi(2, 3)
def test_ranks_with_other_versions_are_refused_by_all(comm_world, monkeypatch):
    from smcoll.comm import setup

    if comm_world.rank == 1:
        monkeypatch.setattr(setup, "__version__", "0.0.1")
    with pytest.raises(smcoll.SegmentError, match=r"different versions of smcoll: .*0\.0\.1"):
        smcoll.Comm(comm_world).Barrier()


@pytest.mark.mpi(2, 3)
def test_a_setting_too_long_to_be_agreed_is_an_error_of_all_ranks(comm_world):
    longest = "x" * (5000 if comm_world.rank == 0 else 5)
    comm = smcoll.Comm(comm_world, smcoll.Config(table=longest))
    with pytest.raises(smcoll.SegmentError, match="rank 0's set-up record"):
        comm.Barrier()
