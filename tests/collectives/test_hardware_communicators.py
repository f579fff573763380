"""Hardware communicators of real ranks, on made-up machines and on this one.

GJMM = Goglin, Jeannot, Mansouri & Mercier (2018).
"""

from __future__ import annotations

import os
import random

import numpy as np
import pytest
from mpi4py import MPI

import smcoll
from smcoll import topology
from smcoll.topology import LevelInfo, levels

# GJMM Fig. 1: two NUMA nodes with a package and an L3 each, an L2 and L1 for each pair of cores.
FIGURE_1 = "numa:2 package:1 l3:1 l2:2 l1:1 core:2 pu:1"
FIGURE_2_BINDING = "0 1 2-3 2-3 4-7 4-7 4-7 4-7"
TWO_NODES = " ".join(f"n{node}:{cpu}" for node in range(2) for cpu in range(4))


@pytest.fixture
def machine(monkeypatch):
    """Sets what stands for the machine, the bindings and the network, on this rank."""
    def set_environment(description=FIGURE_1, binding="", network=""):
        for name, value in (("TOPOLOGY", description), ("BINDING", binding), ("NETWORK", network)):
            monkeypatch.setenv(f"SMCOLL_{name}", str(value))

    set_environment()
    return set_environment


@pytest.fixture(params=["mpi4py", "smcoll"])
def comm(request, comm_world):
    """All ranks, as a communicator of mpi4py's and of smcoll's."""
    made = comm_world.Dup() if request.param == "mpi4py" else smcoll.Comm(comm_world.Dup())
    yield made
    made.Free()


def ranks_of(made, world):
    """The ranks in ``world`` of a communicator's members; None for COMM_NULL."""
    if not made:
        assert made == MPI.COMM_NULL
        return None
    return MPI.Group.Translate_ranks(made.Get_group(), None, world.Get_group())


def same_error_everywhere(world, call, match):
    """``call`` raises the same TopologyError on all ranks, and the communicator still works."""
    with pytest.raises(smcoll.TopologyError, match=match) as caught:
        call()
    assert caught.value.Get_error_class() == MPI.ERR_ARG
    assert len(set(world.allgather(str(caught.value)))) == 1


def info_with(**entries):
    info = MPI.Info.Create()
    for key, value in entries.items():
        info.Set(key, value)
    return info


# ---------------------------------------------------------------------- GJMM's examples


def steps(comm):
    """Repeated split_with_roots: (members, LevelInfo, roots) of each step, down to COMM_NULL."""
    result, parent = [], comm
    while parent:
        inner, roots = topology.split_with_roots(parent)
        if inner:
            assert MPI.Comm.Compare(parent, inner) == MPI.UNEQUAL
            assert type(inner) is type(roots or inner) is (
                smcoll.Comm if isinstance(comm, smcoll.Comm) else MPI.Intracomm)
        result.append((ranks_of(inner, comm), topology.level_info(inner) if inner else None,
                       ranks_of(roots, comm)))
        parent = inner
    return result


@pytest.mark.mpi(8)
def test_gjmm_5_1_on_two_smaller_nodes(machine, comm):
    """Its steps 1, 2, 4 and 5: two nodes of two L3 caches of two cores."""
    machine("numa:2 package:1 l3:1 core:2 pu:1", TWO_NODES)
    me = comm.Get_rank()
    node, pair = me // 4, me // 2
    assert steps(comm) == [
        (list(range(4 * node, 4 * node + 4)), LevelInfo("Machine", node, 2),
         [0, 4] if me % 4 == 0 else None),
        ([2 * pair, 2 * pair + 1], LevelInfo("L3Cache", pair % 2, 2),
         [4 * node, 4 * node + 2] if me % 2 == 0 else None),
        ([me], LevelInfo("Core", me % 2, 2), [2 * pair, 2 * pair + 1]),
        (None, None, None),
    ]


