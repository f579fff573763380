"""What the ranks of test_memory's jobs run. Each function is a job; rank 0 prints what it found."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import resource
import time
from pathlib import Path

import numpy as np
import own_dev_shm
from mpi4py import MPI

import smcoll
from smcoll.comm import setup
from smcoll.memory.budget import budget
from smcoll.mpi import agreement
from smcoll.topology import node

world = MPI.Intracomm(MPI.COMM_WORLD)
DEV_SHM = Path("/dev/shm")


def report(**facts) -> None:
    """Where the test looks for it."""
    if world.rank == 0:
        print("RESULT " + json.dumps(facts), flush=True)


def start_mpi() -> None:
    """MPI attaches to its own shared memory now, before any fault."""
    world.Alltoall(np.zeros(world.size, "i"), np.zeros(world.size, "i"))
    world.Allreduce(np.zeros(100_000), np.zeros(100_000))
    world.Allgather(np.zeros(4096, "B"), np.zeros(4096 * world.size, "B"))


def use(comm, counts=(1, 100, 5000, 100_000)) -> None:
    """Short and long calls of every path, results checked."""
    rank, size = comm.Get_rank(), comm.Get_size()
    for count in counts:
        total = np.zeros(count)
        comm.Allreduce(np.full(count, rank + 1.0), total)
        assert (total == size * (size + 1) / 2).all()
        comm.Bcast(total, size - 1)
        blocks = np.zeros((size, count))
        comm.Alltoall(np.full((size, count), float(rank)), blocks)
        assert (blocks == np.arange(size)[:, None]).all()
    assert comm.allgather(rank) == list(range(size))
    comm.Barrier()


def left() -> int:
    """Names in /dev/shm that nobody put there on purpose."""
    world.Barrier()
    names = [name for name in os.listdir(DEV_SHM) if name.startswith("smcoll-")]
    world.Barrier()
    return len(names)


def fall_back(fault: str, memory: str = "shm", undo=lambda: None) -> None:
    """Under a fault: one agreed fallback, then SegmentError on all ranks with strict=True."""
    world.Barrier()
    began = time.perf_counter()
    comm = smcoll.Comm(world, smcoll.Config(memory=memory))
    comm.Barrier()
    milliseconds = (time.perf_counter() - began) * 1e3
    refused = comm.engine is None
    use(comm, (1, 100, 5000, 20_000))  # within what RLIMIT_AS leaves
    comm.Free()
    raised = False
    comm = smcoll.Comm(world, smcoll.Config(memory=memory, strict=True))
    try:
        comm.Barrier()
    except smcoll.SegmentError:
        raised = True
    refused, raised = world.allgather(refused), world.allgather(raised)
    with contextlib.suppress(smcoll.Error):
        comm.Free()
    undo()
    # Nothing was spoilt: the next one has what it needs.
    with smcoll.Comm(world, smcoll.Config(memory="memfd")) as comm:
        use(comm)
        healthy = world.allgather(comm.engine is not None)
    report(fault=fault, agreed=all(refused) and all(raised), milliseconds=milliseconds,
           left=left(), healthy=all(healthy))


# ---------------------------------------------------------------------- /dev/shm


def dev_shm() -> None:
    start_mpi()
    own_dev_shm.mount_for_all(world, "16k")
    fall_back("/dev/shm too small")
    own_dev_shm.mount_again(world, "8m")
    if world.rank == 0:
        with contextlib.suppress(OSError), open(DEV_SHM / "filler", "wb", buffering=0) as filler:
            while True:
                filler.write(bytes(65536))
        with contextlib.suppress(OSError), open(DEV_SHM / "filler2", "wb", buffering=0) as filler:
            while True:
                filler.write(bytes(4096))
    fall_back("/dev/shm full")
    own_dev_shm.mount_again(world, "64m", read_only=True)
    fall_back("/dev/shm not writable")
    own_dev_shm.mount_for_this_process("64m")
    fall_back("/dev/shm not shared by the ranks")


def fills_up_while_in_use() -> None:
    """What is reserved stays usable in a full /dev/shm; what is not is refused, in agreement."""
    start_mpi()
    own_dev_shm.mount_for_all(world, "64m")
    with smcoll.Comm(world, smcoll.Config(memory="shm", budget="1G")) as comm:
        comm.Barrier()
        if world.rank == 0:
            room = os.statvfs(DEV_SHM)
            with open(DEV_SHM / "filler", "wb") as filler:
                os.posix_fallocate(filler.fileno(), 0, room.f_bavail * room.f_frsize)
        world.Barrier()
        began = time.perf_counter()
        comm.Bcast(np.zeros(100_000))
        milliseconds = (time.perf_counter() - began) * 1e3
        use(comm)
        paths = world.allgather([comm.explain("allreduce", nbytes=size).path
                                 for size in (8, 800_000)])
    world.Barrier()
    if world.rank == 0:
        os.unlink(DEV_SHM / "filler")
    world.Barrier()
    with smcoll.Comm(world, smcoll.Config(memory="shm", budget="1G")) as comm:
        use(comm)
        healthy = comm.explain("allreduce", nbytes=800_000).path == "shared memory"
    report(fault="/dev/shm fills up while in use", left=left(), milliseconds=milliseconds,
           agreed=all(pair[0] == "shared memory" for pair in paths)
           and len({pair[1] for pair in paths}) == 1 and paths[0][1] == "MPI",
           healthy=all(world.allgather(healthy)))


# ---------------------------------------------------------------------- limits of a process


@contextlib.contextmanager
def limited(rank: int, which: int, value):
    """One rank has this limit."""
    before = resource.getrlimit(which)
    if world.rank == rank:
        resource.setrlimit(which, (value(), before[1]))

    def undo():
        resource.setrlimit(which, before)

    try:
        yield undo
    finally:
        undo()


def address_space_and_a_little() -> int:
    fields = Path("/proc/self/status").read_text().split("VmSize:")[1].split()
    return int(fields[0]) * 1024 + (8 << 20)


def descriptors_in_use() -> int:
    lowest_free = os.dup(0)
    os.close(lowest_free)
    return lowest_free


def limits() -> None:
    start_mpi()
    with smcoll.Comm(world) as comm:
        use(comm)
    with smcoll.Comm(world, smcoll.Config(memory="memfd")) as comm:
        use(comm)
    gc.collect()
    big = {"SMCOLL_SEGMENT_SIZE": "1M"}  # 16 MiB a rank: not within the little
    os.environ.update(big)
    for rank in (0, 1):
        with limited(rank, resource.RLIMIT_AS, address_space_and_a_little) as undo:
            fall_back("RLIMIT_AS", "auto", undo)
    os.environ.pop("SMCOLL_SEGMENT_SIZE")
    with limited(0, resource.RLIMIT_FSIZE, lambda: 4096) as undo:
        fall_back("RLIMIT_FSIZE", "auto", undo)
    with limited(1, resource.RLIMIT_NOFILE, descriptors_in_use) as undo:
        fall_back("RLIMIT_NOFILE", "auto", undo)


# ---------------------------------------------------------------------- the cgroup's limit


def in_cgroup(folder: str, room: int) -> None:
    """All ranks join the cgroup, which gets a limit of ``room`` bytes beyond what it uses then."""
    start_mpi()
    with smcoll.Comm(world) as comm:
        use(comm, (1,))
    group = Path(folder)
    # Only rank 1's memory counts from now on: the others' is theirs as before.
    if world.rank == 1:
        (group / "cgroup.procs").write_text(str(os.getpid()))
    world.Barrier()
    if world.rank == 0:
        names = (("memory.current", "memory.max") if (group / "memory.max").exists()
                 else ("memory.usage_in_bytes", "memory.limit_in_bytes"))
        used = int((group / names[0]).read_text())
        (group / names[1]).write_text(str(used + room))
    world.Barrier()
    seen = world.allgather(node.memory_headroom())
    began = time.perf_counter()
    with smcoll.Comm(world, smcoll.Config(segment_size="2M", budget="4G")) as comm:
        use(comm)
        milliseconds = (time.perf_counter() - began) * 1e3
        path = comm.explain("allreduce", nbytes=800_000).path
    report(fault="cgroup's memory limit", milliseconds=milliseconds, left=left(),
           agreed=world.allgather(path) == ["MPI"] * world.size,
           healthy=seen[1] <= room)


# ---------------------------------------------------------------------- killed while setting up


def killed_at(step: int, rank: int) -> None:
    """This rank dies in front of set-up's agreement number ``step``."""
    real, calls = agreement.gather, [0]

    def gather(comm, record):
        calls[0] += 1
        if calls[0] == step and world.rank == rank:
            os.kill(os.getpid(), 9)
        return real(comm, record)

    start_mpi()
    setup.gather = agreement.gather = gather
    smcoll.Comm(world, smcoll.Config(memory="shm")).Barrier()
    print("NOT KILLED", flush=True)


