"""Signals, threads, forks and early ends: a defined error in time, or no disturbance at all."""

from __future__ import annotations

import pytest
from surviving import surviving_job

CTRL_C = """
    what = sys.argv[2]
    comm = smcoll.Comm(world, smcoll.Config(timeout=20))
    other, late = smcoll.Comm(world), smcoll.Comm(world)
    def allreduce(count):
        comm.Allreduce(np.ones(count), np.ones(count))
    calls = {"short": lambda: allreduce(4), "large": lambda: allreduce(300_000),
             "Gather": lambda: comm.gather("x" * 100_000),
             "set-up": late.Barrier}
    if what != "set-up":
        calls[what]()
        names(comm)
    other.Barrier()
    names(other)
    call = calls[what]
    if rank == 0:
        sent = []
        def interrupt():
            sent.append(now())
            os.kill(os.getpid(), signal.SIGINT)
        threading.Timer(0.3, interrupt).start()
        first = outcome(lambda: [call() for _ in range(3)])
        again = outcome(call)
        say(first=first, again=again, took=first["ended"] - sent[0])
    else:
        time.sleep(0.8)
        if what != "set-up":
            say(peer=outcome(lambda: [call() for _ in range(3)]))
    for _ in range(5):
        other.Barrier()
    say(works=True)
    time.sleep(30)
"""


@pytest.mark.faults
@pytest.mark.parametrize("what", ["short", "large", "Gather", "set-up"])
def test_ctrl_c_in_a_wait(what, ledger):
    with surviving_job(3, CTRL_C, what) as job:
        job.wait_for("works", 3)
        [mine] = job.records("took")
        assert mine["first"]["error"] == "KeyboardInterrupt"
        assert mine["again"]["error"] == "Error", mine
        for record in job.records("peer"):
            assert record["peer"]["error"] == "PeerError", record
            assert "rank 0 gave the communicator up" in record["peer"]["text"]
        left = job.left_behind()
        ledger.add(fault=f"Ctrl-C in {what}", injected=1, detected=1,
                   milliseconds=[mine["took"] * 1000], left=left)
        assert left == 0
        assert mine["took"] < 0.1


THREADS = """
    comm = smcoll.Comm(world, smcoll.Config(timeout=20))
    comm.Barrier()
    two = [smcoll.Comm(world), smcoll.Comm(world)]
    for each in two:
        each.Barrier()
    names(comm, *two)
    refused = []
    if rank == 0:
        def second():
            time.sleep(0.2)
            refused.append(outcome(lambda: comm.Allreduce(np.ones(1), np.ones(1))))
        thread = threading.Thread(target=second)
        thread.start()
        comm.Allreduce(np.ones(5), total := np.zeros(5))
        thread.join()
    else:
        time.sleep(0.6)
        comm.Allreduce(np.ones(5), total := np.zeros(5))
    assert (total == size).all()
    comm.Barrier()
    first_calls = smcoll.Comm(world)
    def set_up():
        refused.append(outcome(first_calls.Barrier))
    if rank == 0:
        both = [threading.Thread(target=set_up) for _ in range(2)]
        for thread in both:
            thread.start()
        for thread in both:
            thread.join()
    else:
        time.sleep(0.4)
        first_calls.Barrier()
    comm.Barrier()

    wrong = []
    def loop(comm, count):
        for i in range(150):
            total = np.zeros(count)
            comm.Allreduce(np.full(count, rank + i), total)
            if not (total == size * (size - 1) / 2 + i * size).all():
                wrong.append(i)
    if MPI.Query_thread() == MPI.THREAD_MULTIPLE:
        both = [threading.Thread(target=loop, args=(two[0], 5)),
                threading.Thread(target=loop, args=(two[1], 30_000))]
        for thread in both:
            thread.start()
        for thread in both:
            thread.join()
    say(refused=refused, wrong=wrong)
    time.sleep(30)
"""


@pytest.mark.faults
def test_two_threads(ledger):
    """On one communicator, also while it is set up: an error for one. On two: both go on."""
    with surviving_job(3, THREADS) as job:
        records = job.wait_for("refused", 3)
        assert all(record["wrong"] == [] for record in records)
        [second, *set_up] = records[0]["refused"]
        assert second["error"] == "Error" and "one call at a time" in second["text"]
        assert sorted(end["error"] or "" for end in set_up) == ["", "Error"], set_up
        ledger.add(fault="two threads, one communicator", injected=2, detected=2,
                   left=job.left_behind())


