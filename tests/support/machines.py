"""Machines that the tests of hardware levels work on."""

from __future__ import annotations

from smcoll.topology import cpuset, hardware, levels, synthetic

# GJMM Fig. 1: two NUMA nodes with a package and an L3 each, an L2 and L1 for each pair of cores.
FIGURE_1 = "numa:2 package:1 l3:1 l2:2 l1:1 core:2 pu:1"

IRREGULAR = [          # a package with a shared L3, one with cores of two threads and no cache
    *(("PU", frozenset([cpu])) for cpu in range(7)),
    ("Package", frozenset([0, 1, 2])), ("L3Cache", frozenset([0, 1, 2])),
    ("Package", frozenset([3, 4, 5, 6])), ("Core", frozenset([3, 4])), ("Core", frozenset([5, 6])),
    *(("Core", frozenset([cpu])) for cpu in range(3)),
]

NETWORK = """
# host  switches
n0  core edge0
n1  core edge0   # as n0
n2  core edge1
n3  other edge0
"""


def machine(description=FIGURE_1):
    return hardware.build_tree(synthetic.parse(description))


def located(bindings, description=FIGURE_1):
    """Locations of ranks with these CPUs on one machine."""
    tree = machine(description)
    return [levels.locate(tree, cpuset.parse_cpus(str(cpus)), "n0") for cpus in bindings]


def names(tree):
    return [f"{entry.type}{entry.index}" for entry in tree.walk()]
