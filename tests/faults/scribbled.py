"""A rank of a job over whose segments somebody scribbles; see test_security."""

from __future__ import annotations

import collections
import contextlib
import faulthandler
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from mpi4py import MPI

import smcoll

world = MPI.Intracomm(MPI.COMM_WORLD)
SCRIBBLER = str(Path(__file__).with_name("scribbler.py"))
# All memory is reserved at the start: a scribbled vote on reserving it would send some ranks to
# MPI, where nothing of ours can time out.
SETTINGS = {"segment_size": 4096, "eager": True, "warn_after": 0, "timeout": 1.0,
            "strict": True, "internals": {"stream_size": 65536}}
PLAIN = [1.5, 7, None, True, 2j, np.float32(3), b"x" * 40, b"y" * 3000, "text" * 50]


def a_call(comm, rng: random.Random) -> None:
    """A random collective, the same on every rank; its results are whatever they are."""
    rank, size = comm.Get_rank(), comm.Get_size()
    count = rng.choice((1, 3, 30, 300, 3000))
    root = rng.randrange(size)
    send, many = np.full(count, rank + 1.0), np.ones((size, count))
    thing = rng.choice(PLAIN)
    kind = rng.randrange(12)
    if kind == 0:
        comm.Allreduce(send, np.zeros(count))
    elif kind == 1:
        comm.Bcast(send, root)
    elif kind == 2:
        comm.Reduce(send, np.zeros(count), MPI.SUM, root)
    elif kind == 3:
        comm.Barrier()
    elif kind == 4:
        comm.Gatherv(send[:rank + 1], [np.zeros(size * count), [count] * size], root)
    elif kind == 5:
        comm.Scatter(many, np.zeros(count), root)
    elif kind == 6:
        comm.Allgather(send, many)
    elif kind == 7:
        comm.Alltoall(many, np.zeros((size, count)))
    elif kind == 8:
        comm.Scan(send, np.zeros(count))
    elif kind == 9:
        comm.bcast(thing, root)
        comm.allgather(thing)
    elif kind == 10:
        comm.gather(thing, root)
        comm.scatter([thing] * size, root)
    else:
        comm.alltoall([thing] * size)


def descriptor_of_the_segment() -> str:
    for entry in os.scandir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if os.readlink(entry.path).startswith(("/dev/shm/smcoll-", "/memfd:smcoll")):
                return f"/proc/{os.getpid()}/fd/{entry.name}"
    raise AssertionError("no segment")


def start_scribbler() -> subprocess.Popen | None:
    """One for the whole job, of rank 0."""
    if world.rank != 0:
        return None
    return subprocess.Popen([sys.executable, SCRIBBLER, str(world.size), json.dumps(SETTINGS)],
                            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def one_round(scribbler, seed: int, seconds: float) -> tuple[str, int]:
    """Make a communicator, use it while it is scribbled over; how that ended, and calls made."""
    comm = smcoll.Comm(world, smcoll.Config(**SETTINGS))
    comm.Barrier()
    world.Barrier()  # everybody is out of the first before it is scribbled over
    if scribbler is not None:
        scribbler.stdin.write(f"{descriptor_of_the_segment()} {seed} {seconds}\n")
        scribbler.stdin.flush()
        assert scribbler.stdout.readline() == "ready\n"
    world.Barrier()
    rng, calls, outcome = random.Random(seed), 0, "went on"
    end = time.monotonic() + seconds
    try:
        # Every rank stops by itself; who is left alone times out.
        while time.monotonic() < end:
            a_call(comm, rng)
            calls += 1
    except Exception as error:
        outcome = type(error).__name__
    world.Barrier()
    if scribbler is not None:
        assert int(scribbler.stdout.readline()) > 0
    comm.Free()
    return outcome, calls


def main() -> None:
    rounds, seconds, seed = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
    outcomes: collections.Counter[str] = collections.Counter()
    total, slowest = 0, 0.0
    scribbler = start_scribbler()
    for number in range(rounds):
        faulthandler.dump_traceback_later(60, exit=True)  # a hang
        began = time.monotonic()
        outcome, calls = one_round(scribbler, seed + number, seconds)
        slowest = max(slowest, time.monotonic() - began)
        outcomes[outcome] += 1
        total += calls
        faulthandler.cancel_dump_traceback_later()
    if scribbler is not None:
        scribbler.stdin.close()
        assert scribbler.wait(60) == 0
    everything = world.gather((outcomes, total))
    if world.rank == 0:
        together = sum((pair[0] for pair in everything), collections.Counter())
        print("RESULT " + json.dumps({
            "rounds": rounds, "calls": sum(pair[1] for pair in everything), "slowest": slowest,
            "outcomes": dict(together)}), flush=True)


if __name__ == "__main__":
    main()
