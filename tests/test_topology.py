"""Hardware levels without MPI: readers of machines, locations, splits, distances.

GJMM = Goglin, Jeannot, Mansouri & Mercier (2018).
"""

from __future__ import annotations

import ctypes
import itertools
import os
import pathlib
import random
import subprocess

import pytest

from smcoll import launch
from smcoll.topology import (
    binding,
    drawing,
    hardware,
    hwloc,
    hwloc_xml,
    levels,
    network,
    synthetic,
    sysfs,
)
from smcoll.topology.levels import LevelInfo, Place

# GJMM Fig. 1: two NUMA nodes with a package and an L3 each, an L2 and L1 for each pair of cores.
FIGURE_1 = "numa:2 package:1 l3:1 l2:2 l1:1 core:2 pu:1"

IRREGULAR = [          # a package with a shared L3, one with cores of two threads and no cache
    *(("PU", frozenset([cpu])) for cpu in range(7)),
    ("Package", frozenset([0, 1, 2])), ("L3Cache", frozenset([0, 1, 2])),
    ("Package", frozenset([3, 4, 5, 6])), ("Core", frozenset([3, 4])), ("Core", frozenset([5, 6])),
    *(("Core", frozenset([cpu])) for cpu in range(3)),
]


def machine(description=FIGURE_1):
    return hardware.build_tree(synthetic.parse(description))


def located(bindings, description=FIGURE_1):
    """Locations of ranks with these CPUs on one machine."""
    tree = machine(description)
    return [levels.locate(tree, hardware.parse_cpus(str(cpus)), "n0") for cpus in bindings]


def names(tree):
    return [f"{entry.type}{entry.index}" for entry in tree.walk()]


@pytest.fixture
def library():
    """An hwloc, whatever the tests' own environment says."""
    found = hwloc.load()
    if found is None:
        pytest.skip("no hwloc on this machine")
    return found


# ---------------------------------------------------------------------- machines


def test_objects_nest_by_inclusion_with_numa_nodes_as_levels():
    tree = machine("package:2 numa:2 core:1 pu:2")
    assert names(tree) == [
        "Machine0", "Package0", "NUMANode0", "Core0", "PU0", "PU1", "NUMANode1", "Core1", "PU2",
        "PU3", "Package1", "NUMANode2", "Core2", "PU4", "PU5", "NUMANode3", "Core3", "PU6", "PU7"]
    assert [entry.height for entry in tree.walk()][:5] == [3, 2, 1, 1, 0]


@pytest.mark.parametrize("objects", [IRREGULAR, IRREGULAR[::-1]], ids=["down", "up"])
def test_the_tree_does_not_depend_on_the_order_of_the_objects(objects):
    tree = hardware.build_tree(objects)
    assert names(tree)[:5] == ["Machine0", "Package0", "L3Cache0", "Core0", "PU0"]
    assert [child.height for child in tree.children] == [1, 2] and tree.height == 3


def test_objects_that_overlap_partly_are_no_level():
    cpus = [("PU", frozenset([cpu])) for cpu in range(4)]
    tree = hardware.build_tree([*cpus, ("Package", frozenset([0, 1, 2])),
                                ("L3Cache", frozenset([2, 3]))])
    assert "L3Cache0" not in names(tree) and "Package0" in names(tree)


def test_a_group_with_the_cpus_of_another_object_tells_nothing():
    cpus = [("PU", frozenset([cpu])) for cpu in range(4)]
    pair = frozenset([0, 1])
    tree = hardware.build_tree([*cpus, ("Group", pair), ("NUMANode", pair)])
    assert names(tree)[:2] == ["Machine0", "NUMANode0"] and "Group0" not in {
        entry.type for entry in tree.walk()}


@pytest.mark.parametrize("description", [
    FIGURE_1, "package:2 numa:2 l3:2 core:4 pu:1", "package:2 core:3 pu:2", "core:3 pu:1",
    "[numa] package:2 l3:1 core:2 pu:1", "package:2 [numa] l3:1 core:2 pu:1",
    "package:2 die:2 l3:1 core:2 pu:1", "group:2 group:2 core:2 pu:1",
    "Package:1 [NUMANode(memory=1073741824)] L3Cache:2(size=4194304) Core:2 PU:2",
])
def test_synthetic_descriptions_mean_what_they_mean_to_hwloc(library, description):
    assert hardware.build_tree(library.read(synthetic=description)) == machine(description)


