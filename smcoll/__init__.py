"""smcoll: shared-memory collectives for mpi4py communicators.

>>> from mpi4py import MPI
>>> import smcoll
>>> comm = smcoll.Comm(MPI.COMM_WORLD)
>>> comm.Allreduce(x, y, op=MPI.SUM)      # doctest: +SKIP

Names are imported when they are first used: `import smcoll` loads no MPI, so that a process that
only starts a job (`smcoll run`, `smcoll.launch`) is no MPI process itself.
"""

from importlib import import_module

from smcoll.base import __version__  # noqa: F401

# Its exit handler is to come after those of the program.
from smcoll.mpi import finalize  # noqa: F401

_HOMES = {
    "Cartcomm": "comm.comm", "Comm": "comm.comm", "Distgraphcomm": "comm.comm",
    "Graphcomm": "comm.comm", "Intercomm": "comm.comm", "wrap": "comm.comm", "Config": "config",
    "Error": "errors", "MismatchError": "errors", "PeerError": "errors", "SegmentError": "errors",
    "TopologyError": "errors", "TruncationError": "errors", "WaitTimeout": "errors",
    "install": "interpose.installation",
    "uninstall": "interpose.installation", "array": "memory.heap_arrays",
    "empty": "memory.heap_arrays", "empty_like": "memory.heap_arrays",
    "is_shared": "memory.heap_arrays",
    "zeros": "memory.heap_arrays", "c_api": "comm.c_api",
}

_MODULES = {"algorithms", "config", "errors", "segment", "topology"}

__all__ = sorted(_HOMES)


def get_include():
    """Folder of the C headers that smcoll's ``.pxd`` files need (``include_dirs`` of a build)."""
    from pathlib import Path

    return str(Path(__file__).parent / "base")


def __getattr__(name):
    if name in _MODULES:
        return import_module(f".{name}", __name__)
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f".{_HOMES[name]}", __name__), name)
    return value


def __dir__():
    return sorted({*globals(), *__all__})
