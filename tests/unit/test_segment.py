"""The mapping: its size, when it is made and reserved, and that nothing of it is left behind."""

from __future__ import annotations

import gc
import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest
from huge_pages import HUGE_PAGE, bytes_in_huge_pages
from mpi4py import MPI
from programs import run_ranks, start_ranks

import smcoll
from smcoll import segment

pytestmark = pytest.mark.own_job

PAGE = os.sysconf("SC_PAGESIZE")
SEGMENTS = ("/dev/shm/smcoll-", "/memfd:smcoll")
HEAPS = "/memfd:smcoll-heap"
RESERVED = "counts memory: with a threshold of a byte the first call reserves the data regions"


def is_segment(path: str) -> bool:
    return path.startswith(SEGMENTS) and not path.startswith(HEAPS)


def mappings() -> list[tuple[int, str]]:
    """(bytes, path) of this process's smcoll segments."""
    found = []
    for line in Path("/proc/self/maps").read_text().splitlines():
        fields = line.split(None, 5)
        if len(fields) == 6 and is_segment(fields[5]):
            start, end = (int(number, 16) for number in fields[0].split("-"))
            found.append((end - start, fields[5]))
    return found


def segment_files() -> list[os.stat_result]:
    """The open files of this process that are smcoll segments."""
    files = []
    for entry in os.scandir("/proc/self/fd"):
        try:
            if is_segment(os.readlink(entry.path)):
                files.append(os.stat(entry.path))
        except OSError:
            continue
    return files


def names_in_dev_shm() -> list[str]:
    """Names that stay. (Other jobs on this machine may be setting a segment up just now.)"""
    names = {name for name in os.listdir("/dev/shm") if name.startswith("smcoll-")}
    for _ in range(100):
        if not names:
            break
        time.sleep(0.02)
        names &= set(os.listdir("/dev/shm"))
    return sorted(names)


def allreduce(comm, count=4) -> None:
    total = np.zeros(count)
    comm.Allreduce(np.full(count, comm.Get_rank() + 1.0), total)
    assert (total == comm.Get_size() * (comm.Get_size() + 1) / 2).all()


CONFIGS = [
    {},
    {"segment_size": 4096, "segments": 1, "internals": {"banks": 1}},
    {"segment_size": "64K", "segments": 2, "internals": {"banks": 4, "inline_size": 8192}},
    {"segment_size": "1M", "segments": 5,
     "internals": {"banks": 3, "rooted_inline_size": 4096}},
    {"segment_size": 4096, "segments": 64, "internals": {"banks": 8}},
]


@pytest.mark.parametrize("fields", CONFIGS)
def test_memory_cost_is_linear(fields):
    """total = header + ranks * (control + streams + banks * segments * segment_size), in pages."""
    config = smcoll.Config(**fields).settled(oversubscribed=False)
    costs = {ranks: segment.memory_cost(config, ranks) for ranks in (2, 3, 16, 1000)}
    data = config.internals.banks * config.segments * config.segment_size
    for ranks, cost in costs.items():
        assert cost["data"] == ranks * data
        assert cost["control"] == ranks * costs[2]["control_per_rank"]
        assert cost["streams"] == ranks * cost["streams_per_rank"]
        parts = ("header", "control", "streams", "data")
        assert cost["total"] == sum(cost[part] for part in parts)
        assert all(cost[part] % PAGE == 0 for part in parts)


def test_streams_keep_to_their_share():
    """About stream_size per rank; beyond 64 ranks the smallest rings, of two pages, to each."""
    for ranks in (2, 3, 16, 64):
        streams = segment.memory_cost(smcoll.Config(), ranks)["streams_per_rank"]
        cells = (ranks - 1) * 8 * 256 + ranks * 128
        assert streams <= (2 << 20) + cells + PAGE
    assert segment.memory_cost(smcoll.Config(), 1000)["streams_per_rank"] < 1000 * (2 * PAGE + 1024)


