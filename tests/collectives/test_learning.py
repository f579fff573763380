"""A communicator that learns: all ranks change at the same call, results stay right, the best wins.

What is tried, and when, depends on times; so most of these tests are ``restless``.
"""

from __future__ import annotations

import json
import os
import time

import numpy as np
import pytest
from mpi4py import MPI
from restless import Program, Restless, be_restless, compute

import smcoll
from smcoll.engine import learning
from smcoll.topology import sysfs
from smcoll.tuning import exploration, select
from smcoll.tuning.variants import for_communicator, order_of

SCANS = [pytest.param(name, marks=pytest.mark.staged("scans are named there, and not learned"))
         for name in ("scan", "exscan")]
SIZES = (600, 1300, 4096, 7000, 20_000, 70_000, 300_000)


@pytest.mark.one_node
@pytest.mark.mpi(2, 3, 5, 8)
@pytest.mark.parametrize("sizes", [SIZES[:4], SIZES[3:]], ids=["short", "long"])
def test_results_stay_right_while_rows_change_all_the_time(comm_world, mpi_ranks, sizes,
                                                           monkeypatch):
    be_restless(monkeypatch)
    # A communicator explores most in its first calls. How much in all depends on the clock.
    for seed in range(120):
        with smcoll.Comm(comm_world, smcoll.Config(learn="on", strict=True)) as comm:
            Program(comm, 100 * mpi_ranks + seed).run(1500, sizes)
            changes = comm.bcast(Restless.changes)
        if changes > 60:
            break
    assert changes > 60


class Decided(Restless):
    """One trial, then another variant for good."""

    def __init__(self, variants, current=0, known=None):
        super().__init__(variants, current, known)
        self.left = 2
        self.numbers.remove(current)


