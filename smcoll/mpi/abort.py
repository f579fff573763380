"""The end of a job in which a rank failed."""

from __future__ import annotations

import contextlib
import fcntl
import os
import runpy
import signal
import stat
import struct
import sys
import termios
import time
from typing import TextIO

# Files whose frames lead to the program; who runs programs adds its own.
LAUNCHING_FILES = {runpy.__file__, "<frozen runpy>"}
PASSED_ON_AFTER = 0.1              # seconds; mpiexec has read it before


def end_job(error: BaseException) -> None:
    """Say what went wrong and abort: the other ranks would wait for this one for ever.

    At once, and not when Python has run its exit handlers: ours tell the others that this rank has
    left, and their complaints would hide the first error. Returns where there is nothing to abort:
    the program ended well, or MPI is not running.
    """
    from mpi4py import MPI

    from smcoll.errors import PeerError

    if isinstance(error, SystemExit):
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    else:
        code = 128 + signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    if code == 0 or not MPI.Is_initialized() or MPI.Is_finalized():
        return
    if not isinstance(error, SystemExit):
        frames = _program_frames(error)
        sys.excepthook(type(error), error.with_traceback(frames), frames)
    elif not isinstance(error.code, int):
        print(error.code, file=sys.stderr)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
        wait_until_read(stream)
    # That rank may be ending the job itself; the launcher takes the first exit code that comes.
    time.sleep(1 if isinstance(error, PeerError) else PASSED_ON_AFTER)
    MPI.COMM_WORLD.Abort(code)


def wait_until_read(stream: TextIO, seconds: float = 1) -> None:
    """Wait until mpiexec has read what was written, where that is a pipe: when a rank aborts, it
    drops what it has not passed on."""
    deadline = time.monotonic() + seconds
    with contextlib.suppress(OSError, ValueError):         # closed, or no file
        file = stream.fileno()
        while stat.S_ISFIFO(os.fstat(file).st_mode) and time.monotonic() < deadline:
            (unread,) = struct.unpack("i", fcntl.ioctl(file, termios.FIONREAD, bytes(4)))
            if unread == 0:
                return
            time.sleep(0.005)


def _program_frames(error: BaseException):
    """The traceback without the frames that led to the program; all of it if there are no others.
    """
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename in LAUNCHING_FILES:
        frames = frames.tb_next
    return frames or error.__traceback__
