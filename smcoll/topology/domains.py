"""Where this process is, in few words: what all ranks tell each other at set-up.

Only the levels that matter to collectives count: packages, dies, NUMA nodes, L3 caches. A process
that may run everywhere is nowhere in particular. Cheap, since every communicator asks: a few small
files below /sys, read once for each affinity mask; hwloc only where ``SMCOLL_TOPOLOGY`` or
``SMCOLL_BINDING`` describe what isn't there.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path

from smcoll.topology import binding, hardware, network, node, sysfs

# Those that matter to collectives; equal CPUs are nested in this order.
LEVELS = ("Package", "Die", "Group", "NUMANode", "L3Cache")


def own_location(number: Callable[[], int]) -> tuple[str, ...]:
    """The parts of the machine that this process is bound to, from the largest down.

    ``number()``: its rank in MPI.COMM_WORLD, asked only for a made-up binding. ValueError, OSError
    when a description is malformed or can't be read.
    """
    if hardware.is_made_up() or binding.is_made_up():
        from smcoll.topology.location import Selection

        rank = number() if binding.is_made_up() else 0
        return tuple(f"{place.type} {place.index}" for place in
                     Selection("node").own_location(rank) if place.type.startswith(LEVELS))
    return bound_place(frozenset(node.allowed_cpus()))


def own_switches(number: Callable[[], int]) -> tuple[str, ...]:
    """The switches above this process's host, from the top down; none where they are not known.

    ``number()``: as in ``own_location``. ValueError, OSError when ``SMCOLL_NETWORK`` is malformed,
    can't be read or has no line for this host. A torus has no switches.
    """
    net = network.read()
    if net is None:
        return ()
    host = binding.own_binding(number()).host if binding.is_made_up() else os.uname().nodename
    return tuple(str(place.index) for place in net.places(host))


@functools.lru_cache(maxsize=64)
def bound_place(cpus: frozenset[int], root: Path = sysfs.ROOT) -> tuple[str, ...]:
    """The same for a process with this affinity mask, as /sys has it.

    ``root``: the folder that has the folders ``cpu`` and ``node``.
    """
    everywhere = sysfs.cpu_list(root / "cpu" / "online")
    if not everywhere or everywhere <= cpus:
        return ()
    folder = root / "cpu" / f"cpu{min(cpus)}"
    found = [("Package", sysfs.cpus_of_level(folder, "Package")),
             ("Die", sysfs.cpus_of_level(folder, "Die"))]
    found += [("NUMANode", sysfs.cpu_list(root / "node" / domain.name / "cpulist"))
              for domain in folder.glob("node[0-9]*")]
    found += [("L3Cache", shared) for level, shared in sysfs.caches(folder) if level == "3"]
    around = [(kind, shared) for kind, shared in found if cpus <= shared]
    around.sort(key=lambda level: (-len(level[1]), LEVELS.index(level[0])))
    return tuple(f"{kind} {min(shared)}" for kind, shared in around)
