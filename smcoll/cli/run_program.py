"""The ranks' part of ``smcoll run``: the program, with the layer installed."""

from __future__ import annotations

import os
import runpy
import signal
import sys
import time


def run_program(program: list[str], module: bool) -> None:
    """Run it as ``__main__`` with the layer installed; end the whole job if it fails."""
    try:
        import smcoll

        smcoll.install()
        sys.argv[:] = program
        if not getattr(sys.flags, "safe_path", False):
            folder = os.getcwd() if module else os.path.dirname(os.path.realpath(program[0]))
            sys.path[0] = folder
        if module:
            runpy.run_module(program[0], run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(program[0], run_name="__main__")
    except BaseException as error:
        end_job(error)
        raise


def end_job(error: BaseException) -> None:
    """Say what went wrong and abort: the other ranks would wait for this one for ever.

    At once, and not when Python has run its exit handlers: ours tell the others that this rank has
    left, and their complaints would hide the first error. Returns where there is nothing to abort:
    the program ended well, or MPI is not running.
    """
    from mpi4py import MPI

    from ..errors import PeerError

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
    while frames is not None and frames.tb_frame.f_code.co_filename in _OUR_FILES:
        frames = frames.tb_next
    return frames or error.__traceback__


_OUR_FILES = {run_program.__code__.co_filename, runpy.__file__, "<frozen runpy>"}
