"""Jobs of their own, for tests that kill ranks, fill /dev/shm or look at what a job prints."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import time

import psutil

from smcoll.launch import launch

# Of all jobs; removed when pytest ends.
_sessions = tempfile.TemporaryDirectory(prefix="smcoll-tests-", ignore_cleanup_errors=True)


def start_ranks(ranks: int, source: str, *arguments, environment=None, alone=False,
                **popen) -> subprocess.Popen:
    """Start a Python program, given as source text, on ``ranks`` ranks.

    ``alone``: nothing of MPI is imported before the program does it.
    """
    # -m mpi4py: an uncaught exception ends the job, the other ranks do not wait for ever.
    runner = [] if alone else ["-m", "mpi4py"]
    argv = [sys.executable, *runner, "-c", textwrap.dedent(source), *map(str, arguments)]
    session = tempfile.mkdtemp(dir=_sessions.name)
    command, variables = launch.command(ranks, argv, session_directory=session)
    # The program finds what this process finds; "-c" adds nothing but the working directory.
    path = os.pathsep.join(entry for entry in sys.path if entry)
    variables = variables | {"PYTHONPATH": path, "OPENBLAS_NUM_THREADS": "1"} | (environment or {})
    return subprocess.Popen(
        command,
        env=variables,
        stdin=subprocess.DEVNULL,
        text=True,
        **popen,
    )


def run_ranks(
    ranks: int, source: str, *arguments, environment=None, alone=False, timeout: float = 100
) -> subprocess.CompletedProcess:
    """Run such a program to its end; its output is in the result."""
    job = start_ranks(ranks, source, *arguments, environment=environment, alone=alone,
                      stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        output, errors = job.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        job.terminate()
        output, errors = job.communicate()
        raise AssertionError(f"no end after {timeout} s\n{output}\n{errors}") from None
    return subprocess.CompletedProcess(job.args, job.returncode, output, errors)


def results(directory, ranks) -> dict[int, str]:
    """What these ranks wrote into ``rank-N``; after a minute those that did."""
    end = time.monotonic() + 60
    found = {}
    while len(found) < len(ranks) and time.monotonic() < end:
        found = {rank: (directory / f"rank-{rank}").read_text() for rank in ranks
                 if (directory / f"rank-{rank}").exists()}
        time.sleep(0.05)
    return found


def end_job(job) -> None:
    """End mpiexec and its ranks, whichever process of theirs is stopped."""
    children = descendants(job.pid)
    for pid in children:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    job.kill()
    job.wait()


def descendants(root: int) -> list[int]:
    """Process ids below ``root``."""
    return [process.pid for process in psutil.Process(root).children(recursive=True)]
