"""The ranks' part of ``smcoll run``: the program, with the layer installed."""

from __future__ import annotations

import os
import runpy
import sys

from smcoll.mpi.abort import LAUNCHING_FILES, end_job


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


LAUNCHING_FILES.add(run_program.__code__.co_filename)