@pytest.mark.parametrize("description, message", [
    ("", "empty"), ("package", "count"), ("package:0 core:1", "count from 1"),
    ("package:2 kernel:2", "unknown type 'kernel'"), ("package:-1", "type:count"),
    ("package:2 pu:2 core:2", "last level"), ("core:2 pu:1(indexes=1,0)", "indexes"),
    ("core:70000", "at most"), ("[core] pu:2", "only NUMA nodes"), ("pu:2 pu:2", "last level"),
    ("/no/such/machine", "type:count"), ("l1i:2 core:1", "instruction cache"),
])
def test_a_malformed_description_is_refused(description, message):
    with pytest.raises(ValueError, match=message):
        machine(description)


XML = """<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE topology SYSTEM "hwloc2.dtd">
<topology version="2.0">
  <object type="Machine" os_index="0" cpuset="0x0000000f,0xffffffff" {allowed}>
    <object type="Package" cpuset="0x0000000f,0x00000003">
      <object type="NUMANode" os_index="0" cpuset="0x0000000f,0x00000003"/>
      <object type="PU" cpuset="0x00000001"/><object type="PU" cpuset="0x00000002"/>
      <object type="PU" cpuset="0x00000001,0x0"/><object type="PU" cpuset="0x00000008,"/>
    </object>
    <object type="Bridge"/>
  </object>
</topology>
"""


def test_an_xml_file_is_read(tmp_path, monkeypatch):
    file = tmp_path / "machine.xml"
    file.write_text(XML.format(allowed=""))
    monkeypatch.setenv("SMCOLL_TOPOLOGY", str(file))
    tree = hardware.read_machine()
    assert names(tree) == ["Machine0", "NUMANode0", "Package0", "PU0", "PU1", "PU2", "PU3"]
    assert tree.cpus == {0, 1, 32, 35}


@pytest.mark.parametrize("description", [FIGURE_1, "package:2 numa:2 l3:2 core:10 pu:2"])
def test_an_xml_file_means_what_it_means_to_hwloc(library, tmp_path, description):
    """A file of hwloc's own."""
    file = str(tmp_path / "machine.xml")
    call, pointer = library._hwloc, ctypes.c_void_p()
    assert call.hwloc_topology_init(ctypes.byref(pointer)) == 0
    assert call.hwloc_topology_set_synthetic(pointer, description.encode()) == 0
    assert call.hwloc_topology_load(pointer) == 0
    assert call.hwloc_topology_export_xml(pointer, file.encode(), ctypes.c_ulong(0)) == 0
    call.hwloc_topology_destroy(pointer)
    tree = hardware.build_tree(hwloc_xml.parse(pathlib.Path(file).read_bytes()))
    assert tree == hardware.build_tree(library.read(xml=file)) == machine(description)


def test_cpus_that_are_not_allowed_are_left_out():
    text = XML.format(allowed='allowed_cpuset="0x00000003"').encode()
    assert hardware.build_tree(hwloc_xml.parse(text)).cpus == {0, 1}


def test_an_xml_file_of_hwloc_1_is_read():
    text = b"""<topology><object type="Machine" cpuset="0x3"><object type="Socket" cpuset="0x3">
      <object type="Cache" depth="3" cache_type="0" cpuset="0x3">
      <object type="Cache" depth="1" cache_type="2" cpuset="0x1"/>
      <object type="PU" cpuset="0x1"/><object type="PU" cpuset="0x2"/>
      </object></object></object></topology>"""
    assert names(hardware.build_tree(hwloc_xml.parse(text))) == [
        "Machine0", "Package0", "L3Cache0", "PU0", "PU1"]


@pytest.mark.parametrize("text, message", [
    ("", "not an XML file"), ("<topology>", "not an XML file"), ("<html/>", "begins with 'html'"),
    ("<topology/>", "no objects"), ('<topology><object type="PU" cpuset="x"/></topology>', "CPUs"),
    ('<topology><object type="Core" cpuset="0x1"/></topology>', "without any PU"),
])
def test_a_malformed_xml_file_is_refused(tmp_path, monkeypatch, text, message):
    (tmp_path / "machine.xml").write_text(text)
    monkeypatch.setenv("SMCOLL_TOPOLOGY", str(tmp_path / "machine.xml"))
    with pytest.raises(ValueError, match=f"SMCOLL_TOPOLOGY: .*{message}"):
        hardware.read_machine()


def test_a_missing_xml_file_is_refused(monkeypatch):
    monkeypatch.setenv("SMCOLL_TOPOLOGY", "missing.xml")
    with pytest.raises(FileNotFoundError, match=r"missing\.xml"):
        hardware.read_machine()


