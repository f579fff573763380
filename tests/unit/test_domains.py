"""Trees that follow the hardware: their shapes, and what crosses the boundaries of domains.

The counts simulate the algorithms over the very trees, layouts and tiles that the ranks use.
"""

from __future__ import annotations

import math
import random

import pytest

from smcoll.coll import dissemination
from smcoll.coll.tiled import bounds
from smcoll.sync.domains import Domains
from smcoll.topology import domains as places
from smcoll.topology import synthetic
from smcoll.topology.hardware import build_tree
from smcoll.topology.levels import locate

LINE = 64


def random_places(seed: int) -> list[tuple[str, ...]]:
    """Ranks on up to 3 packages of up to 4 L3 caches, of any sizes, some bound less deeply."""
    chosen = random.Random(seed)
    packages, caches = chosen.randint(1, 3), chosen.randint(1, 4)
    found = []
    for _ in range(chosen.randint(1, 24)):
        package = chosen.randrange(packages)
        path = (f"Package {package}", f"L3Cache {chosen.randrange(caches) + 4 * package}")
        found.append(path[:chosen.choice([2, 2, 2, 2, 1, 0])])
    return found


def edges(found: Domains, ranks: int, root: int, arity: int) -> list[tuple[int, int]]:
    """(parent, child) pairs; both sides agree on each."""
    down, up = [], []
    for rank in range(ranks):
        parent, children = found.tree(rank, root, arity)
        down += [(rank, child) for child in children]
        if parent >= 0:
            up.append((parent, rank))
    assert sorted(up) == sorted(down)
    return down


def reached(down: list[tuple[int, int]], root: int) -> list[int]:
    order = [root]
    for rank in order:
        order += [child for parent, child in down if parent == rank]
    return sorted(order)


