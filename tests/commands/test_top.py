"""Who waits for whom: `smcoll top` from outside, and a report on a signal from inside."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from programs import start_ranks

import smcoll
from smcoll import segment
from smcoll.launch import launch
from smcoll.sync.observation import Observation, RankView, missing, summary

STUCK = """
    import os, sys, time
    import numpy as np
    from mpi4py import MPI
    import smcoll
    comm = smcoll.Comm(MPI.COMM_WORLD)
    comm.Set_name("the whole [/of it]")
    idle = smcoll.Comm(MPI.COMM_WORLD)
    comm.Allreduce(np.ones(4), np.ones(4))
    idle.Barrier()

    def late_somewhere_else():
        while not os.path.exists(os.path.join(sys.argv[1], "go on")):
            time.sleep(0.01)

    with open(os.path.join(sys.argv[1], f"pid-{comm.rank}"), "w") as file:
        file.write(str(os.getpid()))
    if comm.rank == 1:
        late_somewhere_else()
    comm.Bcast(np.ones(100_000), 1)
    comm.Free()
    idle.Free()
"""


BUSY = """
    import os, sys, time
    import numpy as np
    from mpi4py import MPI
    import smcoll

    def asked(what):
        # Of rank 0, by MPI: the watched communicator's calls are all alike.
        here = os.path.exists(os.path.join(sys.argv[1], what)) if world.rank == 0 else None
        return world.bcast(here, 0)

    world = MPI.COMM_WORLD
    comm = smcoll.Comm(world)
    comm.Allreduce(np.ones(4), np.ones(4))
    open(os.path.join(sys.argv[1], "busy"), "w").close()
    later = None
    while not asked("end"):
        for _ in range(20):
            comm.Allreduce(np.ones(4), np.ones(4))
        time.sleep(0.01)
        if later is None and asked("one more"):
            later = smcoll.Comm(world)
            later.Barrier()
        if later is not None and asked("one less"):
            later.Free()
            later = None
    comm.Free()