def test_sys_and_hwloc_describe_this_machine_alike(library, monkeypatch):
    for name in ("HWLOC_SYNTHETIC", "HWLOC_XMLFILE"):
        monkeypatch.delenv(name, raising=False)
    by_hwloc = hardware.build_tree(library.read())
    by_sys = hardware.build_tree(sysfs.read())
    if by_hwloc.cpus != by_sys.cpus:
        pytest.skip("hwloc leaves out CPUs that this process may not use")
    assert by_hwloc == by_sys


def test_sys_of_another_machine(tmp_path):
    """Two packages of one die, two cores of two threads each, numbered as Linux often does."""
    write = {"cpu/online": "0-7"}
    for cpu in range(8):
        core, package = cpu % 4, cpu % 4 // 2
        folder = f"cpu/cpu{cpu}"
        of_core = f"{core},{core + 4}"
        of_package = f"{2 * package}-{2 * package + 1},{2 * package + 4}-{2 * package + 5}"
        write |= {f"{folder}/topology/package_cpus_list": of_package,
                  f"{folder}/topology/die_cpus_list": of_package,
                  f"{folder}/topology/thread_siblings_list": of_core}
        for number, (level, kind, cpus) in enumerate([
                (1, "Data", of_core), (1, "Instruction", of_core), (3, "Unified", of_package)]):
            write |= {f"{folder}/cache/index{number}/level": str(level),
                      f"{folder}/cache/index{number}/type": kind,
                      f"{folder}/cache/index{number}/shared_cpu_list": cpus}
    write |= {"node/node0/cpulist": "0-1,4-5", "node/node1/cpulist": "2-3,6-7",
              "node/node2/cpulist": ""}
    for name, text in write.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text + "\n")
    tree = hardware.build_tree(sysfs.read(tmp_path))
    assert names(tree)[:8] == ["Machine0", "NUMANode0", "Package0", "L3Cache0", "L1Cache0", "Core0",
                               "PU0", "PU1"]
    assert [sorted(entry.cpus) for entry in tree.walk() if entry.type == "Core"] == [
        [0, 4], [1, 5], [2, 6], [3, 7]]
    assert not any(entry.type == "Die" for entry in tree.walk())


def test_the_last_level_caches_are_found_and_counted(tmp_path):
    for name, text in {
            "cpu/online": "0-7",
            "cpu/cpu0/cache/index0/level": "1", "cpu/cpu0/cache/index0/size": "32K",
            "cpu/cpu0/cache/index0/shared_cpu_list": "0,4",
            "cpu/cpu0/cache/index3/level": "3", "cpu/cpu0/cache/index3/size": "16384K",
            "cpu/cpu0/cache/index3/shared_cpu_list": "0-1,4-5"}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text + "\n")
    assert sysfs.last_level_caches(tmp_path) == (16 << 20, 2)


def test_caches_that_sys_does_not_tell_are_unknown(tmp_path):
    assert sysfs.last_level_caches(tmp_path) == (0, 0)


def test_sys_that_tells_nothing_gives_one_pu(tmp_path):
    assert names(hardware.build_tree(sysfs.read(tmp_path))) == ["Machine0", "PU0"]


def test_hwloc_can_be_forbidden_and_named(library, monkeypatch):
    monkeypatch.setenv("SMCOLL_HWLOC", "none")
    assert hwloc.load() is None
    assert hardware.read_machine().cpus
    monkeypatch.setenv("SMCOLL_HWLOC", "libnone.so")
    with pytest.raises(OSError, match=r"SMCOLL_HWLOC: .*libnone"):
        hardware.read_machine()
    monkeypatch.setenv("SMCOLL_HWLOC", "libc.so.6")
    with pytest.raises(OSError, match="SMCOLL_HWLOC"):
        hwloc.load()


@pytest.mark.parametrize("text", ["", "x", "3-1", "1-", "-1", "1,,2", "0x3", "1 2", "1-99999999"])
def test_a_malformed_list_of_cpus_is_refused(text):
    with pytest.raises(ValueError, match="not a list of CPUs"):
        hardware.parse_cpus(text)


@pytest.mark.parametrize("text", ["0", "0-3", "0,2-3,9"])
def test_lists_of_cpus_are_written_as_they_are_read(text):
    assert hardware.format_cpus(hardware.parse_cpus(text)) == text


# ---------------------------------------------------------------------- bindings


