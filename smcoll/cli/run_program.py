"""The ranks' part of ``smcoll run``: the program, with the layer installed."""

from __future__ import annotations

import builtins
import os
import runpy
import sys
import types

from smcoll.mpi.abort import LAUNCHING_FILES, end_job


class ProgramToRun(Exception):
    """Not an error: the arguments of ``run_program``, through the option parser to its caller."""


def run_program(program: list[str], kind: str) -> None:
    """Run it as ``__main__`` with the layer installed; end the whole job if it fails.

    ``kind``: ``file``, ``module``, ``code`` (its text) or ``input`` (``-``, or what was read there
    already).
    """
    try:
        import smcoll

        smcoll.install()
        text = program[0]
        sys.argv[:] = [{"code": "-c", "input": "-"}.get(kind, text), *program[1:]]
        if not getattr(sys.flags, "safe_path", False):
            sys.path[0] = (os.path.dirname(os.path.realpath(text)) if kind == "file"
                           else os.getcwd() if kind == "module" else "")
        if kind in ("code", "input"):
            run_text(sys.stdin.read() if text == "-" else text)
        elif kind == "module":
            runpy.run_module(program[0], run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(program[0], run_name="__main__")
    except BaseException as error:
        end_job(error)
        raise


def run_text(text: str) -> None:
    """As ``python -c`` does."""
    main = types.ModuleType("__main__")
    main.__builtins__ = builtins  # type: ignore[attr-defined]
    sys.modules["__main__"] = main
    exec(compile(text, "<string>", "exec", dont_inherit=True), main.__dict__)


LAUNCHING_FILES.add(run_program.__code__.co_filename)