"""
ENVIRONMENT = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def top_line(*arguments):
    return launch.own_command("top", *map(str, arguments))


def top(*arguments):
    return subprocess.run(top_line(*arguments), capture_output=True, text=True, timeout=60,
                          env=os.environ | ENVIRONMENT)


@pytest.fixture
def stuck(tmp_path):
    """A job whose ranks 0 and 2 wait for rank 1: (mpiexec, pids by rank, its stderr)."""
    errors = open(tmp_path / "errors", "w+")  # noqa: SIM115
    job = start_ranks(3, STUCK, tmp_path, environment={"SMCOLL_REPORT_SIGNAL": "QUIT"},
                      stderr=errors, stdout=errors)
    end = time.monotonic() + 60
    while not all((tmp_path / f"pid-{rank}").exists() for rank in range(3)):
        assert time.monotonic() < end and job.poll() is None, (tmp_path / "errors").read_text()
        time.sleep(0.02)
    time.sleep(0.5)
    pids = [int((tmp_path / f"pid-{rank}").read_text()) for rank in range(3)]
    yield job, pids, tmp_path / "errors"
    (tmp_path / "go on").touch()
    assert job.wait(60) == 0, (tmp_path / "errors").read_text()
    errors.close()


def test_top_shows_who_waits_for_whom(stuck):
    """From the launcher's pid or a rank's; the job, stopped ranks included, goes on afterwards."""
    job, pids, _ = stuck
    for pid in (job.pid, pids[2]):
        result = top(pid, "--json", "--no-stacks")
        assert result.returncode == 0, result.stderr
        record = json.loads(result.stdout)
        assert [one["name"] for one in record["communicators"]] == [
            "the whole [/of it]", ""]
        ranks = record["communicators"][0]["ranks"]
        assert [rank["pid"] for rank in ranks] == pids
        assert [rank["state"] for rank in ranks] == ["waiting", "outside", "waiting"]
        assert [rank["awaits"] for rank in ranks] == [1, None, 1]
        assert ranks[0]["what"] == "Bcast(root=1, 800000 B)"
        assert ranks[1]["what"] == "Allreduce(SUM, float64, 32 B)"
        assert ranks[0]["call"] == ranks[1]["call"] + 1
        assert 0.2 < ranks[0]["waiting_seconds"] < 60
        idle = record["communicators"][1]["ranks"]
        assert {(rank["state"], rank["what"]) for rank in idle} == {("outside", "Barrier")}
    os.kill(pids[1], signal.SIGSTOP)
    time.sleep(0.1)
    table = top(pids[0], "--no-stacks")
    os.kill(pids[1], signal.SIGCONT)
    assert "the whole [/of it]: 3 ranks" in table.stdout
    assert "waiting for rank 1" in table.stdout and "stopped, outside" in table.stdout
    assert "ranks 0 and 2 wait in the end for rank 1" in table.stdout


@pytest.fixture(params=[2, 3])
def busy(request, tmp_path):
    """A job that does nothing but Allreduces until the file "end" is there."""
    job = start_ranks(request.param, BUSY, tmp_path)
    while not (tmp_path / "busy").exists():
        assert job.poll() is None
        time.sleep(0.02)
    yield job, request.param
    (tmp_path / "end").touch()
    assert job.wait(60) == 0


@pytest.mark.lengthy
def test_top_watches_a_job_to_its_end(busy, tmp_path):
    """Communicators that come and go are seen; when none is left, so is top."""
    job, ranks = busy
    with subprocess.Popen(top_line(job.pid, "--watch", "0.1", "--json"), text=True,
                          stdout=subprocess.PIPE, env=os.environ | ENVIRONMENT) as watching:
        def until(holds):
            for line in watching.stdout:
                if holds(record := json.loads(line)["communicators"]):
                    return record
            raise AssertionError("top ended before it had shown that")

        def all_busy(record):
            return [(rank["what"], rank["calls_per_second"] > 0) for rank in record[0]["ranks"]
                    ] == [("Allreduce(SUM, float64, 32 B)", True)] * ranks

        [first] = until(all_busy)
        [second] = until(all_busy)
        assert first["ranks"][0]["call"] < second["ranks"][0]["call"]
        (tmp_path / "one more").touch()
        until(lambda record: len(record) == 2)
        (tmp_path / "one more").unlink()
        (tmp_path / "one less").touch()
        until(lambda record: len(record) == 1)
        (tmp_path / "end").touch()
        for line in watching.stdout:
            json.loads(line)
        assert watching.wait(30) == 0


@pytest.mark.lengthy
def test_top_watches_in_a_terminal_until_interrupted(busy):
    """The table is drawn again and again in place; Ctrl-C ends it without a word."""
    job, ranks = busy
    terminal, other_side = os.openpty()
    with subprocess.Popen(top_line(job.pid, "--watch", "0.1"), stdout=other_side,
                          stderr=other_side, stdin=other_side,
                          env=os.environ | ENVIRONMENT | {"TERM": "xterm", "COLUMNS": "120"},
                          # Where the tests run in the background it is ignored, and inherited so.
                          preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
                          ) as watching:
        os.close(other_side)
        shown = b""
        while shown.count(b": %d ranks" % ranks) < 3:
            shown += os.read(terminal, 65536)
        watching.send_signal(signal.SIGINT)
        with contextlib.suppress(OSError):  # the last reader of the other side is gone
            while part := os.read(terminal, 65536):
                shown += part
        assert watching.wait(30) == 0, shown
    os.close(terminal)
    text = shown.decode()
    assert "Allreduce(SUM, float64, 32 B)" in text
    assert "\x1b[1A" in text and "Traceback" not in text


@pytest.mark.one_node
@pytest.mark.mpi(2)
def test_who_left_and_who_gave_up(comm_world):
    """What a rank says of itself in shared memory is what an observer reads there."""
    comm = smcoll.Comm(comm_world, smcoll.Config(eager=True))
    comm.Barrier()
    comm.Bcast(np.ones(3), 1)
    comm_world.Barrier()
    views = comm.engine.observe()
    assert [view.state for view in views] == ["outside"] * 2
    assert [view.what for view in views] == ["Bcast(root=1, 24 B)"] * 2
    assert views[0].call == views[1].call
    comm_world.Barrier()
    if comm.rank == 1:
        comm.engine.abandon()
    comm_world.Barrier()
    assert [view.state for view in comm.engine.observe()] == ["outside", "gave up"]
    comm_world.Barrier()


def test_too_short_to_be_a_status():
    with pytest.raises(ValueError):
        segment.status_fields(bytes(segment.STATUS_BYTES - 1))
    with pytest.raises(ValueError):
        segment.published_fields(bytes(segment.PUBLISHED_BYTES - 1))


def test_top_without_a_job():
    result = top(os.getpid())
    assert result.returncode == 1 and "no communicator" in result.stderr
    assert top(2 ** 22 + 1).returncode == 2


def test_report_on_a_signal(stuck):
    """In a wait, and in Python code: the stacks, every rank, and who is missing."""
    _, pids, errors = stuck
    for rank in (0, 1):
        before = len(errors.read_text())
        end = time.monotonic() + 30
        asked = 0.0
        while "in the end for" not in (text := errors.read_text()[before:]):
            assert time.monotonic() < end, text
            if time.monotonic() > asked + 2:
                # Again: a rank that had no CPU for a while has not said yet that it waits.
                asked = time.monotonic()
                os.kill(pids[rank], signal.SIGQUIT)
            time.sleep(0.02)
        assert f"of 3 ranks, seen by its rank {rank}" in text
        assert "rank 0: waiting for rank 1" in text
        assert "rank 1: outside" in text
        assert "ranks 0 and 2 wait in the end for rank 1" in text
        assert "most recent call first" in text
        assert rank == 0 or "late_somewhere_else" in text


def view(rank, state="outside", awaits=None):
    return RankView(rank, True, 10 + rank, 5, "Barrier", state, awaits, 1.0)


def test_missing_is_who_waits_for_nobody():
    chain = [view(0, "waiting", 1), view(1, "waiting", 2), view(2), view(3)]
    assert [each.rank for each in missing(chain)] == [2]
    assert summary(chain).startswith("ranks 0 and 1 wait in the end for rank 2, outside")
    assert summary([view(0), view(1)]) == ""
    ring = [view(0, "waiting", 1), view(1, "waiting", 0)]
    assert summary(ring) == "ranks 0 and 1 wait for each other or for MPI"


@pytest.mark.parametrize("content", [b"", b"x" * 5000, b"smcoll\x00\x01" + b"\xff" * 5000])
def test_other_files_are_no_mappings(tmp_path, content):
    (tmp_path / "file").write_bytes(content)
    descriptor = os.open(tmp_path / "file", os.O_RDONLY)
    try:
        with pytest.raises(OSError):
            Observation(descriptor)
    finally:
        os.close(descriptor)