def test_made_up_bindings(monkeypatch):
    monkeypatch.setenv("SMCOLL_TOPOLOGY", FIGURE_1)
    monkeypatch.setenv("SMCOLL_BINDING", "0 2-3 n1:4-7 n1:all 8")
    tree = hardware.read_machine()
    first, second, third, fourth = (binding.own_binding(rank) for rank in range(4))
    assert first.machine == second.machine != third.machine == fourth.machine
    assert third.host == "n1"
    assert [sorted(binding.cpus_on(tree, one)) for one in (first, second, third, fourth)] == [
        [0], [2, 3], [4, 5, 6, 7], list(range(8))]
    with pytest.raises(ValueError, match="no CPU 8"):
        binding.cpus_on(tree, binding.own_binding(4))
    with pytest.raises(ValueError, match="none for rank 5"):
        binding.own_binding(5)


@pytest.mark.parametrize("text", [":0", "0 x", "n0:", "n0:0-", "all:all:x"])
def test_malformed_bindings_are_refused(text):
    with pytest.raises(ValueError, match="SMCOLL_BINDING"):
        binding.parse_bindings(text)


def test_the_affinity_mask_is_the_binding_on_this_machine_only(monkeypatch):
    monkeypatch.delenv("SMCOLL_BINDING", raising=False)
    monkeypatch.delenv("SMCOLL_TOPOLOGY", raising=False)
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})
        assert binding.own_binding(0).cpus == {min(before)}
        monkeypatch.setenv("SMCOLL_TOPOLOGY", "core:64")
        assert binding.cpus_on(machine("core:64"), binding.own_binding(0)) == frozenset(range(64))
    finally:
        os.sched_setaffinity(0, before)


# ---------------------------------------------------------------------- GJMM's examples


def members(groups):
    """The groups of a split, each once; None for ranks without."""
    return [None if group is None else group.members for group in groups]


def step(locations, ranks):
    """One split of the communicator of ``ranks``: groups and roots as ranks of the first one."""
    groups = levels.split([locations[rank] for rank in ranks])
    whole = [None if group is None else tuple(ranks[m] for m in group.members) for group in groups]
    return (dict(zip(ranks, whole, strict=True)), {
        rank: group.info for rank, group in zip(ranks, groups, strict=True) if group},
        tuple(ranks[root] for root in levels.roots(groups)))


def test_gjmm_5_1_32_ranks_on_4_nodes():
    tree = machine()
    locations = [levels.locate(tree, frozenset([rank % 8]), f"n{rank // 8}") for rank in range(32)]
    world = tuple(range(32))

    groups, infos, roots = step(locations, world)                                  # step 1
    for k in range(4):
        for rank in range(8 * k, 8 * k + 8):
            assert groups[rank] == tuple(range(8 * k, 8 * k + 8))
            assert infos[rank] == LevelInfo("Machine", k, 4)
    assert roots == (0, 8, 16, 24)

    for node in range(4):
        first = 8 * node
        ranks = tuple(range(first, first + 8))
        groups, infos, roots = step(locations, ranks)                              # step 2
        for i in range(2):
            four = tuple(range(first + 4 * i, first + 4 * i + 4))
            assert {groups[rank] for rank in four} == {four}
            assert {infos[rank] for rank in four} == {LevelInfo("L3Cache", i, 2)}
        assert roots == (first, first + 4)

        for i in range(2):
            four = tuple(range(first + 4 * i, first + 4 * i + 4))
            groups, infos, roots = step(locations, four)                           # step 3
            for j in range(2):
                pair = four[2 * j:2 * j + 2]
                assert {groups[rank] for rank in pair} == {pair}
                # The report's example of num_comms: 2 for each of these.
                assert {infos[rank] for rank in pair} == {LevelInfo("L1Cache", j, 2)}
            assert roots == (four[0], four[2])

            for j in range(2):
                pair = four[2 * j:2 * j + 2]
                groups, infos, roots = step(locations, pair)                       # step 4
                for k, rank in enumerate(pair):
                    assert groups[rank] == (rank,)
                    assert infos[rank] == LevelInfo("Core", k, 2)
                assert roots == pair

                for rank in pair:
                    groups, _, roots = step(locations, (rank,))                    # step 5
                    assert groups[rank] is None and roots == ()

    chains = levels.hierarchy(locations)
    assert all([group.info.type for group in chain] == ["Machine", "L3Cache", "L1Cache", "Core"]
               for chain in chains)


