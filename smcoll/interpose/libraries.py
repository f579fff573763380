"""Taking the collectives that C libraries in this process call."""

from __future__ import annotations

import ctypes
import os
import re
import sys
from pathlib import Path

from smcoll.config import is_first_rank
from smcoll.mpi.finalize import LEAVE, before_the_end

# Libraries that were loaded earlier and call MPI's collectives: they go past us.
passed_by: list[str] = []
_opened = False


def use() -> None:
    """Serve the collectives of libraries that are loaded from now on.

    After mpi4py.MPI, which is to call MPI itself, was imported. Alike on all ranks: a library that
    was loaded before on one of them goes past us there.
    """
    global _opened
    from smcoll.interpose import functions, served, symbols, symbols_c

    if not _opened:
        from mpi4py import MPI

        from smcoll.comm.state import report, when_made
        from smcoll.interpose import calls  # noqa: F401  what fails, fails here

        passed_by[:] = callers_of_mpi()
        if passed_by and is_first_rank():
            print(f"smcoll: loaded before install(libraries=True), so their collectives are MPI's: "
                  f"{', '.join(passed_by)}", file=sys.stderr, flush=True)
        has_large_counts = functions.open_functions(MPI.__file__)
        for module in (symbols, symbols_c) if has_large_counts else (symbols,):
            ctypes.CDLL(module.__file__, mode=ctypes.RTLD_GLOBAL)
        _opened = True
        report.sources.append(_add_to)
        when_made.append(served.expect)
        before_the_end(LEAVE, stop)
        os.register_at_fork(after_in_child=stop)
    # A test makes the engine at once. The same on all ranks.
    served.set_active(True, int(os.environ.get("SMCOLL_TEST_LIBRARIES_AFTER", served.AFTER)))


def _add_to(report) -> None:
    from smcoll.interpose import served

    report.add_left_to_mpi(served.calls_left_to_mpi(), "before the engine is made, or none")


def stop() -> None:
    """Leave all calls to MPI from now on. Alike on all ranks."""
    if _opened:
        from smcoll.interpose import served

        served.set_active(False, 0)


def callers_of_mpi() -> list[str]:
    """Names of the loaded libraries, but for MPI's own and mpi4py's, that call collectives."""
    found = []
    maps = Path("/proc/self/maps").read_text()
    for name in sorted(set(re.findall(r"(/\S+\.so\S*)$", maps, re.MULTILINE))):
        file = Path(name)
        if file.parent.name in ("mpi4py", "interpose"):
            continue
        try:
            text = file.read_bytes()
        except OSError:
            continue
        # MPI's own libraries, and tools between, define the names beginning with PMPI.
        if re.search(rb"\0MPI_(All|Bcast|Barrier|Reduce|Gather|Scatter)", text) and (
                b"\0PMPI_" not in text):
            found.append(file.name)
    return found