# ---------------------------------------------------------------------- many communicators


def made_and_freed(turns: int) -> None:
    start_mpi()
    began = time.perf_counter()
    descriptors = None
    for turn in range(turns):
        with smcoll.Comm(world) as comm:
            total = np.zeros(1)
            comm.Allreduce(np.ones(1), total)
            assert total[0] == world.size
            if turn % 500 == 0:
                use(comm, (5000,))
                assert comm.explain("allreduce", nbytes=80_000).path == "shared memory"
        if turn == 100:
            descriptors = len(os.listdir("/proc/self/fd"))
    milliseconds = (time.perf_counter() - began) * 1e3 / turns
    more = len(os.listdir("/proc/self/fd")) - descriptors
    report(fault="communicators made and freed", milliseconds=milliseconds,
           left=left() + max(0, more), agreed=budget.claimed == 0, healthy=True)


def alive_at_once(count: int, size: str, memory: str) -> None:
    """In a /dev/shm of ``size``; those that don't fit fall back, on all ranks alike."""
    start_mpi()
    own_dev_shm.mount_for_all(world, size)
    began = time.perf_counter()
    comms = [smcoll.Comm(world, smcoll.Config(memory=memory, timeout=100)) for _ in range(count)]
    for comm in comms:
        comm.Barrier()
    milliseconds = (time.perf_counter() - began) * 1e3 / count
    fitting = [comm.engine is not None for comm in comms]
    everywhere = world.allgather(fitting)
    for comm in comms:
        total = np.zeros(3)
        comm.Allreduce(np.full(3, world.rank + 1.0), total)
        assert (total == world.size * (world.size + 1) / 2).all()
    # Another use of the memory that is left: long calls, whatever path they may take.
    for comm in comms[:: max(1, count // 3)]:
        use(comm, (5000,))
    for comm in comms:
        comm.Free()
    with smcoll.Comm(world, smcoll.Config(memory=memory)) as comm:
        comm.Barrier()
        healthy = comm.engine is not None
    report(fault="many communicators at once", milliseconds=milliseconds, fitting=sum(fitting),
           agreed=all(row == fitting for row in everywhere) and budget.claimed == 0,
           left=left(), healthy=all(world.allgather(healthy)))
