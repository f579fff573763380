"""Ranks that are alive but slow, stopped or short of memory: nobody takes them for dead."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from surviving import surviving_job

# Every rank waits for the one that is held up, in all three kinds of calls.
LOOP = """
    seconds, held = float(sys.argv[2]), int(sys.argv[3])
    comm = smcoll.Comm(world)
    big = np.full(300_000, rank + 1.0)
    total = np.zeros(300_000)
    comm.Allreduce(big, total)
    names(comm)
    say(pid=os.getpid())
    if held == rank and len(sys.argv) > 4:
        hold_up(sys.argv[4])
    end, longest, calls = now() + seconds, 0.0, 0
    go_on = np.ones(1)
    while go_on[0]:
        began = now()
        comm.Allreduce(big, total)
        comm.Barrier()
        got = comm.alltoall([rank] * size)
        assert (total == size * (size + 1) / 2).all() and got == list(range(size))
        comm.Allreduce(np.array([float(now() < end)]), go_on, MPI.MIN)
        longest, calls = max(longest, now() - began), calls + 1
    say(longest=longest, calls=calls)
    comm.Free()
"""
# The held-up rank goes to the far end of its memory all the time, from a thread of its own.
SQUEEZE = """
def hold_up(cgroup):
    with open(os.path.join(cgroup, "cgroup.procs"), "w") as procs:
        procs.write(str(os.getpid()))
    pages = np.zeros((60 << 20) // 4096 * 4096, np.uint8)
    def touch():
        while True:
            pages[::4096] += 1
            with open(os.path.join(folder, "pages"), "wb") as file:    # page cache to reclaim
                file.write(pages)
    threading.Thread(target=touch, daemon=True).start()
"""


def check_goes_on(job, ledger, title, held_seconds):
    records = job.wait_for("longest", 3)
    assert [record["rank"] for record in records] == [0, 1, 2]
    assert max(record["longest"] for record in records) > held_seconds
    left = job.left_behind()
    ledger.add(fault=title, injected=1, detected=1, left=left)
    assert left == 0


@pytest.mark.faults
def test_a_stopped_rank_is_not_dead(ledger):
    with surviving_job(3, LOOP, 1, -1) as job:
        ranks = _ranks(job)
        os.kill(ranks[1], signal.SIGSTOP)
        time.sleep(5)
        os.kill(ranks[1], signal.SIGCONT)
        check_goes_on(job, ledger, "no alarm: SIGSTOP for 5 s", 4.5)


@pytest.mark.faults
def test_a_rank_that_is_late_is_not_dead(ledger):
    source = "def hold_up(what):\n    time.sleep(3)\n    world.Get_rank()\n"
    with surviving_job(3, _with(source), 1, 2, "asleep") as job:
        check_goes_on(job, ledger, "no alarm: 3 s late", 2.5)


@pytest.mark.faults
def test_a_rank_short_of_memory_is_not_dead(ledger):
    """In a memory cgroup of its own, which reclaims all the time."""
    with _memory_cgroup(160 << 20) as cgroup, surviving_job(
            3, _with(SQUEEZE), 5, 1, cgroup) as job:
        check_goes_on(job, ledger, "no alarm: memory squeezed for 5 s", 0)


def _with(definition: str) -> str:
    import textwrap

    return textwrap.dedent(definition) + textwrap.dedent(LOOP)


def _ranks(job) -> dict[int, int]:
    return {record["rank"]: record["pid"] for record in job.wait_for("pid", 3)}


class _memory_cgroup:
    """A cgroup (v1 or v2) below this process's with so much memory; skips where there is none."""

    def __init__(self, limit: int):
        self.limit = limit

    def __enter__(self) -> str:
        self.folder = None
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            for root, name in (("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
                               ("/sys/fs/cgroup", "memory.high")):
                if controllers not in ("memory", ""):
                    continue
                folder = Path(root + path) / f"smcoll-faults-{os.getpid()}"
                try:
                    folder.mkdir()
                    (folder / name).write_text(str(self.limit))
                except OSError:
                    if folder.exists():
                        folder.rmdir()
                    continue
                self.folder = folder
                return str(folder)
        pytest.skip("needs a memory cgroup that it may divide (root)")

    def __exit__(self, *error) -> None:
        for _ in range(100):
            try:
                self.folder.rmdir()
                return
            except OSError:
                time.sleep(0.05)