CHILDREN = """
    import multiprocessing, subprocess
    comm = smcoll.Comm(world, smcoll.Config(timeout=20))

    def use(comm, count):
        total = np.zeros(count)
        comm.Allreduce(np.full(count, rank + 1.0), total)
        assert (total == size * (size + 1) / 2).all()

    def in_child(queue):
        queue.put(outcome(comm.Barrier))

    use(comm, 10)
    use(comm, 300_000)
    names(comm)
    ends = []
    for _ in range(3):
        assert subprocess.run(["true"]).returncode == 0
        context = multiprocessing.get_context("fork")
        queue = context.SimpleQueue()
        child = context.Process(target=in_child, args=(queue,))
        child.start()
        ends.append(queue.get())
        child.join()
        pid = os.fork()
        if pid == 0:
            del comm                  # its destructors run in the child
            os._exit(0)               # (sys.exit would finalise MPI there: mpi4py's handler)
        os.waitpid(pid, 0)
        use(comm, 10)
        use(comm, 300_000)
    say(ends=ends)
    # A helper that lives on when its rank is dead.
    if rank == 1:
        if os.fork() == 0:
            time.sleep(20)
            os._exit(0)
        die("SIGKILL")
    say(after=outcome(lambda: [use(comm, 10) for _ in range(3)]))
    time.sleep(30)
"""


@pytest.mark.faults
def test_forked_children(ledger):
    """They disturb nothing, can't use the communicator, and don't keep a dead rank alive."""
    with surviving_job(3, CHILDREN) as job:
        afters = job.wait_for("after", 2)
        [death] = job.records("dies")
        for record in job.records("ends"):
            for end in record["ends"]:
                assert end["error"] == "Error" and "forked" in end["text"], end
        delays = [(record["after"]["ended"] - death["at"]) * 1000 for record in afters]
        assert all(record["after"]["error"] == "PeerError" for record in afters), afters
        left = job.left_behind()
        ledger.add(fault="SIGKILL, its forked helper lives", injected=1, detected=1,
                   milliseconds=delays, left=left)
        assert left == 0 and max(delays) < 1000


EARLY_ENDS = """
    how = sys.argv[2]
    comm = smcoll.Comm(world, smcoll.Config(timeout=20))
    comm.Allreduce(np.ones(3), np.ones(3))
    names(comm)
    if rank == 1:
        time.sleep(0.3)
        say(dies=how)
        if how == "Finalize":
            MPI.Finalize()
            say(finalized=True)
            time.sleep(30)
        if how == "exit":
            sys.exit(0)
        if how == "exception":
            try:
                with comm:
                    raise ValueError("between two collectives")
            except ValueError:
                pass
    else:
        say(after=outcome(lambda: [comm.Barrier() for _ in range(3)]))
    time.sleep(30)
"""
TOLD = {"Finalize": "has freed the communicator or ended",
        "exit": "has freed the communicator or ended", "exception": "gave the communicator up"}


@pytest.mark.faults
@pytest.mark.parametrize("how", TOLD)
def test_a_rank_ends_early(how, ledger):
    """MPI.Finalize, the interpreter's end, or an exception, while the others wait."""
    with surviving_job(3, EARLY_ENDS, how) as job:
        afters = job.wait_for("after", 2)
        [death] = job.records("dies")
        for record in afters:
            assert record["after"]["error"] == "PeerError", record
            assert "rank 1" in record["after"]["text"], record
        assert any(TOLD[how] in record["after"]["text"] for record in afters), afters
        delays = [(record["after"]["ended"] - death["at"]) * 1000 for record in afters]
        left = job.left_behind()
        ledger.add(fault=f"{how} while others wait", injected=1, detected=1, milliseconds=delays,
                   left=left)
        assert left == 0 and max(delays) < 1000


HANDLER = """
    comm = smcoll.Comm(world, smcoll.Config(timeout=20))
    refused = []
    if rank == 0:
        def handler(number, frame):
            refused.append(outcome(comm.Barrier))
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, 0.2)
    else:
        time.sleep(0.6)
    comm.Barrier()
    comm.Allreduce(np.ones(3), total := np.zeros(3))
    assert (total == size).all()
    names(comm)
    say(refused=refused)
    time.sleep(30)
"""


@pytest.mark.faults
def test_a_signal_handler_calls_a_collective_during_set_up(ledger):
    with surviving_job(3, HANDLER) as job:
        [refused] = job.wait_for("refused", 3)[0]["refused"]
        assert refused["error"] == "Error" and "set up" in refused["text"]
        ledger.add(fault="collective in a handler during set-up", injected=1, detected=1,
                   left=job.left_behind())
