"""Ranks that disagree about a collective: all are told, both sides are named, no data is wrong."""

from __future__ import annotations

import pytest
from surviving import surviving_job

# Each case on a communicator of its own: the odd rank's call, the others' call, and what must
# stand in the message. All ranks go on with barriers, so that those who had already returned learn.
CASES = """
    def allreduce(count=64, op=MPI.SUM, code="d"):
        return lambda comm: comm.Allreduce(np.ones(count, code), np.ones(count, code), op)
    def bcast(count=8, root=1):
        return lambda comm: comm.Bcast(np.ones(count), root)
    def reduce(count=8, root=0, op=MPI.SUM):
        return lambda comm: comm.Reduce(np.ones(count), np.ones(count), op, root)
    def through_mpi():
        # An operation without a kernel on elements whose bytes lie outside their extent.
        kind = MPI.DOUBLE.Create_contiguous(2).Create_resized(0, 8).Commit()
        op = MPI.Op.Create(lambda given, result, datatype: None)
        return lambda comm: comm.Allreduce([bytearray(64), 2, kind], [bytearray(64), 2, kind], op)
    large = 200_000
    cases = {
        "collective": (
            bcast(), allreduce(),
            "rank 2 called Bcast(root=1, 64 B), the others Allreduce(SUM, float64, 512 B)"),
        "collective, large": (bcast(large), allreduce(large),
                              "Bcast(root=1, 1600000 B), the others Allreduce(SUM, float64"),
        "large and short": (allreduce(4), allreduce(large), "32 B), the others Allreduce"),
        "byte count": (allreduce(63), allreduce(), "504 B), the others Allreduce"),
        "byte count, large": (allreduce(large + 1), allreduce(large), "1600008 B), the others"),
        "root": (bcast(8, 0), bcast(8, 1), "Bcast(root=0, 64 B), the others Bcast(root=1, 64 B)"),
        "root, large": (bcast(large, 0), bcast(large, 1), "Bcast(root=0, 1600000 B), the others"),
        "op": (allreduce(op=MPI.MAX), allreduce(), "Allreduce(MAX, float64, 512 B), the others"),
        "op, large": (reduce(large, 0, MPI.MIN), reduce(large), "Reduce(MIN, float64, root=0"),
        "element type": (allreduce(code="q"), allreduce(), "Allreduce(SUM, int64, 512 B), the oth"),
        "element type, large": (allreduce(large, code="q"), allreduce(large), "SUM, int64, 160"),
        "Allgather": (lambda comm: comm.Allgather(np.ones(1), np.ones(size)),
                      lambda comm: comm.Allgather(np.ones(3), np.ones(3 * size)),
                      "rank 2 called Allgather(8 B), the others Allgather(24 B)"),
        "Allgather, large": (
            lambda comm: comm.Allgather(np.ones(large + 1), np.ones((large + 1) * size)),
            lambda comm: comm.Allgather(np.ones(large), np.ones(large * size)),
            "rank 2 called Allgather(1600008 B), the others Allgather(1600000 B)"),
        "streams": (lambda comm: comm.gather(1), lambda comm: comm.alltoall([1] * size),
                    "rank 2 called gather(root=0), the others alltoall"),
        "one side in MPI": (through_mpi(), allreduce(), "the others Allreduce(SUM, float64, 512 B"),
        "the others in MPI": (allreduce(), through_mpi(), "rank 2 called Allreduce(SUM, float64"),
    }
    for name, (odd, usual, text) in cases.items():
        comm = smcoll.Comm(world, smcoll.Config(timeout=20))
        comm.Allreduce(np.ones(100_000), np.ones(100_000))    # data regions, and
        comm.gather(1)                                        # streams are there
        names(comm)
        def rounds():
            (odd if rank == 2 else usual)(comm)
            while True:
                comm.Barrier()
                time.sleep(0.001)
        world.Barrier()
        began = now()
        first = outcome(rounds)
        again = outcome(comm.Barrier)
        say(case=name, wanted=text, first=first, again=again, took=first["ended"] - began)
    say(done=True)
    time.sleep(30)
"""


@pytest.mark.faults
def test_every_kind_of_mismatch(ledger):
    with surviving_job(4, CASES) as job:
        job.wait_for("done", 4, 120)
        cases: dict[str, list[dict]] = {}
        for record in job.records("case"):
            cases.setdefault(record["case"], []).append(record)
        for name, records in cases.items():
            texts = [record["first"]["text"] for record in records]
            for record in records:
                assert record["first"]["error"] == "MismatchError", (name, record)
                assert record["again"]["error"] == "MismatchError", (name, record)
            assert any(records[0]["wanted"] in text for text in texts), (name, texts)
            ledger.add(fault=f"mismatch: {name}", injected=1, detected=1,
                       milliseconds=[record["took"] * 1000 for record in records],
                       left=job.left_behind())