@pytest.mark.lengthy
@pytest.mark.staged(RESERVED)
@pytest.mark.one_node
@pytest.mark.mpi(2, 3, 5)
@pytest.mark.parametrize("fields", CONFIGS)
@pytest.mark.parametrize("eager", [False, True])
def test_size_reservation_and_end(comm_world, fields, eager):
    """The formula's value is the mapping's real size; what is reserved is what was needed."""
    assert mappings() == []
    comm = smcoll.Comm(comm_world, smcoll.Config(**fields, eager=eager))
    if eager:
        assert len(mappings()) == 1
    else:
        assert mappings() == [] and segment_files() == []
        allreduce(comm, 1)
    cost = segment.memory_cost(comm.engine.config, comm_world.size)
    [(size, path)] = mappings()
    [file] = segment_files()
    assert size == file.st_size == cost["mapped"] >= cost["total"]
    assert path.endswith("(deleted)") and file.st_nlink == 0
    assert file.st_mode & 0o777 == 0o600
    # Another rank may be behind us, never ahead by what we look at.
    comm_world.Barrier()
    reserved = segment_files()[0].st_blocks * 512
    assert reserved == (cost["total"] if eager else cost["header"] + cost["control"])
    comm_world.Barrier()
    allreduce(comm, 100_000)
    comm_world.Barrier()
    reserved = segment_files()[0].st_blocks * 512
    assert reserved == cost["total"] - (0 if eager else cost["streams"])
    comm_world.Barrier()
    comm.gather(None)
    comm_world.Barrier()
    assert segment_files()[0].st_blocks * 512 == cost["total"]
    comm_world.Barrier()
    comm.Free()
    assert mappings() == [] and segment_files() == []
    assert names_in_dev_shm() == []


@pytest.mark.staged(RESERVED)
@pytest.mark.one_node
@pytest.mark.mpi(2, 3)
@pytest.mark.parametrize("memory", ["shm", "memfd"])
def test_regions_and_streams_of_all_ranks_lie_in_huge_pages(comm_world, huge_pages, memory):
    """Control pages, which don't fill one, have small ones."""
    with smcoll.Comm(comm_world, smcoll.Config(memory=memory)) as comm:
        def huge_pages_of_the_segment():
            comm_world.Barrier()
            [address] = [int(line.split("-")[0], 16)
                         for line in Path("/proc/self/maps").read_text().splitlines()
                         if is_segment(line.split(None, 5)[-1])]
            found = bytes_in_huge_pages(address) // HUGE_PAGE
            comm_world.Barrier()
            return found

        allreduce(comm)
        assert huge_pages_of_the_segment() == 0
        allreduce(comm, 100_000)
        regions = huge_pages_of_the_segment()
        # Where memory is in pieces, the kernel may refuse one now and then.
        data = segment.memory_cost(comm.engine.config, comm.size)["data"]
        assert 1 <= regions <= data // HUGE_PAGE
        comm.gather(None)
        streams = huge_pages_of_the_segment() - regions
        assert 1 <= streams <= comm.size
        allreduce(comm, 100_000)


@pytest.mark.parametrize("fields", CONFIGS)
@pytest.mark.parametrize("ranks", [1, 2, 7])
def test_ranges_begin_at_huge_pages_where_there_is_room_for_one(fields, ranks):
    cost = segment.memory_cost(smcoll.Config(**fields), ranks)
    if cost["data_per_rank"] < HUGE_PAGE:
        assert cost["mapped"] == cost["total"]
    else:
        assert cost["mapped"] % HUGE_PAGE == 0
        assert cost["mapped"] - cost["total"] < HUGE_PAGE * (1 + 3 * ranks)


@pytest.mark.mpi(2)
def test_one_mapping_and_descriptor_per_communicator(comm_world):
    comms = [smcoll.Comm(comm_world) for _ in range(5)]
    for comm in comms:
        allreduce(comm)
        allreduce(comm)
    assert len(mappings()) == len(segment_files()) == 5
    for number, comm in enumerate(comms):
        comm.Free()
        assert len(mappings()) == len(segment_files()) == 4 - number


@pytest.mark.mpi(2)
def test_with_block(comm_world):
    with smcoll.Comm(comm_world) as comm:
        allreduce(comm)
        assert len(mappings()) == 1
    assert comm == MPI.COMM_NULL
    assert mappings() == []


@pytest.mark.mpi(2, 3)
def test_exception_leaves_the_with_block_without_waiting(comm_world):
    """The others may be anywhere: they are told, not waited for."""
    if comm_world.rank == 0:
        with pytest.raises(ZeroDivisionError):  # noqa: SIM117
            with smcoll.Comm(comm_world, smcoll.Config(eager=True)) as comm:
                raise ZeroDivisionError
    else:
        with pytest.raises(smcoll.Error):  # noqa: SIM117
            with smcoll.Comm(comm_world, smcoll.Config(eager=True, timeout=30)) as comm:
                comm.Barrier()


@pytest.mark.mpi(2, 3)
def test_garbage_collection_is_local(comm_world):
    """One rank drops its communicator, the others still have theirs: nobody waits for anybody."""
    comm = smcoll.Comm(comm_world)
    allreduce(comm)
    comm.Barrier()
    if comm_world.rank == 0:
        del comm
        gc.collect()
        assert mappings() == []
    comm_world.Barrier()
    with smcoll.Comm(comm_world) as second:
        allreduce(second)
        allreduce(second, 50_000)
    if comm_world.rank != 0:
        del comm
        gc.collect()
        assert mappings() == []


