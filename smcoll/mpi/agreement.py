"""Agreement of a communicator's ranks at set-up: facts are gathered, steps taken on all or on none.

On the communicator itself: no message that a user's receive could take, no hidden communicator.
What is gathered carries a checksum, since one MPI's collectives were seen to corrupt data.
"""

from __future__ import annotations

import json
import sys
import threading
import time
import zlib

import numpy
from mpi4py import MPI

from smcoll.config import Config
from smcoll.errors import SegmentError, WaitTimeout

_RECORD_BYTES = 4096

this_thread = threading.local()      # config: the settings of the last set-up in it
_unfinished: list = []               # steps of set-ups that were given up


def fits(record: dict) -> bool:
    """Whether ``gather`` takes so long a record."""
    return len(json.dumps(record).encode()) <= _RECORD_BYTES - 8


def gather(comm: MPI.Intracomm, record: dict) -> list[dict]:
    """Every rank's record, on every rank. SegmentError, on all, when one is damaged or too long."""
    text = json.dumps(record).encode()
    if len(text) > _RECORD_BYTES - 8:
        # Raised by all ranks below: one that raised here alone would leave the others waiting.
        text = json.dumps({"too_long": len(text)}).encode()
    mine = numpy.zeros(_RECORD_BYTES, numpy.uint8)
    mine[:8].view(numpy.uint32)[:] = len(text), zlib.crc32(text)
    mine[8:8 + len(text)] = numpy.frombuffer(text, numpy.uint8)
    everyone = numpy.zeros((comm.Get_size(), _RECORD_BYTES), numpy.uint8)
    _wait_for(MPI.Intracomm.Iallgather(comm, [mine, MPI.BYTE], [everyone, MPI.BYTE]),
              (mine, everyone))
    records = []
    for rank, row in enumerate(everyone):
        length, checksum = (int(number) for number in row[:8].view(numpy.uint32))
        text = row[8:8 + min(length, _RECORD_BYTES - 8)].tobytes()
        if zlib.crc32(text) != checksum:
            raise SegmentError(f"what rank {rank} sent at set-up arrived damaged: MPI's Allgather "
                               "gives wrong data")
        records.append(json.loads(text))
        if "too_long" in records[-1]:
            raise SegmentError(f"rank {rank}'s set-up record of {records[-1]['too_long']} bytes is "
                               "too long (a setting of that length?)")
    return records


def _wait_for(request: MPI.Request, buffers) -> None:
    """Complete a step of a set-up; as in shared memory, signals are handled and time is up.

    Nonblocking, since a blocking call would keep Ctrl-C waiting until the last rank has come.
    """
    config = getattr(this_thread, "config", None) or Config()
    began = time.monotonic()
    warned = False
    try:
        while not request.Test():
            waited = time.monotonic() - began
            time.sleep(min(waited / 16, 0.001) if waited > 0.001 else 0)
            if 0 < config.warn_after <= waited and not warned:
                warned = True
                print(f"smcoll: rank {MPI.Intracomm(MPI.COMM_WORLD).Get_rank()} of COMM_WORLD has "
                      f"waited {waited:.0f} s for the other ranks of a communicator, which is made "
                      "at their first collective", file=sys.stderr, flush=True)
            if 0 < config.timeout <= waited:
                raise WaitTimeout(f"waited {config.timeout:g} s for the other ranks to make a "
                                  "communicator at their first collective")
    except BaseException:
        _unfinished.append((request, buffers))     # MPI may still write into them
        raise


def attempt(comm: MPI.Intracomm, step) -> str | None:
    """Run ``step()`` on every rank; the first rank's problem, on every rank, or None."""
    problem = problem_of(comm.Get_rank(), step)
    problems = [record["problem"] for record in gather(comm, {"problem": problem})]
    return next((text for text in problems if text is not None), None)


def problem_of(rank: int, step) -> str | None:
    # RLIMIT_AS can hit any allocation.
    try:
        step()
    except (OSError, MemoryError) as error:
        # Cut: what is gathered has a fixed size.
        return f"rank {rank}: {str(error)[:400] or type(error).__name__}"
    return None