@pytest.mark.one_node
@pytest.mark.mpi(8)
def test_gjmm_5_1_within_a_node(machine, comm):
    """Its steps 2 to 5, on the node of Fig. 1."""
    machine(FIGURE_1, "0 1 2 3 4 5 6 7")
    me = comm.Get_rank()
    four, two = me // 4 * 4, me // 2 * 2
    assert steps(comm) == [
        (list(range(four, four + 4)), LevelInfo("L3Cache", me // 4, 2),
         [0, 4] if me % 4 == 0 else None),
        ([two, two + 1], LevelInfo("L1Cache", me // 2 % 2, 2),
         [four, four + 2] if me % 2 == 0 else None),
        ([me], LevelInfo("Core", me % 2, 2), [two, two + 1]),
        (None, None, None),
    ]


@pytest.mark.one_node
@pytest.mark.mpi(8)
def test_gjmm_5_2_non_uniform_binding(machine, comm):
    machine(FIGURE_1, FIGURE_2_BINDING)
    me = comm.Get_rank()
    step_1 = ([0, 1, 2, 3] if me < 4 else [4, 5, 6, 7], LevelInfo("L3Cache", me // 4, 2),
              [0, 4] if me in (0, 4) else None)
    step_2 = ([me // 2 * 2, me // 2 * 2 + 1], LevelInfo("L1Cache", me // 2, 2),
              [0, 2] if me in (0, 2) else None)
    step_3 = ([me], LevelInfo("Core", me, 2), [0, 1])
    nothing = (None, None, None)
    assert steps(comm) == [step_1] + (
        [step_2, step_3, nothing] if me < 2 else [step_2, nothing] if me < 4 else [nothing])


@pytest.mark.mpi(2)
def test_the_last_communicator_is_congruent_to_self(machine, comm_world):
    machine(FIGURE_1, "0 1")
    last = topology.hierarchy(comm_world)[-1]
    assert MPI.Comm.Compare(last, MPI.COMM_SELF) == MPI.CONGRUENT
    last.Free()


# ---------------------------------------------------------------------- random machines


@pytest.mark.mpi(1, 3, 5)
@pytest.mark.parametrize("seed", range(8))
def test_real_communicators_are_those_computed(machine, comm_world, tmp_path, seed):
    choice = random.Random(seed)
    sizes = [choice.choice((1, 2, 3)) for _ in range(3)]
    total = int(np.prod(sizes))
    words = []
    for _ in range(comm_world.size):
        low = choice.randrange(total)
        high = choice.choice((low, low, min(low + choice.randrange(4), total - 1)))
        words.append(f"n{choice.randrange(2)}:{low}-{high}")
    network = tmp_path / "network"
    network.write_text(f"n0 top a\nn1 top {choice.choice('ab')}\n")
    machine("package:{} l3:{} core:{} pu:1".format(*sizes), " ".join(words), network)
    expected = levels.hierarchy(topology.locations(comm_world))[comm_world.rank]
    made = topology.hierarchy_with_roots(comm_world)
    assert [ranks_of(one, comm_world) for one, _ in made] == [
        list(group.members) for group in expected]
    assert [topology.level_info(one) for one, _ in made] == [group.info for group in expected]
    for one, roots in made:
        assert bool(roots) == (one.rank == 0)
        assert topology.min_level(one, range(one.size)) == topology.level_info(one).type
    for one, roots in made:
        one.Free()
        if roots:
            roots.Free()


# ---------------------------------------------------------------------- this machine


@pytest.mark.one_node
@pytest.mark.mpi(2)
def test_the_affinity_mask_binds_on_this_machine(comm_world, monkeypatch):
    for name in ("TOPOLOGY", "BINDING", "NETWORK"):
        monkeypatch.delenv(f"SMCOLL_{name}", raising=False)
    before = os.sched_getaffinity(0)
    cores = [entry for entry in topology.read_machine().walk() if entry.type == "Core"]
    try:
        usable = len(cores) > 1
        if usable:
            try:
                os.sched_setaffinity(0, cores[comm_world.rank].cpus)
            except OSError:
                usable = False
        if not all(comm_world.allgather(usable)):
            pytest.skip("needs two cores to bind to")
        made = topology.split(comm_world)
        assert ranks_of(made, comm_world) == [comm_world.rank]
        assert topology.level_info(made) == LevelInfo("Core", comm_world.rank, 2)
        made.Free()
        os.sched_setaffinity(0, frozenset().union(*(core.cpus for core in cores)))
        assert topology.split(comm_world) == MPI.COMM_NULL       # unbound
    finally:
        os.sched_setaffinity(0, before)


# ---------------------------------------------------------------------- what is made


@pytest.mark.one_node
@pytest.mark.mpi(4)
def test_what_smcoll_communicators_give_goes_through_shared_memory(machine, comm_world):
    machine("package:2 core:2 pu:1", "0 1 2 3")
    with smcoll.Comm(comm_world.Dup(), smcoll.Config(segment_size=8192)) as comm:
        inner = topology.split(comm)
        total = np.zeros(1)
        inner.Allreduce(np.ones(1), total)
        assert total[0] == 2 and inner.engine.config.segment_size == 8192
        inner.Free()


@pytest.mark.mpi(2)
def test_level_info_is_local_kept_by_duplicates_and_unknown_elsewhere(machine, comm_world):
    machine(FIGURE_1, "0 4")
    assert topology.level_info(comm_world) is None
    inner = topology.split(comm_world)
    if comm_world.rank == 1:                      # nobody else takes part
        assert topology.level_info(inner) == LevelInfo("Core", 1, 2)
    copy = inner.Dup()
    assert topology.level_info(copy) == topology.level_info(inner)
    copy.Free()
    inner.Free()


@pytest.mark.one_node
@pytest.mark.mpi(2)
def test_bindings_may_change_between_calls(machine, comm_world):
    machine(FIGURE_1, "0 1")
    assert topology.min_level(comm_world, [0, 1]) == "L1Cache"
    machine(FIGURE_1, "0 4")
    assert topology.min_level(comm_world, [0, 1]) == "Machine"


# ---------------------------------------------------------------------- questions


@pytest.mark.mpi(4)
def test_each_rank_asks_for_the_lowest_level_of_its_own_ranks(machine, comm_world):
    machine(FIGURE_1, "n0:0 n0:1 n0:4 n1:0")
    asked = {0: ([0, 1], "L1Cache"), 1: ([1, 2], "Machine"), 2: ([0, 1], "Unknown"),
             3: ([3, 0], "System - Cluster")}
    ranks, expected = asked[comm_world.rank]
    assert topology.min_level(comm_world, ranks) == expected


@pytest.mark.mpi(3)
def test_distances(machine, comm_world):
    machine(FIGURE_1, "n0:0 n0:1 n1:0")
    assert topology.distances(comm_world) == [[0, 2, 5], [2, 0, 5], [5, 5, 0]]
    other = (comm_world.rank + 1) % 3
    assert topology.distance(comm_world, comm_world.rank, other) == [2, 5, 5][comm_world.rank]


# ---------------------------------------------------------------------- named levels, Split_type


@pytest.mark.one_node
@pytest.mark.mpi(4)
def test_split_to_a_named_level(machine, comm):
    machine(FIGURE_1, "0 1 4 all")
    made = topology.split_to(comm, "L3")
    assert ranks_of(made, comm) == [[0, 1], [0, 1], [2], None][comm.rank]
    if made:
        assert topology.level_info(made) == LevelInfo("L3Cache", comm.rank // 2, 2)
    assert topology.split_to(comm, "Die") == MPI.COMM_NULL
    whole = topology.split_to(comm, "Machine")
    assert ranks_of(whole, comm) == [0, 1, 2, 3]


@pytest.mark.one_node
@pytest.mark.mpi(4)
def test_split_type_unguided_is_split_and_names_the_level(machine, comm_world):
    machine(FIGURE_1, "0 2 4 6")
    with smcoll.Comm(comm_world.Dup()) as comm:
        info = info_with()
        made = comm.Split_type(MPI.COMM_TYPE_HW_UNGUIDED, key=-comm.rank, info=info)
        assert type(made) is smcoll.Comm
        assert ranks_of(made, comm) == ([1, 0] if comm.rank < 2 else [3, 2])
        assert info.Get("mpi_hw_resource_type") == "L3Cache"
        assert topology.level_info(made) == LevelInfo("L3Cache", comm.rank // 2, 2)
        inner = made.Split_type(MPI.COMM_TYPE_HW_UNGUIDED)
        assert ranks_of(inner, comm) == [comm.rank]
        assert inner.Split_type(MPI.COMM_TYPE_HW_UNGUIDED) == MPI.COMM_NULL


@pytest.mark.one_node
@pytest.mark.mpi(4)
@pytest.mark.parametrize("level, expected", [
    ("L3Cache", [[0, 1], [0, 1], [2, 3], [2, 3]]), ("hwloc://Core", [[0], [1], [2], [3]]),
    ("mpi_shared_memory", [[0, 1, 2, 3]] * 4), ("Die", [None] * 4), ("no such level", [None] * 4),
    (None, [None] * 4)])
def test_split_type_guided(machine, comm_world, level, expected):
    machine(FIGURE_1, "0 1 4 5")
    with smcoll.Comm(comm_world.Dup()) as comm:
        info = info_with(**({} if level is None else {"mpi_hw_resource_type": level}))
        made = comm.Split_type(MPI.COMM_TYPE_HW_GUIDED, info=info)
        assert ranks_of(made, comm) == expected[comm.rank]
        assert comm.Split_type(MPI.COMM_TYPE_HW_GUIDED) == MPI.COMM_NULL


@pytest.mark.one_node
@pytest.mark.mpi(4)
@pytest.mark.parametrize("kind", ["COMM_TYPE_HW_UNGUIDED", "COMM_TYPE_HW_GUIDED",
                                  "COMM_TYPE_SHARED"])
def test_split_type_leaves_out_ranks_that_say_so(machine, comm_world, kind):
    machine(FIGURE_1, "0 1 4 5")
    with smcoll.Comm(comm_world.Dup()) as comm:
        out = comm.rank == 1
        info = info_with(mpi_hw_resource_type="Package")
        made = comm.Split_type(MPI.UNDEFINED if out else getattr(MPI, kind), info=info)
        shared = kind == "COMM_TYPE_SHARED"
        assert ranks_of(made, comm) == (
            None if out else [0, 2, 3] if shared else [0] if comm.rank == 0 else [2, 3])


@pytest.mark.one_node
@pytest.mark.mpi(2)
def test_other_split_types_are_mpis(machine, comm_world):
    machine("nonsense")
    with smcoll.Comm(comm_world.Dup()) as comm:
        made = comm.Split_type(MPI.COMM_TYPE_SHARED)
        assert type(made) is smcoll.Comm and ranks_of(made, comm) == [0, 1]


@pytest.mark.mpi(2)
def test_split_type_of_different_types_is_an_error_everywhere(machine, comm_world):
    with smcoll.Comm(comm_world.Dup()) as comm:
        kind = (MPI.COMM_TYPE_HW_GUIDED, MPI.COMM_TYPE_HW_UNGUIDED)[comm.rank]
        same_error_everywhere(comm, lambda: comm.Split_type(kind), "different types")


# ---------------------------------------------------------------------- parts, the network


@pytest.fixture
def tree_network(machine, tmp_path):
    """Two switches below one; on the first two nodes of two ranks, on the second one of one."""
    file = tmp_path / "network"
    file.write_text("n0 core edge0\nn1 core edge0\nn2 core edge1\n")
    machine("package:2 core:1 pu:1", "n0:0 n0:1 n1:0 n1:1 n2:0", file)


def chain(comm, **selection):
    """(type, members) of all levels of this rank."""
    made = topology.hierarchy(comm, **selection)
    return [(topology.level_info(one).type, ranks_of(one, comm)) for one in made]


@pytest.mark.mpi(5)
def test_switches_nodes_and_cores_are_one_hierarchy(tree_network, comm_world):
    me = comm_world.rank
    node = [[0, 1], [0, 1], [2, 3], [2, 3], [4]][me]
    below = [("Switch1", [0, 1, 2, 3]), ("Machine", node), ("Core", [me])]
    assert chain(comm_world) == (below if me < 4 else [("Core", [4])])
    assert chain(comm_world, levels="network") == (
        below[:2] if me < 4 else [("Machine", [4])])
    # Without the switches, the nodes come first.
    assert chain(comm_world, levels="node") == (below[1:] if me < 4 else [("Core", [4])])
    together = topology.min_level(comm_world, range(5))
    assert together == "Switch0"
    assert topology.min_level(comm_world, range(5), levels="node") == "System - Cluster"


@pytest.mark.mpi(5)
def test_info_keys_choose_the_part(tree_network, comm_world):
    with smcoll.Comm(comm_world.Dup()) as comm:
        for part, expected in (("network", [[0, 1, 2, 3], [4]]), ("node", [[0, 1], [2, 3], [4]])):
            made = comm.Split_type(MPI.COMM_TYPE_HW_UNGUIDED,
                                   info=info_with(smcoll_hw_levels=part))
            assert ranks_of(made, comm) == next(part for part in expected if comm.rank in part)
        same_error_everywhere(comm, lambda: comm.Split_type(
            MPI.COMM_TYPE_HW_UNGUIDED, info=info_with(smcoll_hw_levels="disk")), "levels 'disk'")
        same_error_everywhere(comm, lambda: comm.Split_type(
            MPI.COMM_TYPE_HW_UNGUIDED, info=info_with(smcoll_torus_dimension="x")), "whole number")


@pytest.mark.mpi(4)
def test_one_dimension_of_a_torus(machine, tmp_path, comm_world):
    (tmp_path / "network").write_text("torus 2 2\nn00 0 0\nn01 0 1\nn10 1 0\nn11 1 1\n")
    machine("core:1", "n00:0 n01:0 n10:0 n11:0", tmp_path / "network")
    me = comm_world.rank
    assert chain(comm_world, torus_dimension=0) == [
        ("TorusDimension0", [0, 1] if me < 2 else [2, 3]), ("Core", [me])]
    with smcoll.Comm(comm_world.Dup()) as comm:
        made = comm.Split_type(MPI.COMM_TYPE_HW_UNGUIDED,
                               info=info_with(smcoll_torus_dimension="1"))
        assert ranks_of(made, comm) == ([0, 2] if me % 2 == 0 else [1, 3])
    assert chain(comm_world) == [("Core", [me])]          # no hierarchy above the nodes
    same_error_everywhere(comm_world, lambda: topology.split(comm_world, torus_dimension=2),
                          "no torus dimension 2")


# ---------------------------------------------------------------------- bad input


@pytest.mark.mpi(3)
@pytest.mark.parametrize("function", [
    topology.split, topology.split_with_roots, topology.hierarchy, topology.hierarchy_with_roots,
    topology.distances, topology.locations, lambda comm: topology.split_to(comm, "Core"),
    lambda comm: topology.min_level(comm, [0]), lambda comm: topology.distance(comm, 0, 1),
    lambda comm: smcoll.wrap(comm).Split_type(MPI.COMM_TYPE_HW_UNGUIDED)])
def test_one_ranks_malformed_topology_is_everyones_error(machine, comm_world, function):
    machine("core:4" if comm_world.rank != 1 else "core:many")
    same_error_everywhere(comm_world, lambda: function(comm_world),
                          "rank 1: SMCOLL_TOPOLOGY: .*core:many")


@pytest.mark.mpi(3)
@pytest.mark.parametrize("call, match", [
    (lambda comm: topology.split_to(comm, "L9Cache"), "unknown level 'L9Cache'"),
    (lambda comm: topology.split_to(comm, 7), "is a string"),
    (lambda comm: topology.split_to(comm, "Core" if comm.rank else "PU"), "different levels"),
    (lambda comm: topology.min_level(comm, [0, 3] if comm.rank == 2 else [0]), "rank 2: ranks .3."),
    (lambda comm: topology.min_level(comm, [-1]), "not in a communicator of 3 ranks"),
    (lambda comm: topology.min_level(comm, ["a"]), "rank 0"),
    (lambda comm: topology.min_level(comm, None), "rank 0"),
    (lambda comm: topology.distance(comm, 0, 3), "not in a communicator"),
    (lambda comm: topology.split(comm, levels="all" if comm.rank else "node"), "different levels"),
    (lambda comm: topology.split(comm, levels="disk"), "levels 'disk' is none of"),
    (lambda comm: topology.split(comm, torus_dimension=0), "names no network"),
    (lambda comm: topology.split(comm, torus_dimension="0"), "whole number"),
])
def test_bad_arguments_are_everyones_error(machine, comm_world, call, match):
    same_error_everywhere(comm_world, lambda: call(comm_world), match)


@pytest.mark.mpi(2)
@pytest.mark.parametrize("environment, match", [
    ({"binding": "0"}, "rank 1: SMCOLL_BINDING has 1 words"),
    ({"binding": "0 8"}, "rank 1: SMCOLL_BINDING: the machine has no CPU 8"),
    ({"binding": "0 x"}, "SMCOLL_BINDING: 'x'"),
    ({"description": "missing.xml"}, "missing.xml"),
    ({"network": "missing"}, "missing"),
    ({"binding": "n0:0 n1:0", "network": "n0 core\n"}, "rank 1: SMCOLL_NETWORK: no line for"),
    ({"binding": "n0:0 n1:0", "network": "n0 core\nn1 core edge\n"}, "different numbers"),
    ({"binding": "n0:0 n1:0", "network": f"n0 {'x' * 5000}\nn1 y\n"}, "rank 0: .* too long"),
])
def test_bad_descriptions_are_everyones_error(machine, comm_world, tmp_path, environment, match):
    if "\n" in environment.get("network", ""):
        (tmp_path / "network").write_text(environment["network"])
        environment = environment | {"network": tmp_path / "network"}
    machine(**environment)
    same_error_everywhere(comm_world, lambda: topology.split(comm_world), match)


@pytest.mark.mpi(2)
def test_only_intracommunicators_have_levels(machine, comm_world):
    half = comm_world.Split(comm_world.rank)
    inter = half.Create_intercomm(0, comm_world, 1 - comm_world.rank, 3)
    with pytest.raises(TypeError, match="intra-communicator, not Intercomm"):
        topology.split(inter)
    with pytest.raises(MPI.Exception) as caught:
        topology.split(MPI.COMM_NULL)
    assert caught.value.Get_error_class() == MPI.ERR_COMM
    inter.Free()
    half.Free()


@pytest.mark.one_node
@pytest.mark.mpi(3)
def test_unbound_ranks_have_no_level_below_the_node(machine, comm_world):
    machine(FIGURE_1)                                             # nobody is bound
    assert topology.split(comm_world) == MPI.COMM_NULL
    machine(FIGURE_1, "n0:all n0:all n1:all")
    made = topology.split(comm_world)
    assert ranks_of(made, comm_world) == ([0, 1] if comm_world.rank < 2 else [2])
    assert topology.level_info(made) == LevelInfo("Machine", comm_world.rank // 2, 2)
    assert topology.split(made) == MPI.COMM_NULL
    made.Free()