@pytest.mark.one_node
@pytest.mark.mpi(2, 3)
def test_what_is_told_while_operations_have_no_kernel_is_heeded(comm_world, monkeypatch):
    """Those follow no variant, but rank 0 tells in them: a word that nobody looked at is lost.

    A series of reductions with a kernel is as long as a trial; 0, 3 or 4 without one follow it.
    Rank 0 can tell a word in every third call. It tells one in the first or second of the calls
    without a kernel, and the next one in the first call of the next series. A rank that is late for
    that call finds only the second word, unless it has looked before.
    """
    be_restless(monkeypatch)
    monkeypatch.setattr(learning, "Exploration", Decided)
    learned = 0
    for seed in range(12):
        with smcoll.Comm(comm_world, smcoll.Config(learn="on", strict=True)) as comm:
            program = Program(comm, seed)
            program.last = MPI.Op.Create(lambda one, other, _: None, commute=False)
            for _ in range(14):
                for size in (10_000, 20_000, 70_000, 200_000):
                    if program.rank > 0:
                        compute(3e-4)      # later than rank 0 has told
                    for _ in range(10):
                        program.call += 1
                        program.allreduce(size // 8, 0)
                    for _ in range(program.random.choice((0, 3, 4))):
                        program.call += 1
                        program.ordered(1, 0)
            program.last.Free()
            learned += comm.bcast(len(comm.engine.lessons))
    assert learned > 12


@pytest.mark.one_node
@pytest.mark.mpi(3, 5, 8)
@pytest.mark.parametrize("collective", ["allreduce", "reduce", "reduce_scatter", *SCANS])
@pytest.mark.parametrize("nbytes", [64, 3000, 50_000])
def test_what_may_be_tried_gives_the_same_bits(comm_world, mpi_ranks, collective, nbytes):
    """Variants of one order: floating-point sums are rounded alike, wherever a rank's data lie."""
    size, count = comm_world.Get_size(), nbytes // 8
    block = count // size + 1
    values = np.random.default_rng(comm_world.Get_rank()).normal(size=block * size)
    values *= 10.0 ** (np.arange(block * size) % 9)
    with smcoll.Comm(comm_world, smcoll.Config(learn="off")) as comm:
        engine = comm.engine
        rows = engine.decisions
        usual = select.decision_for(rows, collective, nbytes)
        found = for_communicator(engine.config, rows, size, len(engine.domains),
                                 engine.oversubscribed)[collective]
        orders = {order_of(collective, row): set() for row in (usual, *found)}
        for row in (usual, *found):
            engine.use({collective: [row]})
            result = np.zeros(block if collective == "reduce_scatter" else block * size)
            method = collective if collective != "reduce_scatter" else "reduce_scatter_block"
            getattr(comm, method.capitalize())(values, result)
            orders[order_of(collective, row)].add(result.tobytes())
        assert {order: len(bits) for order, bits in orders.items()} == dict.fromkeys(orders, 1)
        assert len(found) > 1


@pytest.mark.one_node
@pytest.mark.mpi(2, 4)
def test_a_class_keeps_the_variant_that_was_fastest(comm_world, monkeypatch):
    """The times are the test's: the same choice on all ranks, shown by explain, told at the end."""
    real = exploration.Exploration

    class Judged(real):
        def record(self, nanoseconds):
            row = self.variants.get(self._on_trial)
            time = 1000.0
            if row is not None and row.algorithm == "tiled":
                time = 100.0 if row.section_bytes == 32 << 10 else 500.0
            super().record([time] * len(nanoseconds))

    monkeypatch.setattr(learning, "Exploration", Judged)
    data = np.arange(100_000 // 8, dtype="d")
    result = np.empty_like(data)
    with smcoll.Comm(comm_world, smcoll.Config(learn="on")) as comm:
        for _ in range(600):
            comm.Allreduce(data, result)
        told = comm.explain("allreduce", data.nbytes)
        assert (told.algorithm, told.parameters["section_bytes"]) == ("tiled", 32 << 10), told
        assert "learned" in told.reason
        assert "learned" not in comm.explain("allreduce", data.nbytes * 4).reason
        if comm.rank == 0:
            assert "in this job: tiled 0.1 us, " in told.reason
            lesson, = comm.engine.lessons.values()
            assert lesson.times[lesson.variant] == 100.0
            assert lesson.cost > 0 and lesson.tried >= 2 * len(lesson.times)
            line, = comm.engine.lines_of_lessons()
            assert line.startswith("allreduce of up to 131072 bytes: tiled 0.1 us, "), line


@pytest.mark.one_node
@pytest.mark.mpi(2)
def test_two_ranks_measure_behind_a_change_of_regions(comm_world, monkeypatch):
    """Short sections come back to a place sooner: with sections of 16 KiB both ranks have stored in
    all places of the ring after four calls of 64 KiB, with 32 KiB after eight."""
    lengths, calls = {}, 0

    class Counting(exploration.Exploration):
        def record(self, nanoseconds):
            if self._on_trial and self.variants[self._on_trial].algorithm == "all_read":
                section = self.variants[self._on_trial].section_bytes
                lengths.setdefault(section, set()).add(calls - self.began)
            # All alike, so that all are tried.
            super().record([1000.0] * len(nanoseconds))

        def next(self):
            self.began = calls
            return super().next()

    monkeypatch.setattr(learning, "Exploration", Counting)
    # Which sections are tried follows from it.
    monkeypatch.setattr(sysfs, "core_cache", lambda: 1 << 20)
    data = np.ones(65536 // 8)
    config = smcoll.Config(learn="on", table="off")
    with smcoll.Comm(comm_world, config) as comm:
        for _ in range(600):
            calls += 1
            comm.Allreduce(data, np.empty_like(data))
        assert comm.bcast(len(comm.engine.lessons)) == 1
    if comm_world.Get_rank() == 0:
        short, long = lengths[16 << 10], lengths[32 << 10]
        assert len(short) == 1 and long == {4 + short.pop()}, lengths


@pytest.mark.one_node
@pytest.mark.mpi(2, 3)
@pytest.mark.parametrize("others", [0, 8])
@pytest.mark.parametrize("collective", ["bcast", "reduce", "allreduce", "allgather",
                                        "reduce_scatter_block", *SCANS])
def test_each_collective_is_learned_whatever_is_called_in_between(comm_world, collective, others):
    """Alltoalls have calls' numbers, but nothing to learn, and do not take a trial's place."""
    size = comm_world.Get_size()
    data, blocks = np.ones(3000 * size), np.empty(3000 * size * size)
    short = np.ones(size, "b")
    with smcoll.Comm(comm_world, smcoll.Config(learn="on")) as comm:
        arguments = {"bcast": (data,), "allgather": (data, blocks),
                     "reduce_scatter_block": (data, data[:3000].copy())}.get(
                         collective, (data, data.copy()))
        method = getattr(comm, collective.capitalize())
        learned = {"reduce_scatter_block": "reduce_scatter"}.get(collective, collective)
        for _ in range(40):
            for _ in range(100):
                method(*arguments)
                comm.Allreduce(short, np.empty_like(short), MPI.MAX)
                for _ in range(others):
                    comm.Alltoall(short, np.empty_like(short))
            found = {name for name, in_class in getattr(comm.engine, "lessons", {}) if in_class > 8}
            if comm.bcast(learned in found):
                break
        else:
            pytest.fail(f"4000 calls, and nothing was found: {found}")


@pytest.mark.one_node
@pytest.mark.mpi(2)
def test_what_was_given_up_is_over_and_comes_again(comm_world):
    """A class that is called no more: nothing is kept of it, and the table's row holds."""
    data = np.ones(3000)
    with smcoll.Comm(comm_world, smcoll.Config(learn="on")) as comm:
        usual = comm.explain("bcast", data.nbytes).algorithm
        for _ in range(40):
            comm.Bcast(data)
            comm.Barrier()
        for _ in range(20_000):
            comm.Barrier()
        lessons = comm.bcast(comm.engine.lessons)
        assert not any(name == "bcast" for name, _ in lessons)
        assert comm.explain("bcast", data.nbytes).algorithm == usual
        before = sum(row["calls"] for row in comm.stats() if row["algorithm"] == usual)
        for _ in range(5):
            comm.Bcast(data)
        assert sum(row["calls"] for row in comm.stats()
                   if row["algorithm"] == usual) == before + 5
        for _ in range(3000):
            comm.Bcast(data)
            comm.Barrier()
        lessons = comm.bcast(comm.engine.lessons)
        assert any(name == "bcast" for name, _ in lessons)


@pytest.mark.one_node
@pytest.mark.mpi(8)
def test_where_ranks_share_cpus_a_trial_takes_the_work_of_all(comm_world, monkeypatch):
    """There the last rank may arrive when the others are done: that it was quick says nothing.

    No time is judged: what was recorded is compared with the CPU time of the same calls, and with
    the time from the last arrival to the last departure.
    """
    recorded, worked, arrived, left = [], [], [], []

    class Recording(Restless):
        def next(self):
            self.left = 6          # it may not end before its first trial
            return super().next()

        def record(self, nanoseconds):
            recorded.extend(nanoseconds)

    monkeypatch.setattr(learning, "Exploration", Recording)
    data = np.ones(1 << 17)
    cpus = len(os.sched_getaffinity(0))
    config = smcoll.Config(learn="on", table="off", algorithms="barrier=all_read")
    with smcoll.Comm(comm_world, config) as comm:
        if not comm.engine.oversubscribed:
            pytest.skip("each rank has a CPU of its own")
        for _ in range(300):
            if comm.rank == comm.size - 1:
                time.sleep(0.002)
            arrived.append(time.monotonic_ns())
            began = time.thread_time_ns()
            comm.Bcast(data)
            worked.append(time.thread_time_ns() - began)
            left.append(time.monotonic_ns())
            comm.Barrier()
        totals = np.sum(comm.allgather(worked), axis=0) / cpus
        spans = np.max(comm.allgather(left), axis=0) - np.max(comm.allgather(arrived), axis=0)
        if comm.rank == 0:
            assert recorded
            longest = max(*totals, *spans)
            assert min(recorded) > 0.6 * min(totals) and max(recorded) <= longest, (
                recorded, totals)


@pytest.mark.staged("with heaps there are alternatives")
@pytest.mark.one_node
@pytest.mark.mpi(2)
def test_a_class_without_alternatives_is_not_explored(comm_world, monkeypatch):
    be_restless(monkeypatch)
    with smcoll.Comm(comm_world, smcoll.Config(learn="on", table="off")) as comm:
        send, recv = np.ones(1), np.empty(1)
        for _ in range(500):
            comm.Allreduce(send, recv)
            comm.Barrier()
    assert Restless.changes == 0


@pytest.mark.one_node
@pytest.mark.mpi(2)
def test_what_no_synchronising_call_let_begin_begins_with_the_first_that_come(comm_world,
                                                                             monkeypatch):
    """Rank 0 looks at few of many calls without one, and at all again when there are some."""
    be_restless(monkeypatch)
    with smcoll.Comm(comm_world, smcoll.Config(learn="on", table="off")) as comm:
        data = np.ones(2048)
        for _ in range(5000):
            comm.Bcast(data, 0)
        assert Restless.changes == 0
        for _ in range(100):
            for _ in range(200):
                comm.Bcast(data, 0)
                comm.Barrier()
            explored = comm_world.bcast(("bcast", 14) in comm.engine.lessons)
            if explored:
                break
    assert explored


@pytest.mark.one_node
@pytest.mark.mpi(2)
@pytest.mark.parametrize("settings, why", [
    ({"learn": "off"}, "it was switched off"),
    ({"learn": "use"}, "only what is known is used"),
    ({"learn": "on", "algorithms": "allreduce=tiled"}, "the algorithm was named"),
])
def test_nothing_is_tried_where(comm_world, settings, why, monkeypatch):
    be_restless(monkeypatch)
    data = np.ones(10_000)
    with smcoll.Comm(comm_world, smcoll.Config(**settings)) as comm:
        for _ in range(200):
            comm.Allreduce(data, np.empty_like(data))
        names = {row["algorithm"] for row in comm.stats() if row["collective"] == "allreduce"}
        assert len(names) == 1 and Restless.changes == 0, why


@pytest.mark.one_node
@pytest.mark.mpi(2)
def test_who_decides_by_hand_ends_the_learning(comm_world, monkeypatch):
    be_restless(monkeypatch)
    data = np.ones(10_000)
    with smcoll.Comm(comm_world, smcoll.Config(learn="on")) as comm:
        for _ in range(100):
            comm.Allreduce(data, np.empty_like(data))
        assert comm.rank != 0 or Restless.changes > 0
        row = select.override(comm.engine.decisions["allreduce"][-1], "allreduce", "tiled")
        comm.engine.use({"allreduce": [row]})
        before, changes = comm.stats(), Restless.changes
        for _ in range(100):
            comm.Allreduce(data, np.empty_like(data))
        calls = {row["algorithm"]: row["calls"] for row in comm.stats()}
        calls_before = {row["algorithm"]: row["calls"] for row in before}
        assert calls["tiled"] == calls_before.get("tiled", 0) + 100
        assert Restless.changes == changes


@pytest.mark.staged("its default is staged")
@pytest.mark.one_node
@pytest.mark.mpi(2, 3)
def test_the_next_job_begins_with_what_was_found(comm_world, monkeypatch, tmp_path_factory):
    folder = comm_world.bcast(str(tmp_path_factory.mktemp("cache")))
    monkeypatch.setenv("XDG_CACHE_HOME", folder)

    class Judged(exploration.Exploration):
        def record(self, nanoseconds):
            row = self.variants.get(self._on_trial)
            super().record([100.0 if row and row.algorithm == "tiled" else 1000.0]
                           * bool(nanoseconds))

    monkeypatch.setattr(learning, "Exploration", Judged)
    data = np.ones(8000)
    result = np.empty_like(data)
    for learn, expected in (("on", None), ("use", "tiled"), ("off", "all_read"), ("on", "tiled")):
        with smcoll.Comm(comm_world, smcoll.Config(learn=learn)) as comm:
            if expected is not None:
                told = comm.explain("allreduce", data.nbytes)
                assert told.algorithm == expected or mpi_default(comm, told), (learn, told)
            if expected is None:
                for _ in range(600):
                    comm.Allreduce(data, result)
    if comm_world.Get_rank() == 0:
        (file,) = os.listdir(os.path.join(folder, "smcoll"))
        with open(os.path.join(folder, "smcoll", file)) as text:
            content = json.load(text)
        (entry,) = content["kinds"].values()
        assert entry["allreduce"]["16"]["best"]["algorithm"] == "tiled"


def mpi_default(comm, told):
    """What no other job has learned: the default for more ranks, tiled already."""
    return comm.size > 2 and told.algorithm == "tiled"


@pytest.mark.one_node
@pytest.mark.mpi(2)
def test_a_freed_communicator_that_learned_is_refused(comm_world, monkeypatch):
    """Its shared memory is gone, and with it the word that calls look at."""
    be_restless(monkeypatch)
    comm = smcoll.Comm(comm_world, smcoll.Config(learn="on"))
    for _ in range(50):
        comm.Barrier()
    comm.Free()
    for call in (comm.Barrier, lambda: comm.Allreduce(np.ones(1), np.empty(1)),
                 lambda: comm.allreduce(1)):
        with pytest.raises(MPI.Exception):
            call()


@pytest.mark.one_node
@pytest.mark.mpi(2)
def test_a_forked_child_changes_nothing_for_its_parent(comm_world, monkeypatch):
    """It is refused, and tells nobody anything: not even the child of rank 0."""
    be_restless(monkeypatch)
    data, result = np.ones(2000), np.empty(2000)
    with smcoll.Comm(comm_world, smcoll.Config(learn="on")) as comm:
        for _ in range(40):
            comm.Allreduce(data, result)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                for _ in range(100):
                    with pytest.raises(smcoll.Error):
                        comm.Barrier()
                code = 0
            finally:
                os._exit(code)
        for _ in range(200):
            comm.Bcast(data, 0)
            comm.Allreduce(data, result)
        assert os.waitpid(child, 0)[1] == 0
        assert (result == 2).all()