# Random sequences in which one rank, from some call on, makes another call than the others. What
# completes is checked: a call of the wrong side must not get the other side's data.
RANDOM = """
    import random
    seed = int(sys.argv[2])
    shared = random.Random(seed)
    def one(comm, kind, count, root, op, code):
        if kind in ("bcast", "allgather"):
            code = "d"        # movement compares bytes, since MPI lets unlike types meet
        if kind == "allreduce":
            total = np.zeros(count, code)
            comm.Allreduce(np.full(count, rank + 1, code), total, op)
            wanted = size * (size + 1) // 2 if op == MPI.SUM else size
            assert (total == wanted).all(), "wrong Allreduce"
        elif kind == "bcast":
            data = np.full(count, root + 7 if rank == root else 0, code)
            comm.Bcast(data, root)
            assert (data == root + 7).all(), "wrong Bcast"
        elif kind == "reduce":
            total = np.zeros(count, code)
            comm.Reduce(np.full(count, rank + 1, code), total, op, root)
            wanted = size * (size + 1) // 2 if op == MPI.SUM else size
            assert rank != root or (total == wanted).all(), "wrong Reduce"
        elif kind == "allgather":
            got = np.zeros(count * size, code)
            comm.Allgather(np.full(count, rank + 1, code), got)
            assert (got == np.repeat(np.arange(size) + 1, count)).all(), "wrong Allgather"
        elif kind == "objects":
            assert comm.allgather(rank) == list(range(size)), "wrong allgather"
        else:
            comm.Barrier()
    def draw():
        return (shared.choice(("allreduce", "bcast", "reduce", "allgather", "objects", "barrier")),
                shared.choice((1, 3, 200, 3000, 40_000)), shared.randrange(size),
                shared.choice((MPI.SUM, MPI.MAX)), shared.choice("dqi"))
    for program in range(int(sys.argv[3])):
        comm = smcoll.Comm(world, smcoll.Config(timeout=20))
        odd, wrong_at, right, strange = shared.randrange(size), shared.randrange(1, 12), None, None
        calls = [draw() for _ in range(30)]
        strange = draw()
        def rounds():
            for number, call in enumerate(calls):
                if number == wrong_at and rank == odd:
                    call = strange
                one(comm, *call)
            for _ in range(100):
                comm.Barrier()
        end = outcome(rounds)
        same = strange == calls[wrong_at]
        say(program=program, error=end["error"], text=end["text"], same=same,
            right=repr(calls[wrong_at]), strange=repr(strange))
        world.Barrier()
    say(done=True)
    time.sleep(30)
"""


@pytest.mark.faults
@pytest.mark.parametrize("seed", [1, 2])
def test_random_mismatches(seed, ledger):
    programs = 40
    with surviving_job(3, RANDOM, seed, programs) as job:
        job.wait_for("done", 3, 120)
        ends: dict[int, list[dict]] = {}
        for record in job.records("program"):
            ends.setdefault(record["program"], []).append(record)
        told = [records for records in ends.values() if not records[0]["same"]]
        seen = 0
        for records in told:
            kinds = {record["error"] for record in records}
            # None: what the ranks compare was equal (another root of an allgather, say).
            assert kinds in ({"MismatchError"}, {None}), records
            seen += kinds == {"MismatchError"}
        assert seen > len(told) * 0.8
        ledger.add(fault="random mismatch", injected=len(told), detected=seen)


NEVER_CALLS = """
    comm = smcoll.Comm(world, smcoll.Config(timeout=1))
    comm.gather(1)
    names(comm)
    began = now()
    if rank != 1:
        end = outcome(lambda: comm.Bcast(np.ones(int(sys.argv[2])), 1))
        say(end=end, took=end["ended"] - began)
    time.sleep(30)
"""


@pytest.mark.faults
@pytest.mark.parametrize("count", [4, 200_000])
def test_a_rank_that_never_calls(count, ledger):
    with surviving_job(3, NEVER_CALLS, count) as job:
        records = job.wait_for("end", 2)
        for record in records:
            assert record["end"]["error"] == "WaitTimeout", record
            assert "rank 1" in record["end"]["text"] and "Bcast" in record["end"]["text"]
        assert any("gather" in record["end"]["text"] for record in records), records
        ledger.add(fault="a rank never calls, timeout=1", injected=1, detected=1,
                   milliseconds=[record["took"] * 1000 for record in records],
                   left=job.left_behind())
