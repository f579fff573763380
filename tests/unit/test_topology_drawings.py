"""Drawings of a machine and its ranks, and `smcoll info --topology`."""

from __future__ import annotations

import os
import subprocess

import pytest
from machines import FIGURE_1, NETWORK, machine

from smcoll.launch import launch
from smcoll.topology import cpuset, drawing, levels, network

# ---------------------------------------------------------------------- drawings


@pytest.fixture
def ranks_of_figure_2():
    tree = machine()
    bindings = ["0", "1", "2-3", "2-3", "4-7", "4-7", "4-7", "4-7"]
    return [drawing.Rank(rank, "n0", "n0", tree, cpuset.parse_cpus(cpus),
                         levels.locate(tree, cpuset.parse_cpus(cpus), "n0"))
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
