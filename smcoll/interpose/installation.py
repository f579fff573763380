"""Replacing MPI.COMM_WORLD and MPI.COMM_SELF, so that programs run on smcoll unchanged.

A program that copies names (``from mpi4py.MPI import *``) must find the replacements when it
imports ``mpi4py.MPI``; and importing that earlier than the program does would initialise MPI
before the program could say how (``mpi4py.rc``). So where it is not imported yet, the replacement
waits for the import: a finder on ``sys.meta_path`` wraps the module's loader.
"""

from __future__ import annotations

import copyreg
import functools
import importlib
import importlib.abc
import sys
from dataclasses import replace

from smcoll.config import Config
from smcoll.interpose.static_types import set_attribute

_MODULE = "mpi4py.MPI"
_NAMES = ("COMM_WORLD", "COMM_SELF")

# The class methods of MPI.Comm that make an object for a handle.
_FINDING = ("fromhandle", "fromint", "f2py")

_originals: dict = {}
_original_methods: dict = {}


def install(config: Config | None = None, heap: bool | None = None,
            libraries: bool | None = None) -> None:
    """``MPI.COMM_WORLD`` and ``MPI.COMM_SELF`` become smcoll communicators.

    And with them all communicators that are made from them. At once, or when the program imports
    ``mpi4py.MPI``; copies of the names that were taken earlier stay mpi4py's own. Initialises
    nothing: the segment is made at the first collective (``eager``: at once if MPI is initialised).
    Calling it again changes nothing. With ``SMCOLL_DISABLE=1`` nothing is replaced.

    ``heap=True``: as ``Config(heap=True)``, and from now on numpy puts arrays of at least
    ``heap_threshold`` bytes into this process's shared heap; in the calling thread, so a thread
    that wants it calls this again (docs/heap.md).

    ``libraries=True``: as ``Config(libraries=True)``: collectives that C libraries call go through
    shared memory, too, if the libraries are loaded after this. It imports mpi4py.MPI
    (docs/libraries.md).
    """
    settings = config or Config()
    if heap is not None:
        settings = replace(settings, heap=heap)
    if libraries is not None:
        settings = replace(settings, libraries=libraries)
    if settings.disable:
        return
    if settings.heap:
        from smcoll.memory import heap_arrays

        heap_arrays.use(settings)
    if not _originals and _finder() is None:
        if _MODULE in sys.modules:
            _replace(settings)
        else:
            sys.meta_path.insert(0, _Finder(settings))
    if settings.libraries:
        from smcoll.interpose import libraries as c_libraries

        importlib.import_module(_MODULE)
        c_libraries.use()


def uninstall() -> None:
    """Give ``mpi4py.MPI`` its own communicators back, and C libraries MPI.

    Existing smcoll communicators stay valid.
    """
    if "smcoll.memory.heap_arrays" in sys.modules:
        sys.modules["smcoll.memory.heap_arrays"].stop_using()
    if "smcoll.interpose.libraries" in sys.modules:
        sys.modules["smcoll.interpose.libraries"].stop()
    finder = _finder()
    if finder is not None:
        sys.meta_path.remove(finder)
    if _originals:
        for name, original in _originals.items():
            setattr(sys.modules[_MODULE], name, original)
        copyreg.dispatch_table.pop(type(_originals["COMM_WORLD"]), None)
        _originals.clear()
        for name, method in _original_methods.items():
            set_attribute(sys.modules[_MODULE].Comm, name, method)
        _original_methods.clear()


def _replace(settings: Config) -> None:
    from smcoll.comm.comm import stand_in

    MPI = sys.modules[_MODULE]
    for name in _NAMES:
        _originals[name] = getattr(MPI, name)
        setattr(MPI, name, stand_in(_originals[name], settings))
    copyreg.pickle(type(_originals["COMM_WORLD"]), _reduce)
    for name in _FINDING:
        if name in MPI.Comm.__dict__:
            _original_methods[name] = MPI.Comm.__dict__[name]
            set_attribute(MPI.Comm, name, _finding(_original_methods[name]))
    if settings.eager and MPI.Is_initialized():
        _ = MPI.COMM_WORLD.engine


def _reduce(comm):
    """How mpi4py's own intra-communicators are pickled while smcoll is installed.

    The originals are no longer found under their names, which is what mpi4py would store; and a
    copy of one is stored as its class and the original.
    """
    from smcoll.comm.comm import predefined

    for name, original in _originals.items():
        if comm is original:
            return predefined, (name,)
    return type(comm).__reduce__(comm)


def _finding(method):
    """mpi4py's class method, made to give smcoll's class for smcoll's handles."""
    from smcoll.comm.comm import found_again

    @classmethod
    @functools.wraps(method)
    def find(cls, *args, **kwargs):
        return found_again(method.__get__(None, cls)(*args, **kwargs))

    return find


def _finder() -> _Finder | None:
    return next((finder for finder in sys.meta_path if isinstance(finder, _Finder)), None)


class _Finder(importlib.abc.MetaPathFinder):
    """Finds mpi4py.MPI as the other finders do, and wraps the loader that they name."""

    def __init__(self, settings: Config):
        self.settings = settings

    def find_spec(self, fullname, path=None, target=None):
        if fullname != _MODULE:
            return None
        for finder in sys.meta_path:
            if finder is not self and hasattr(finder, "find_spec"):
                spec = finder.find_spec(fullname, path, target)
                if spec is not None:
                    spec.loader = _Loader(spec.loader, self)
                    return spec
        return None


class _Loader(importlib.abc.Loader):
    """Loads the module with its own loader, and replaces the communicators at once."""

    def __init__(self, loader, finder: _Finder):
        self.loader = loader
        self.finder = finder

    def create_module(self, spec):
        return self.loader.create_module(spec)

    def exec_module(self, module) -> None:
        # Nobody shall see that we were here: what asks for the loader gets its own methods.
        module.__spec__.loader = module.__loader__ = self.loader
        self.loader.exec_module(module)
        if self.finder in sys.meta_path:
            sys.meta_path.remove(self.finder)
            _replace(self.finder.settings)
