"""The tree of a machine's hardware objects, whoever describes it.

Every reader (hwloc, /sys, XML, synthetic descriptions) gives a flat list of objects, each a type
and a set of CPUs; ``build_tree`` nests them by inclusion, always in the same way. So NUMA nodes are
levels like all others, as in GJMM, whatever hwloc's version makes of them.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

ENVIRONMENT = "SMCOLL_TOPOLOGY"

# hwloc's names. Of types with the same CPUs, the earlier one is the parent.
TYPES = ("Machine", "NUMANode", "Package", "Die", "Group", "L5Cache", "L4Cache", "L3Cache",
         "L2Cache", "L1Cache", "Core", "PU")


@dataclass(frozen=True)
class HardwareObject:
    """A part of a machine.

    ``index``: among the machine's objects of this type, in the order of their first CPUs.
    ``height``: levels with fewer CPUs below it; objects of one branch with the same height have the
    same CPUs.
    """

    type: str
    index: int
    cpus: frozenset[int]
    children: tuple[HardwareObject, ...] = ()
    height: int = 0

    def walk(self) -> Iterable[HardwareObject]:
        """This object and all below, parents first."""
        yield self
        for child in self.children:
            yield from child.walk()


@dataclass
class _Node:
    type: str
    cpus: frozenset[int]
    children: list[_Node] = field(default_factory=list)


def build_tree(objects: Iterable[tuple[str, frozenset[int]]]) -> HardwareObject:
    """Nest objects, given as (type, CPUs), by inclusion under one Machine.

    Types are those of ``TYPES``, others are left out, and so is what overlaps another object
    partly, since it is no level of a hierarchy. The CPUs are those of the PUs. A Group tells
    nothing where another object has its CPUs. ValueError without any PU.
    """
    objects = list(objects)
    machine = frozenset().union(*(cpus for kind, cpus in objects if kind == "PU"))
    if not machine:
        raise ValueError("a machine without any PU (hardware thread)")
    found = {(kind, cpus & machine) for kind, cpus in objects if kind in TYPES and cpus & machine}
    named = {cpus for kind, cpus in found if kind != "Group"}
    found -= {("Machine", cpus) for _, cpus in found} | {("Group", cpus) for cpus in named}
    root = _Node("Machine", machine)
    for kind, cpus in sorted(found, key=lambda o: (-len(o[1]), TYPES.index(o[0]), min(o[1]))):
        _insert(root, _Node(kind, cpus))
    return _freeze(root, {}, 0)


def _insert(root: _Node, new: _Node) -> None:
    parent = root
    while (inner := next((c for c in parent.children if new.cpus <= c.cpus), None)) is not None:
        parent = inner
    if all(child.cpus.isdisjoint(new.cpus) for child in parent.children):
        parent.children.append(new)


def _freeze(node: _Node, counts: dict[str, int], groups: int) -> HardwareObject:
    # Groups inside groups have numbered names, as hwloc's have.
    kind = f"Group{groups}" if node.type == "Group" else node.type
    groups += node.type == "Group"
    index = counts.get(kind, 0)
    counts[kind] = index + 1
    children = tuple(_freeze(child, counts, groups)
                     for child in sorted(node.children, key=lambda child: min(child.cpus)))
    height = max((child.height + (child.cpus != node.cpus) for child in children), default=0)
    return HardwareObject(kind, index, node.cpus, children, height)


def read_machine() -> HardwareObject:
    """The machine that ``SMCOLL_TOPOLOGY`` describes, or this one (hwloc, else /sys).

    ValueError when the description is malformed, OSError when a file can't be read.
    """
    return _read(os.environ.get(ENVIRONMENT, "").strip(), os.environ.get("SMCOLL_HWLOC", ""))


def is_made_up() -> bool:
    """Whether ``SMCOLL_TOPOLOGY`` stands for the machine."""
    return bool(os.environ.get(ENVIRONMENT, "").strip())


@functools.lru_cache(maxsize=8)
def _read(description: str, _library: str) -> HardwareObject:
    from smcoll.topology import hwloc, hwloc_xml, synthetic, sysfs

    if not description:
        library = hwloc.load()
        return build_tree(sysfs.read() if library is None else library.read())
    try:
        if description.endswith(".xml"):
            return build_tree(hwloc_xml.parse(Path(description).read_bytes()))
        return build_tree(synthetic.parse(description))
    except ValueError as error:
        raise ValueError(f"{ENVIRONMENT}: {error}") from None