@pytest.mark.parametrize("seed", range(60))
def test_trees_reach_everybody_and_cross_no_boundary_twice(seed):
    """On every level, for any root: one edge less than there are groups."""
    where = random_places(seed)
    ranks = len(where)
    found = Domains(where)
    assert sorted(rank for domain in found.members for rank in domain) == list(range(ranks))
    for root in {0, ranks - 1, ranks // 2}:
        for arity in (2, 3, 4, 16):
            down = edges(found, ranks, root, arity)
            assert reached(down, root) == list(range(ranks))
            for depth in (1, 2):
                crossing = [(one, two) for one, two in down
                            if where[one][:depth] != where[two][:depth]]
                assert len(crossing) == len({path[:depth] for path in where}) - 1


@pytest.mark.parametrize("seed", range(60))
def test_stages(seed):
    where = random_places(seed)
    ranks = len(where)
    found = Domains(where)
    domain = {rank: i for i, members in enumerate(found.members) for rank in members}
    for root in {0, ranks - 1}:
        for stages in (1, 2):
            tree = {rank: found.stages(rank, root, stages) for rank in range(ranks)}
            down = [(rank, child) for rank in tree for child in tree[rank][1]]
            assert sorted(down) == sorted((tree[rank][0], rank) for rank in tree if rank != root)
            assert reached(down, root) == list(range(ranks))
            crossing = sum(domain[one] != domain[two] for one, two in down)
            if stages == 1:
                assert len(down) == sum(one == root for one, _ in down) == ranks - 1
            else:
                assert crossing == len(found) - 1
                assert all(one == root or domain[one] == domain[two] for one, two in down)


@pytest.mark.parametrize("arity", [2, 3, 4, 5, 8])
@pytest.mark.parametrize("ranks", [1, 2, 3, 7, 8, 9, 16, 27, 31])
def test_an_n_ary_parent_has_n_minus_1_children_in_each_of_log_n_rounds(arity, ranks):
    """LHS 2.2, figure 3: in full rounds; the root takes part in all of them."""
    found = Domains([()] * ranks)
    rounds = next(i for i in range(ranks + 1) if arity**i >= ranks)
    children = {rank: found.tree(rank, 0, arity)[1] for rank in range(ranks)}
    if arity**rounds == ranks:
        assert len(children[0]) == rounds * (arity - 1)
    assert all(len(below) <= rounds * (arity - 1) for below in children.values())

    def depth(rank):
        parent, _ = found.tree(rank, 0, arity)
        return 0 if parent < 0 else 1 + depth(parent)

    assert max(map(depth, range(ranks))) <= rounds


def test_impossible_trees_are_refused():
    found = Domains([("Package 0",), ("Package 1",)])
    for call in (lambda: found.tree(2), lambda: found.tree(0, -1), lambda: found.tree(0, 0, 1),
                 lambda: found.tree_of_domains(2), lambda: Domains([])):
        with pytest.raises(ValueError):
            call()


# ---------------------------------------------------------------------- lines across boundaries

# 2 packages of 2 domains of 4 cores; 4 domains of 8.
MACHINES = {"package:2 l3:2 core:4": 4, "numa:4 core:8": 4}


def machine_places(description: str) -> list[tuple[str, ...]]:
    """A rank on each core."""
    machine = build_tree(synthetic.parse(description + " pu:1"))
    return [tuple(f"{place.type} {place.index}" for place in
                  locate(machine, frozenset([cpu]), "here") if place.type.startswith(places.LEVELS))
            for cpu in sorted(machine.cpus)]


class Machine:
    """s domains of q ranks, and vectors of m lines; counts the lines that a rank reads elsewhere.
    """

    def __init__(self, description: str):
        self.found = Domains(machine_places(description))
        self.members = self.found.members
        self.s, self.q = len(self.members), len(self.members[0])
        self.p = self.s * self.q
        self.m = 3 * self.p
        self.domain = {rank: i for i, members in enumerate(self.members) for rank in members}

    def crossing(self, reader: int, owner: int, nbytes: int) -> int:
        assert nbytes % LINE == 0
        return nbytes // LINE if self.domain[reader] != self.domain[owner] else 0

    def tile(self, parts: int, part: int) -> tuple[int, int]:
        return bounds(self.m * LINE, 8, parts, part)


@pytest.fixture(params=MACHINES)
def machine(request):
    found = Machine(request.param)
    assert (found.s, found.p % found.s) == (MACHINES[request.param], 0)
    return found


@pytest.mark.parametrize("arity", [2, 3, 4])
def test_reduction_tree_reads_s_minus_1_vectors_elsewhere(machine, arity):
    for root in (0, machine.p - 1, machine.p // 2):
        total = sum(machine.crossing(rank, child, machine.m * LINE) for rank in range(machine.p)
                    for child in machine.found.tree(rank, root, arity)[1])
        assert total == (machine.s - 1) * machine.m


def test_naive_and_cyclic_tiles_read_p_minus_q_vectors_elsewhere(machine):
    total = 0
    for rank in range(machine.p):
        begin, end = machine.tile(machine.p, rank)
        total += sum(machine.crossing(rank, other, end - begin) for other in range(machine.p))
    assert total == (machine.p - machine.q) * machine.m


@pytest.mark.parametrize("top", range(4))
def test_hierarchical_tiles_read_s_minus_1_vectors_elsewhere(machine, top):
    """Inside the domains nothing crosses; each tile goes up a tree over the domains."""
    total = 0
    for domain, members in enumerate(machine.members):
        _, below = machine.found.tree_of_domains(domain, top)
        for i, rank in enumerate(members):
            begin, end = machine.tile(machine.q, i)
            for other in members:
                total += machine.crossing(rank, other, end - begin)
            for child in below:
                for j, owner in enumerate(machine.members[child]):
                    first, last = machine.tile(machine.q, j)
                    overlap = max(0, min(last, end) - max(first, begin))
                    total += machine.crossing(rank, owner, overlap)
    assert total == (machine.s - 1) * machine.m


@pytest.mark.parametrize("stages, vectors", [(1, lambda p, q, s: p - q),
                                             (2, lambda p, q, s: s - 1)])
def test_broadcast_in_one_stage_and_in_two(machine, stages, vectors):
    for root in (0, machine.p - 1):
        total = sum(machine.crossing(rank, machine.found.stages(rank, root, stages)[0],
                                     machine.m * LINE)
                    for rank in range(machine.p) if rank != root)
        assert total == vectors(machine.p, machine.q, machine.s) * machine.m


def test_dissemination_reads_p_log_s_vectors_elsewhere(machine):
    steps = math.ceil(math.log2(machine.q)) + math.ceil(math.log2(machine.s))
    total = 0
    for rank in range(machine.p):
        assert dissemination.source(machine.found, rank, steps) is None
        for step in range(steps):
            owner = dissemination.source(machine.found, rank, step)
            total += machine.crossing(rank, owner, machine.m * LINE)
            inside = step < math.ceil(math.log2(machine.q))
            assert (machine.domain[owner] == machine.domain[rank]) == inside
    assert total == machine.p * machine.m * math.ceil(math.log2(machine.s))


def test_excess_ranks_of_dissemination():
    """LHS figure 6 (long version 7): of 2 domains of 6 ranks, 4 in each take part."""
    found = Domains([(f"NUMANode {rank // 6}",) for rank in range(12)])
    taking_part = [rank for rank in range(12) if dissemination.source(found, rank, 0) is not None]
    assert taking_part == [0, 1, 2, 3, 6, 7, 8, 9]
    assert [dissemination.source(found, rank, 1) for rank in taking_part] == [
        2, 3, 0, 1, 8, 9, 6, 7]
    assert [dissemination.source(found, rank, 2) for rank in taking_part] == [
        6, 7, 8, 9, 0, 1, 2, 3]


# ---------------------------------------------------------------------- where a process is


def write_sys(root, cpus: str, nodes: dict[int, str], caches: list[str], packages: list[str]):
    """A machine below ``root`` as Linux has it."""
    from smcoll.topology.cpuset import parse_cpus

    def write(path, text):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")

    write(root / "cpu" / "online", cpus)
    for node, listed in nodes.items():
        write(root / "node" / f"node{node}" / "cpulist", listed)
        for cpu in parse_cpus(listed):
            (root / "cpu" / f"cpu{cpu}" / f"node{node}").mkdir(parents=True)
    for cpu in parse_cpus(cpus):
        folder = root / "cpu" / f"cpu{cpu}"
        write(folder / "topology" / "package_cpus_list",
              next(text for text in packages if cpu in parse_cpus(text)))
        write(folder / "cache" / "index3" / "level", "3")
        write(folder / "cache" / "index3" / "type", "Unified")
        write(folder / "cache" / "index3" / "shared_cpu_list",
              next(text for text in caches if cpu in parse_cpus(text)))


def test_place_of_a_bound_process(tmp_path):
    write_sys(tmp_path, "0-7", {0: "0-3", 1: "4-7"}, ["0-1", "2-3", "4-7"], ["0-3", "4-7"])

    def place(*cpus):
        return places.bound_place(frozenset(cpus), tmp_path)

    assert place(2) == ("Package 0", "NUMANode 0", "L3Cache 2")
    assert place(0, 1) == ("Package 0", "NUMANode 0", "L3Cache 0")
    assert place(1, 2) == ("Package 0", "NUMANode 0")
    assert place(6, 7) == ("Package 4", "NUMANode 4", "L3Cache 4")
    assert place(3, 4) == ()
    assert place(*range(8)) == place(*range(16)) == ()
    # Domains: the parts that hold ranks; the same numbers of CPUs collapse.
    found = Domains([place(0), place(1), place(2), place(4), place(7), place(1, 2)])
    assert found.members == [[0, 1], [2], [5], [3, 4]]


def test_no_sys_no_place(tmp_path):
    assert places.bound_place(frozenset([0]), tmp_path) == ()