def test_gjmm_5_2_non_uniform_binding():
    locations = located(["0", "1", "2-3", "2-3", "4-7", "4-7", "4-7", "4-7"])

    groups, infos, roots = step(locations, tuple(range(8)))                        # step 1
    assert [groups[rank] for rank in range(8)] == [(0, 1, 2, 3)] * 4 + [(4, 5, 6, 7)] * 4
    assert [infos[rank] for rank in (0, 4)] == [LevelInfo("L3Cache", 0, 2),
                                                LevelInfo("L3Cache", 1, 2)]
    assert roots == (0, 4)

    groups, infos, roots = step(locations, (0, 1, 2, 3))                           # step 2
    assert [groups[rank] for rank in range(4)] == [(0, 1), (0, 1), (2, 3), (2, 3)]
    assert [infos[rank] for rank in (0, 2)] == [LevelInfo("L1Cache", 0, 2),
                                                LevelInfo("L1Cache", 1, 2)]
    assert roots == (0, 2)
    groups, _, roots = step(locations, (4, 5, 6, 7))
    assert set(groups.values()) == {None} and roots == ()

    groups, infos, roots = step(locations, (0, 1))                                 # step 3
    assert groups == {0: (0,), 1: (1,)} and roots == (0, 1)
    assert infos == {0: LevelInfo("Core", 0, 2), 1: LevelInfo("Core", 1, 2)}
    groups, _, roots = step(locations, (2, 3))
    assert groups == {2: None, 3: None} and roots == ()

    for rank in (0, 1):                                                            # step 4
        groups, _, roots = step(locations, (rank,))
        assert groups == {rank: None} and roots == ()


# ---------------------------------------------------------------------- 3.2.2 on random machines


def random_description(choice):
    kinds = [kind for kind in ("package", "numa", "l3", "l2", "l1", "core") if choice.random() < .7]
    return " ".join(f"{kind}:{choice.choice((1, 2, 2, 3))}" for kind in kinds) + (
        f" pu:{choice.choice((1, 1, 2))}")


def random_locations(choice):
    """Ranks on up to 3 nodes of up to 2 kinds, below up to 2 levels of switches.

    Bound to whole objects, or to any CPUs.
    """
    trees = [machine(random_description(choice)) for _ in range(2)]
    depth = choice.randrange(3)
    nodes = []
    for node in range(choice.randrange(1, 4)):
        path = [str(choice.randrange(2)) for _ in range(depth)]
        text = f"n{node} {' '.join(path)}" if path else ""
        above = network.parse(text).places(f"n{node}") if text else ()
        nodes.append((f"n{node}", choice.choice(trees), above))
    locations, cpus = [], []
    for _ in range(choice.randrange(1, 17)):
        name, tree, above = choice.choice(nodes)
        if choice.random() < .7:
            allowed = choice.choice(list(tree.walk())).cpus
        else:
            allowed = frozenset(choice.sample(sorted(tree.cpus), choice.randint(
                1, min(3, len(tree.cpus)))))
        locations.append(above + levels.locate(tree, allowed, name))
        cpus.append((name, tree, allowed))
    return locations, cpus


@pytest.mark.parametrize("seed", range(300))
def test_properties_of_splits_on_random_machines(seed):
    locations, cpus = random_locations(random.Random(seed))
    last = [None] * len(locations)
    pending = [tuple(range(len(locations)))]
    while pending:
        ranks = pending.pop()
        groups, infos, roots = step(locations, ranks)
        parts = set(groups.values()) - {None}
        for rank in ranks:
            if groups[rank] is None:
                last[rank] = ranks
                continue
            assert rank in groups[rank]
            assert set(groups[rank]) < set(ranks)                      # a strict subset
            assert list(groups[rank]) == sorted(groups[rank])          # in the parent's order
        assert sum(map(len, parts)) == len(set().union(*parts))        # disjoint
        assert roots == tuple(sorted(part[0] for part in parts))
        numbered = {part: infos[part[0]] for part in parts}
        assert sorted(info.index for info in numbered.values()) == list(range(len(parts)))
        assert {info.siblings for info in numbered.values()} <= {len(parts)}
        for part, info in numbered.items():
            assert len({infos[rank] for rank in part}) == 1
            # The type is the lowest level that all of them share, and no lower one.
            assert info.type == levels.min_level(locations, part, part[0])
        # Only what is bound inside one child of the shared object has a communicator.
        common = levels.shared(locations[rank] for rank in ranks)
        for rank in ranks:
            assert (groups[rank] is None) == (len(locations[rank]) == len(common))
        pending += parts
    # In the end all ranks of a communicator are bound to the whole object they share, or to more
    # than one of its children.
    for rank, ranks in enumerate(last):
        _, tree, allowed = cpus[rank]
        common = levels.shared(locations[other] for other in ranks)
        assert common == locations[rank] or len(locations[rank]) == len(common)
        inner = next((e for e in tree.walk() if common and common[-1].type == e.type
                      and common[-1].index == e.index), tree)
        assert not any(allowed <= child.cpus for child in inner.children) or (
            common and common[-1].height is None)


