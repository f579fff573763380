"""The end of a job in which a rank failed."""

from __future__ import annotations

import runpy
import signal
import sys
import time

# Files whose frames lead to the program; who runs programs adds its own.
LAUNCHING_FILES = {runpy.__file__, "<frozen runpy>"}


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
    sys.stdout.flush()
    sys.stderr.flush()
    if isinstance(error, PeerError):
        # That rank may be ending the job itself; the launcher takes the first exit code that comes.
        time.sleep(1)
    MPI.COMM_WORLD.Abort(code)


def _program_frames(error: BaseException):
    """The traceback without the frames that led to the program; all of it if there are no others.
    """
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename in LAUNCHING_FILES:
        frames = frames.tb_next
    return frames or error.__traceback__
