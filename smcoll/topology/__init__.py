"""Hardware communicators: communicators that follow the levels of the hardware.

As in Goglin, Jeannot, Mansouri and Mercier (2018), GJMM in this documentation. A split gives each
rank the communicator of the next hardware level below; splitting on gives a hierarchy, from the
network's switches over the node to its cores.

>>> from smcoll import topology
>>> inner = topology.split(comm)                         # doctest: +SKIP
>>> topology.level_info(inner)                           # doctest: +SKIP
LevelInfo(type='L3Cache', index=0, siblings=2)

``levels`` computes the same without MPI, for any number of imagined ranks. Names are imported when
they are first used: drawing a machine needs no MPI.

Environment variables:

- ``SMCOLL_TOPOLOGY``: another machine than this one: a synthetic description such as
  ``"package:2 l3:1 core:4 pu:1"`` (``synthetic``), or the name of an XML file of hwloc's.
- ``SMCOLL_BINDING``: made-up bindings, one word for each rank of MPI.COMM_WORLD (``binding``).
- ``SMCOLL_NETWORK``: a file with the switches above each host (``network``).
- ``SMCOLL_HWLOC``: the hwloc library to load, or ``none`` (``hwloc``).
"""

from importlib import import_module

_HOMES = {
    "LevelInfo": "levels", "distance": "communicators", "distances": "communicators",
    "hierarchy": "communicators", "hierarchy_with_roots": "communicators",
    "level_info": "communicators", "locations": "communicators", "min_level": "communicators",
    "read_machine": "hardware", "split": "communicators", "split_to": "communicators",
    "split_with_roots": "communicators",
}

_MODULES = {"binding", "communicators", "domains", "drawing", "hardware", "levels", "network"}

__all__ = sorted(_HOMES)


def __getattr__(name):
    if name in _MODULES:
        return import_module(f".{name}", __name__)
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f".{_HOMES[name]}", __name__), name)
    return value


def __dir__():
    return sorted({*globals(), *__all__})
