"""What every program in this folder starts with: MPI, and smcoll under the C libraries if asked."""

from __future__ import annotations

import os
import re


def begin(libraries: bool):
    """mpi4py's MPI; ``libraries``: calls of libraries that are loaded from now on go to smcoll."""
    from mpi4py import MPI

    if libraries:
        import smcoll

        smcoll.install(libraries=True)
    return MPI


def libmpi() -> str:
    """Path of the library that mpi4py.MPI loaded."""
    with open("/proc/self/maps") as maps:
        files = [line.split(maxsplit=5)[5].strip() for line in maps if "/" in line]
    return next(file for file in files if re.search(r"/libmpi(ch)?(_abi)?\.so", file))


def served() -> dict[str, int]:
    """Calls from C so far, by who carried them out."""
    from smcoll.interpose import served

    return {"left to MPI": sum(served.calls_left_to_mpi().values()),
            "served": sum(served.calls_served().values())}


def find_libmpi_for_neuron() -> None:
    """Let NEURON open what mpi4py opened.

    It tries libmpi.so by itself, which in the wheels is a text file for the linker.
    """
    os.environ.setdefault("MPI_LIB_NRN_PATH", libmpi())