@pytest.mark.parametrize("seed", range(0, 300, 7))
def test_distances_are_an_ultrametric(seed):
    locations, _ = random_locations(random.Random(seed))
    table = levels.distances(locations)
    ranks = range(len(locations))
    for a, b, c in itertools.product(ranks, repeat=3):
        assert table[a][c] <= max(table[a][b], table[b][c])
        assert table[a][b] == table[b][a] and (table[a][b] == 0) == (a == b)


def test_distances_count_levels_upwards():
    locations = [*located(["0", "0", "1", "2", "4", "0-7"]),
                 levels.locate(machine(), frozenset([0]), "n1")]
    # Same core, same L1 and L2, same L3, same machine; an unbound rank; another node.
    assert levels.distances(locations)[0] == [0, 1, 2, 3, 4, 4, 5]
    assert levels.distance(locations, 3, 0) == 3
    with pytest.raises(ValueError, match=r"\[7\] are not in a communicator of 7"):
        levels.distance(locations, 0, 7)


# ---------------------------------------------------------------------- types, indices, names


def test_the_lowest_of_redundant_levels_gives_the_type():
    groups = levels.split(located(["0", "1"], "numa:2 package:1 core:1 pu:1"))
    assert [group.info.type for group in groups] == ["Core", "Core"]
    groups = levels.split(located(["0", "1"], "core:1 pu:2"))
    assert [group.info.type for group in groups] == ["PU", "PU"]
    # The only NUMA node is no level of its own; one of two is.
    assert levels.min_level(located(["0", "2"], "package:2 core:2"), [0, 1], 0) == "Machine"
    assert levels.min_level(located(["0", "2"], "package:1 numa:2 core:4"), [0, 1], 0) == "NUMANode"


def test_the_type_is_what_all_ranks_share_even_if_others_are_higher():
    # Package 0 holds ranks in both its caches, package 1 in one only.
    groups = levels.split(located(["0", "2", "4", "5"], "package:2 l3:2 core:2 pu:1"))
    assert [group.info.type for group in groups] == ["Package", "Package", "L3Cache", "L3Cache"]


def test_indices_have_no_gaps_where_an_object_holds_no_rank():
    groups = levels.split(located(["6", "2", "2"], "package:4 core:2 pu:1"))
    assert [group.info for group in groups] == [
        LevelInfo("Core", 1, 2), LevelInfo("Core", 0, 2), LevelInfo("Core", 0, 2)]


def test_ranks_bound_less_deeply_get_nothing_and_do_not_count():
    groups = levels.split(located(["0-7", "0", "1", "4-7"]))
    assert members(groups) == [None, (1, 2), (1, 2), (3,)]
    assert groups[3].info == LevelInfo("L3Cache", 1, 2)


def test_unbound_ranks_of_one_node_have_no_level_below():
    assert members(levels.split(located(["0-7", "0-7"]))) == [None, None]


def test_a_binding_across_two_objects_ends_at_what_holds_both():
    assert [place.type for place in located(["1,2"])[0]] == [
        "Machine", "NUMANode", "Package", "L3Cache"]


@pytest.mark.parametrize("cpus", [frozenset(), frozenset([9])])
def test_a_binding_outside_the_machine_has_no_location(cpus):
    with pytest.raises(ValueError, match="outside"):
        levels.locate(machine(), cpus, "n0")


def test_split_to_a_named_level():
    locations = located(["0", "1", "5", "0-7"])
    assert members(levels.split_to(locations, "L3Cache")) == [(0, 1), (0, 1), (2,), None]
    assert members(levels.split_to(locations, "PU")) == [(0,), (1,), (2,), None]
    assert members(levels.split_to(locations, "Machine")) == [(0, 1, 2, 3)] * 4
    assert members(levels.split_to(locations, "Die")) == [None] * 4
    assert levels.split_to(locations, "NUMANode")[2].info == LevelInfo("NUMANode", 1, 2)


@pytest.mark.parametrize("text, name", [
    ("L3Cache", "L3Cache"), ("l3", "L3Cache"), ("L2_Cache", "L2Cache"), ("NumaNode", "NUMANode"),
    ("numa", "NUMANode"), ("hwloc://Core", "Core"), ("Machine", "Machine"), ("group", "Group0"),
    ("mpi_shared_memory", "Machine"), ("switch1", "Switch1"), ("group1", "Group1"),
    ("TorusDimension0", "TorusDimension0"), ("package", "Package"), ("PU", "PU"),
])
def test_names_of_levels(text, name):
    assert levels.level_name(text) == name


