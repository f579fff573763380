"""Every rank's memory lies on its own NUMA node: asked of the kernel of a machine that has some."""

from __future__ import annotations

import ast
import ctypes
import mmap
import os
import sys
from pathlib import Path

import pytest
import virtual_machine

from smcoll.topology.pages import pages_by_node

PAGE = os.sysconf("SC_PAGESIZE")


def test_pages_that_were_touched_are_counted():
    with mmap.mmap(-1, 8 * PAGE) as memory:
        memory[:3 * PAGE] = b"x" * (3 * PAGE)
        first = ctypes.c_char.from_buffer(memory)
        found = pages_by_node(ctypes.addressof(first), 8 * PAGE)
        del first
    if found is None:
        pytest.skip("the kernel does not say where pages lie")
    assert sum(found.values()) == 3


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    lacking = virtual_machine.missing()
    if lacking:
        pytest.skip(f"no virtual machine: {lacking}")
    return virtual_machine.VirtualMachine(tmp_path_factory.mktemp("machine"))


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("nodes", [2, 4])
def test_every_rank_has_its_memory_on_its_own_node(machine, nodes):
    program = Path(__file__).parents[1] / "support" / "page_placement.py"
    environment = {"PATH": os.environ["PATH"], "HOME": "/root",
                   "PYTHONPATH": str(program.parents[1])}
    code, output = machine.run([sys.executable, str(program), "4"], nodes, 4, environment, 600)
    rows = [ast.literal_eval(line.removeprefix("@@rank ")) for line in output.splitlines()
            if line.startswith("@@rank ")]
    assert (code, len(rows)) == (0, 4), output
    assert {row["node"] for row in rows} == set(range(nodes))
    assert {len(row["domains"]) for row in rows} == {nodes}
    for row in rows:
        assert row["pages"] == {row["node"]: row["reserved"] // PAGE}, rows