@pytest.mark.lengthy
@pytest.mark.mpi(2, 5)
def test_made_and_freed_in_a_loop(comm_world):
    """Neither descriptors nor the budget run out: the last one is as good as the first."""
    descriptors = None
    for turn in range(200):
        with smcoll.Comm(comm_world) as comm:
            allreduce(comm, 1 if turn % 4 else 10_000)
            assert comm.explain("allreduce", nbytes=80_000).path != "MPI"
        if turn == 20:
            descriptors = len(os.listdir("/proc/self/fd"))
    assert len(os.listdir("/proc/self/fd")) <= descriptors + 1
    assert mappings() == []


@pytest.mark.staged(RESERVED)
@pytest.mark.one_node
@pytest.mark.mpi(2)
def test_many_at_once(comm_world):
    """Two tiers: hundreds of communicators with small messages cost a few pages each."""
    comms = [smcoll.Comm(comm_world) for _ in range(100)]
    for comm in comms:
        allreduce(comm)
    cost = segment.memory_cost(smcoll.Config(), comm_world.size)
    comm_world.Barrier()
    assert sum(file.st_blocks * 512 for file in segment_files()) == 100 * (
        cost["header"] + cost["control"])
    comm_world.Barrier()
    for comm in comms:
        comm.Free()


@pytest.mark.staged(RESERVED)
@pytest.mark.one_node
@pytest.mark.mpi(2)
def test_budget(comm_world, capfd):
    """Memory beyond the budget is refused on all ranks alike; freeing gives it back."""
    data = segment.memory_cost(smcoll.Config(), comm_world.size)["data"]
    config = smcoll.Config(budget=data + data // 2)
    for _ in range(40):
        with smcoll.Comm(comm_world, config) as comm:
            allreduce(comm, 10_000)
            assert comm.explain("allreduce", nbytes=80_000).path == "shared memory"
    assert capfd.readouterr().err == ""
    with smcoll.Comm(comm_world, config) as first, smcoll.Comm(comm_world, config) as second:
        allreduce(first, 10_000)
        allreduce(second, 10_000)
        allreduce(second, 3)
        assert first.explain("allreduce", nbytes=80_000).path == "shared memory"
        assert second.explain("allreduce", nbytes=80_000).path == "MPI"
        assert second.explain("allreduce", nbytes=8).path == "shared memory"
    warnings = capfd.readouterr().err.splitlines()
    assert len(warnings) == (1 if comm_world.rank == 0 else 0)


@pytest.mark.mpi(2)
def test_fork(comm_world):
    """A child's copy of the communicator does nothing to the parent's, not even when it ends."""
    with smcoll.Comm(comm_world) as comm:
        allreduce(comm, 10_000)
        child = os.fork()
        if child == 0:
            try:
                engine = comm.engine
                del engine
                gc.collect()
            finally:
                os._exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        for _ in range(100):
            allreduce(comm, 10_000)
        time.sleep(0.05)
        comm.Barrier()
        allreduce(comm)


@pytest.mark.mpi(2)
def test_a_forked_child_does_not_set_up_what_its_parent_has_not(comm_world):
    comm = smcoll.Comm(comm_world)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            comm.Barrier()
        except smcoll.Error as error:
            status = 7 if "forked" in str(error) else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    allreduce(comm)
    comm.Free()


@pytest.mark.parametrize("kind", ["shm", "memfd"])
def test_the_lock_says_who_is_alive(kind):
    """Of a stopped process, too, and not of one that was killed, zombie or not."""
    nonce = bytes(segment.NONCE_BYTES)
    mapping = segment.Mapping(0, 2, smcoll.Config())
    name = mapping.create(nonce, kind)
    attached, say = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            peer = segment.Mapping(1, 2, smcoll.Config())
            peer.attach(name, nonce, kind)
            os.write(say, b"!")
            time.sleep(100)
        finally:
            os._exit(1)
    try:
        os.close(say)
        assert os.read(attached, 1) == b"!"
        assert mapping.is_alive(1)
        os.kill(child, signal.SIGSTOP)
        os.waitpid(child, os.WUNTRACED)
        assert mapping.is_alive(1)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    try:
        assert not mapping.is_alive(1)  # a zombie
        os.waitpid(child, 0)
        assert not mapping.is_alive(1)
    finally:
        os.close(attached)
        mapping.unlink()
        mapping.close()


@pytest.mark.mpi(1, 2)
def test_one_rank_needs_no_segment(comm_world):
    with smcoll.Comm(MPI.COMM_SELF) as comm:
        allreduce(comm)
        assert comm.explain("allreduce", nbytes=8).path == "MPI"
        assert mappings() == []


# ---------------------------------------------------------------------- jobs of their own

AT_EXIT = """
    import numpy as np, smcoll, sys
    from mpi4py import MPI
    kept = [smcoll.Comm(MPI.COMM_WORLD) for _ in range(3)]
    for comm in kept:
        comm.Allreduce(np.ones(9000), np.ones(9000))
    if sys.argv[1] == "finalize":
        MPI.Finalize()
    print("end")
"""


@pytest.mark.parametrize("how", ["exit", "finalize"])
def test_ends_well_without_free(how):
    result = run_ranks(3, AT_EXIT, how)
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("end") == 3
    assert result.stderr == ""
    assert names_in_dev_shm() == []


INITIALIZED_BY_THE_PROGRAM = """
    import mpi4py
    mpi4py.rc.initialize = False
    import smcoll
    from mpi4py import MPI
    import numpy as np
    assert not MPI.Is_initialized()
    MPI.Init()
    with smcoll.Comm(MPI.COMM_WORLD) as comm:
        total = np.zeros(2)
        comm.Allreduce(np.ones(2), total)
        assert total[0] == comm.size and comm.engine is not None
    MPI.Finalize()
    print("end")
"""


def test_import_initialises_nothing():
    result = run_ranks(2, INITIALIZED_BY_THE_PROGRAM)
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("end") == 2


KILLED_IN_A_COLLECTIVE = """
    import numpy as np, os, smcoll, sys
    from mpi4py import MPI
    comm = smcoll.Comm(MPI.COMM_WORLD)
    data, total = np.ones(200_000), np.zeros(200_000)
    comm.Allreduce(data, total)
    with open(os.path.join(sys.argv[1], f"pid-{comm.rank}"), "w") as file:
        file.write(str(os.getpid()))
    while True:
        comm.Allreduce(data, total)
        comm.Bcast(data)
"""


def wait_for_pids(directory: Path, ranks: int) -> list[int]:
    end = time.monotonic() + 60
    while time.monotonic() < end:
        texts = [file.read_text() for file in directory.glob("pid-*")]
        if len(texts) == ranks and all(texts):
            return [int(text) for text in texts]
        time.sleep(0.02)
    raise AssertionError(f"only {len(texts)} of {ranks} ranks got that far")


def kill_all(job, pids) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    job.kill()
    job.wait()


def test_killed_in_a_collective_leaves_nothing(tmp_path):
    job = start_ranks(4, KILLED_IN_A_COLLECTIVE, tmp_path)
    pids = wait_for_pids(tmp_path, 4)
    time.sleep(0.3)
    kill_all(job, pids)
    assert names_in_dev_shm() == []


KILLED_DURING_SET_UP = """
    import numpy as np, os, smcoll, sys, time
    from mpi4py import MPI
    from smcoll.comm import setup
    comm = smcoll.Comm(MPI.COMM_WORLD)

    def never(comm, step):
        with open(os.path.join(sys.argv[1], f"pid-{comm.Get_rank()}"), "w") as file:
            file.write(str(os.getpid()))
        time.sleep(1000)

    setup.attempt = never      # the file has a name, nobody else has mapped it
    comm.Barrier()
"""


@pytest.mark.lengthy
@pytest.mark.staged("its set-up stops at the first step, which is the heaps' there")
def test_stale_file_of_a_kill_during_set_up_is_removed(tmp_path):
    job = start_ranks(2, KILLED_DURING_SET_UP, tmp_path)
    pids = wait_for_pids(tmp_path, 2)
    [name] = names_in_dev_shm()
    # A job that sets up meanwhile must leave it alone: its creator lives.
    assert run_ranks(2, AT_EXIT, "exit").returncode == 0
    assert names_in_dev_shm() == [name]
    # From now on any job on this machine may remove it.
    kill_all(job, pids)
    assert run_ranks(2, AT_EXIT, "exit").returncode == 0
    assert name not in names_in_dev_shm()


def test_what_others_left_is_not_touched(tmp_path):
    """Only this user's own unlocked segments are stale; other files only look like it."""
    other = Path(f"/dev/shm/smcollection-of-{os.getpid()}")   # other suites may run beside this
    other.write_text("mine")
    try:
        assert run_ranks(2, AT_EXIT, "exit").returncode == 0
        assert other.read_text() == "mine"
    finally:
        other.unlink()