@pytest.mark.parametrize("text", ["", "L9Cache", "kernel", "switch", "l3cachex"])
def test_unknown_names_of_levels_are_refused(text):
    with pytest.raises(ValueError, match="unknown level"):
        levels.level_name(text)


def test_min_level():
    locations = [*located(["0", "1", "2", "4"]), levels.locate(machine(), frozenset([0]), "n1")]
    assert levels.min_level(locations, [0], 0) == "Core"
    assert levels.min_level(locations, [0, 1], 1) == "L1Cache"
    assert levels.min_level(locations, [0, 2, 1], 1) == "L3Cache"
    assert levels.min_level(locations, [0, 3], 0) == "Machine"
    assert levels.min_level(locations, [0, 4], 0) == "System - Cluster"
    assert levels.min_level(locations, [0, 1], 2) == "Unknown"
    assert levels.min_level(locations, [], 2) == "Unknown"
    for wrong in ([0, 5], [-1]):
        with pytest.raises(ValueError, match="not in a communicator of 5 ranks"):
            levels.min_level(locations, wrong, 0)


# ---------------------------------------------------------------------- the network

NETWORK = """
# host  switches
n0  core edge0
n1  core edge0   # as n0
n2  core edge1
n3  other edge0
"""


def test_switches_and_nodes_are_one_continuum():
    net = network.parse(NETWORK)
    locations = [net.places(f"n{n}") + path for n in range(4)
                 for path in (levels.locate(machine(), frozenset([0]), f"n{n}"),
                              levels.locate(machine(), frozenset([4]), f"n{n}"))]
    types = [[group.info.type for group in chain] for chain in levels.hierarchy(locations)]
    assert types == [["Switch0", "Switch1", "Machine", "Core"]] * 4 + [
        ["Switch0", "Machine", "Core"]] * 2 + [["Machine", "Core"]] * 2
    assert levels.min_level(locations, [0, 2], 0) == "Switch1"
    assert levels.min_level(locations, [0, 4], 0) == "Switch0"
    # The two switches named edge0 are different ones.
    assert levels.min_level(locations, [0, 6], 0) == "System - Cluster"
    assert levels.distances(locations)[0] == [0, 4, 5, 5, 6, 6, 7, 7]


def test_a_torus_is_split_along_one_dimension():
    net = network.parse("torus 2 3\na 0 0\nb 0 2\nc 1 2\n")
    assert net.places("b", 0) == (Place("TorusDimension0", 0),)
    assert net.places("b", 1) == net.places("c", 1) == (Place("TorusDimension1", 2),)
    assert net.places("b") == ()
    with pytest.raises(ValueError, match="no torus dimension 2"):
        net.places("b", 2)


def test_hosts_are_found_with_and_without_their_domain():
    assert network.parse("n0 s\n").places("n0.example.org") == (Place("Switch0", "s"),)
    with pytest.raises(ValueError, match="no line for host 'n1'"):
        network.parse("n0 s\n").places("n1")
    with pytest.raises(ValueError, match="no torus"):
        network.parse("n0 s\n").places("n0", 0)


@pytest.mark.parametrize("text, message", [
    ("", "names no host"), ("n0\n", "line 1: a host's name and its switches"),
    ("n0 a\nn1 a b\n", "different numbers"), ("n0 a\nn0 b\n", "line 2: host 'n0' a second time"),
    ("n0 a/b\n", "without slashes"), ("torus\nn0 0\n", "line 1: a torus has sizes"),
    ("torus 2 0\n", "sizes"), ("n0 0\ntorus 2\n", "line 2: the torus must be the first"),
    ("torus 2 2\nn0 0\n", "2 coordinates below 2 2"), ("torus 2 2\nn0 0 2\n", "2 coordinates"),
    ("torus 2\nn0 x\n", "1 coordinates"),
])
def test_a_malformed_network_is_refused(text, message):
    with pytest.raises(ValueError, match=f"SMCOLL_NETWORK.*{message}"):
        network.parse(text)


# ---------------------------------------------------------------------- drawings


@pytest.fixture
def ranks_of_figure_2():
    tree = machine()
    bindings = ["0", "1", "2-3", "2-3", "4-7", "4-7", "4-7", "4-7"]
    return [drawing.Rank(rank, "n0", "n0", tree, hardware.parse_cpus(cpus),
                         levels.locate(tree, hardware.parse_cpus(cpus), "n0"))
            for rank, cpus in enumerate(bindings)]


