"""Jobs whose launcher leaves the other ranks alone when one dies: smcoll is to notice, not mpiexec.

Open MPI: ``--enable-recovery``; Intel MPI: ``-disable-auto-cleanup``; MPICH, whose own switch
sends SIGUSR1 to the survivors: a shell around each rank that lives on. Other shells leave the dead
rank a zombie, or give each rank a PID namespace of its own.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path

import psutil

from smcoll.launch import launch

OPTIONS = {launch.OPEN_MPI: ["--enable-recovery"], launch.INTEL_MPI: ["-disable-auto-cleanup"]}
# What each rank is run through. The shells outlive it, so that MPICH's proxy sees nothing; `reaped`
# and `zombie` tell what becomes of a rank that dies.
WRAPPERS = {
    "reaped": ["sh", "-c", '"$0" "$@" || exec sleep 600'],
    "zombie": ["sh", "-c", '"$0" "$@" & exec sleep 600'],
    # (Open MPI names its own shared memory by process ids: ranks that all are number 2 crash.)
    "PID namespaces": ["sh", "-c", 'unshare --pid --fork sh -c \'echo $((1000 * '
                       '(1 + ${OMPI_COMM_WORLD_RANK:-$PMI_RANK}))) > /proc/sys/kernel/ns_last_pid; '
                       '"$0" "$@"; exit $?\' "$0" "$@" || exec sleep 600'],
}

# Before a rank's program. `say` is for the test outside; times are CLOCK_MONOTONIC, one for all.
PREAMBLE = """
import ctypes, json, os, signal, sys, threading, time
import numpy as np
from mpi4py import MPI
import smcoll

world = MPI.COMM_WORLD
rank, size = world.Get_rank(), world.Get_size()
folder = sys.argv[1]

def now():
    return time.clock_gettime(time.CLOCK_MONOTONIC)

def say(**record):
    line = json.dumps({"rank": rank, "at": now(), **record}) + "\\n"
    with open(os.path.join(folder, f"rank-{rank}.jsonl"), "a") as lines:
        lines.write(line)

def names(*communicators):
    say(segments=[comm.engine.segment_name for comm in communicators])

def die(how):
    say(dies=how)
    if how == "SIGKILL":
        os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(60)
    if how == "segfault":
        signal.signal(signal.SIGSEGV, signal.SIG_DFL)
        ctypes.string_at(8)
    os._exit(3)

def outcome(call):
    \"\"\"What a call ended with, and when.\"\"\"
    try:
        call()
    except BaseException as error:
        return {"error": type(error).__name__, "text": str(error), "ended": now()}
    return {"error": None, "text": "", "ended": now()}
"""


class Job:
    """A running job; what its ranks say is read from files, whatever becomes of them."""

    def __init__(self, folder: Path, process: subprocess.Popen):
        self.folder = folder
        self.process = process

    def records(self, *keys: str) -> list[dict]:
        """All that was said so far with one of these keys."""
        found = []
        for path in sorted(self.folder.glob("rank-*.jsonl")):
            lines = path.read_text().split("\n")[:-1]
            found += [json.loads(line) for line in lines]
        return [record for record in found if not keys or any(key in record for key in keys)]

    def wait_for(self, key: str, count: int, seconds: float = 60) -> list[dict]:
        """``count`` records with this key; AssertionError with all that is known if they miss."""
        end = time.monotonic() + seconds
        while len(found := self.records(key)) < count:
            if time.monotonic() > end:
                raise AssertionError(
                    f"{len(found)} of {count} records {key!r} after {seconds:.0f} s: "
                    f"{self.records()}\n{(self.folder / 'output').read_text()[-4000:]}")
            time.sleep(0.01)
        return found

    def ranks(self) -> dict[int, psutil.Process]:
        """The ranks' processes, by the rank that they said."""
        pids = {record["pid"]: record["rank"] for record in self.records("pid")}
        return {rank: psutil.Process(pid) for pid, rank in pids.items()}

    def left_behind(self) -> int:
        """Segments of this job that still have a name."""
        names = {name for record in self.records("segments") for name in record["segments"]}
        assert names
        return sum(os.path.exists(f"/dev/shm{name}") for name in names)


@contextlib.contextmanager
def surviving_job(ranks: int, source: str, *arguments, wrapper: str = "reaped", environment=None):
    """Start a program, given as source text behind ``PREAMBLE``, that outlives its dead."""
    with tempfile.TemporaryDirectory(prefix="smcoll-faults-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        program = PREAMBLE + textwrap.dedent(source)
        argv = [*WRAPPERS[wrapper], sys.executable, "-c", program, name, *map(str, arguments)]
        options = OPTIONS.get(launch.mpi_info().family, [])
        command, variables = launch.command(ranks, argv, extra_options=options,
                                            session_directory=folder)
        path = os.pathsep.join(entry for entry in sys.path if entry)
        variables |= {"PYTHONPATH": path, "OPENBLAS_NUM_THREADS": "1", "SMCOLL_TIMEOUT": "30"}
        with open(folder / "output", "w") as output:
            process = subprocess.Popen(command, env=variables | (environment or {}),
                                       stdin=subprocess.DEVNULL, stdout=output,
                                       stderr=subprocess.STDOUT, start_new_session=True)
        try:
            yield Job(folder, process)
        finally:
            end(process, name)


def end(process: subprocess.Popen, mark: str) -> None:
    """End mpiexec and every process that has the job's folder in its command line."""
    for _ in range(2):                 # a shell may be about to start its sleep
        below = set(psutil.Process(process.pid).children(recursive=True)) \
            if process.poll() is None else set()
        for other in below | {p for p in psutil.process_iter() if _has(p, mark)}:
            with contextlib.suppress(psutil.NoSuchProcess):
                other.send_signal(signal.SIGKILL)
    process.kill()
    process.wait()


def _has(process: psutil.Process, mark: str) -> bool:
    try:
        return any(mark in word for word in process.cmdline())
    except psutil.Error:
        return False
