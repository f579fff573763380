"""Hardware levels without MPI: locations, splits, distances, names, the network above.

GJMM = Goglin, Jeannot, Mansouri & Mercier (2018).
"""

from __future__ import annotations

import itertools
import random

import pytest
from machines import NETWORK, located, machine

from smcoll.topology import levels, network
from smcoll.topology.levels import LevelInfo, Place

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
