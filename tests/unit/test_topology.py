"""Machines, read from hwloc, XML, /sys or a description, and where ranks are bound; without MPI."""

from __future__ import annotations

import ctypes
import os
import pathlib

import pytest
from machines import FIGURE_1, IRREGULAR, machine, names

from smcoll.topology import binding, cpuset, hardware, hwloc, hwloc_xml, sysfs


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
    assert [sysfs.last_level_caches(ranks, tmp_path) >> 20 for ranks in (1, 2, 8)] == [16, 32, 32]


def test_a_cache_counts_for_so_much_a_cpu_since_it_may_be_shared_with_other_machines(tmp_path):
    for name, text in {
            "cpu/online": "0-1", "cpu/cpu0/cache/index3/level": "3",
            "cpu/cpu0/cache/index3/size": "266240K",
            "cpu/cpu0/cache/index3/shared_cpu_list": "0-1"}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text + "\n")
    assert sysfs.last_level_caches(2, tmp_path) == 32 << 20
    assert sysfs.data_caches(tmp_path) == [{"level": 3, "bytes": 260 << 20, "cpus": 2}]


def test_caches_that_sys_does_not_tell_are_unknown(tmp_path):
    assert sysfs.last_level_caches(2, tmp_path) == 0


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
        cpuset.parse_cpus(text)


@pytest.mark.parametrize("text", ["0", "0-3", "0,2-3,9"])
def test_lists_of_cpus_are_written_as_they_are_read(text):
    assert cpuset.format_cpus(cpuset.parse_cpus(text)) == text


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
