"""smcoll: shared-memory collectives for mpi4py communicators.

>>> from mpi4py import MPI
>>> import smcoll
>>> comm = smcoll.Comm(MPI.COMM_WORLD)
>>> comm.Allreduce(x, y, op=MPI.SUM)      # doctest: +SKIP

Names are imported when they are first used: `import smcoll` loads no MPI, so that a process that
only starts a job (`smcoll run`, `smcoll.launch`) is no MPI process itself.
"""

from importlib import import_module

# Its exit handler is to come after those of the program.
from . import ending  # noqa: F401

__version__ = "0.1.0"

_HOMES = {
    "Cartcomm": "comm", "Comm": "comm", "Distgraphcomm": "comm", "Graphcomm": "comm",
    "Intercomm": "comm", "wrap": "comm", "Config": "config", "Error": "errors",
    "MismatchError": "errors", "PeerError": "errors", "SegmentError": "errors",
    "TopologyError": "errors", "WaitTimeout": "errors", "install": "installation",
    "uninstall": "installation", "array": "heap_arrays", "empty": "heap_arrays",
    "empty_like": "heap_arrays", "is_shared": "heap_arrays", "zeros": "heap_arrays",
}

_MODULES = {"algos", "config", "errors", "kernels", "launch", "measure", "segment", "topology",
            "trees"}

__all__ = sorted(_HOMES)


def get_include():
    """Folder of the C headers that smcoll's ``.pxd`` files need (``include_dirs`` of a build)."""
    from pathlib import Path

    return str(Path(__file__).parent)


def __getattr__(name):
    if name in _MODULES:
        return import_module(f".{name}", __name__)
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f".{_HOMES[name]}", __name__), name)
    return value


def __dir__():
    return sorted({*globals(), *__all__})