def test_the_text_shows_levels_and_ranks(ranks_of_figure_2):
    assert drawing.text(ranks_of_figure_2) == """\
Machine n0: CPUs 0-7
├─ NUMANode 0 = Package 0 = L3Cache 0: CPUs 0-3
│  ├─ L2Cache 0 = L1Cache 0: CPUs 0-1
│  │  ├─ Core 0 = PU 0: CPU 0: rank 0
│  │  └─ Core 1 = PU 1: CPU 1: rank 1
│  └─ L2Cache 1 = L1Cache 1: CPUs 2-3: ranks 2-3
│     ├─ Core 2 = PU 2: CPU 2
│     └─ Core 3 = PU 3: CPU 3
└─ NUMANode 1 = Package 1 = L3Cache 1: CPUs 4-7: ranks 4-7
   ├─ L2Cache 2 = L1Cache 2: CPUs 4-5
   │  ├─ Core 4 = PU 4: CPU 4
   │  └─ Core 5 = PU 5: CPU 5
   └─ L2Cache 3 = L1Cache 3: CPUs 6-7
      ├─ Core 6 = PU 6: CPU 6
      └─ Core 7 = PU 7: CPU 7"""


def test_the_text_shows_the_communicators(ranks_of_figure_2):
    assert drawing.communicators(ranks_of_figure_2) == """\
all, ranks 0-7: Machine
├─ L3Cache 0 of 2: ranks 0-3
│  ├─ L1Cache 0 of 2: ranks 0-1
│  │  ├─ Core 0 of 2: rank 0
│  │  └─ Core 1 of 2: rank 1
│  └─ L1Cache 1 of 2: ranks 2-3
└─ L3Cache 1 of 2: ranks 4-7"""


def test_switches_are_drawn_above_their_machines():
    tree, net = machine("core:2"), network.parse(NETWORK)
    ranks = [drawing.Rank(rank, host, host, tree, frozenset([0]),
                          net.places(host) + levels.locate(tree, frozenset([0]), host))
             for rank, host in enumerate(["n0", "n2"])]
    lines = drawing.text(ranks).splitlines()
    assert lines[0] == "Switch0 core"
    assert lines[1] == "├─ Switch1 core/edge0"
    assert lines[2].startswith("│  └─ Machine n0 = NUMANode 0: CPUs 0-1")
    assert any(line.startswith("   └─ Machine n2") for line in lines)


def test_dot_has_all_objects_and_ranks(ranks_of_figure_2):
    text = drawing.dot(ranks_of_figure_2)
    assert text.startswith("digraph") and text.rstrip().endswith("}")
    assert text.count("->") == text.count("[label=") - 1 == 14
    for label in ("L2Cache 1 = L1Cache 1", "ranks 4-7", "Machine n0"):
        assert label in text


# ---------------------------------------------------------------------- the command


def info(*arguments, code=0, **environment):
    result = subprocess.run(
        launch.own_command("info", *map(str, arguments)), capture_output=True, text=True,
        timeout=120, stdin=subprocess.DEVNULL, check=False, env={**os.environ, **environment})
    assert result.returncode == code, result.stdout + result.stderr
    return result


def test_info_draws_the_machine_of_this_process(tmp_path):
    result = info("--topology", "--dot", tmp_path / "machine.dot", "--plot", tmp_path / "m.png",
                  SMCOLL_TOPOLOGY=FIGURE_1, SMCOLL_BINDING="2-3")
    assert "L2Cache 1 = L1Cache 1: CPUs 2-3: rank 0" in result.stdout
    assert (tmp_path / "machine.dot").read_text().startswith("digraph")
    assert (tmp_path / "m.png").read_bytes().startswith(b"\x89PNG")


def test_info_draws_the_ranks_of_a_job():
    result = info("--topology", "-n", 3, SMCOLL_TOPOLOGY=FIGURE_1, SMCOLL_BINDING="0 0 n1:4-7")
    assert "Core 0 = PU 0: CPU 0: ranks 0-1" in result.stdout
    assert "Machine 1 of 2" not in result.stdout      # its only rank is bound to the L3
    assert "L3Cache 1 of 2: rank 2" in result.stdout


def test_info_says_what_is_wrong_with_a_topology():
    result = info("--topology", code=2, SMCOLL_TOPOLOGY="package:two")
    assert "SMCOLL_TOPOLOGY" in result.stderr and "package:two" in result.stderr
    assert "Traceback" not in result.stderr
    result = info("--dot", "x.dot", code=2)
    assert "--topology" in result.stderr
