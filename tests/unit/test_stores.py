"""The stores with which a writer writes what others read, and that data paths have no others."""

import collections
import itertools
import os
import random
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from mpi4py import MPI

import smcoll
from smcoll.base import kernels
from smcoll.tuning import select

ROOT = Path(__file__).resolve().parents[2]
AVAILABLE = kernels.stores_available()

# ---------------------------------------------------------------------- no memcpy

# What is copied is at most a line, or a few hundred bytes, because of the condition beside it.
SHORT_MEMCPY = {
    ("kernels.pxd", "nbytes"): "nbytes <= SHORT_COPY",
    ("kernels.pyx", "<size_t> to.len"): "<size_t> to.len <= SHORT_COPY",
    ("copy_kernels.h", "head"): "head = -(uintptr_t)to % COPY_LINE",
    ("copy_kernels.h", "end - to"): "to + COPY_LINE <= end",
    ("reduction_kernels.h", "bytes"): "bytes < COPY_LINE",
    ("objects.pyx", "nbytes"): "nbytes < SHORT_OBJECT",
}
CONSTANT = re.compile(r"(?:MPI\._)?sizeof\([\w &*.]+\)|\d+|[A-Z_]+|_HEADER\.size")


def calls_of_memcpy():
    """(file, last argument, the lines before) of each call in the package."""
    for file in sorted((ROOT / "smcoll").rglob("*")):
        if file.suffix not in (".pyx", ".pxd", ".h"):
            continue
        text = file.read_text()
        for match in re.finditer(r"\bmem(?:cpy|move)\(", text):
            depth, end, comma = 1, match.end(), match.end()
            while depth:
                depth += {"(": 1, ")": -1}.get(text[end], 0)
                if text[end] == "," and depth == 1:
                    comma = end
                end += 1
            length = " ".join(text[comma + 1:end - 1].replace("\\", "").split())
            around = text[max(0, match.start() - 1500):match.end() + 200]
            yield file, length, around.replace("\\", "")


def test_no_data_path_calls_memcpy_for_more_than_a_few_hundred_bytes():
    found = list(calls_of_memcpy())
    assert len(found) > 10
    for file, length, around in found:
        if not CONSTANT.fullmatch(length):
            reason = SHORT_MEMCPY.get((file.name, length))
            assert reason, f"{file.name} calls memcpy for {length!r} bytes: use copy_bytes"
            assert reason in around, f"{file.name}: memcpy for {length!r} bytes without {reason!r}"


# ---------------------------------------------------------------------- copies


def distances():
    """(out, source): where in a page they lie; all that is special to a string copy or a line."""
    near = (0, 1, 8, 15, 16, 17, 31, 32, 33, 63)
    return [*itertools.product(near, near), (0, 4080), (16, 4095), (4095, 16), (4064, 0)]


@pytest.mark.parametrize("stores", [*AVAILABLE, "interleaved"])
@pytest.mark.parametrize("instructions", kernels.instruction_sets())
def test_every_kind_of_stores_copies_every_byte_and_no_other(stores, instructions):
    interleaved = stores == "interleaved"
    rng = np.random.default_rng(4)
    lengths = (257, 300, 319, 320, 321, 383, 384, 385, 448, 511, 512, 513, 4095, 4096, 4097, 9999)
    for length, (to, start) in itertools.product(lengths, distances()):
        pages = -(-(length + 4096 + 128) // 4096) * 4096
        memory = np.full(pages + 4096, 0xAA, np.uint8)
        begin = -memory.ctypes.data % 4096 + to
        source = np.empty(pages + 4096, np.uint8)
        at = -source.ctypes.data % 4096 + start
        source[at:at + length] = rng.integers(0, 256, length, dtype=np.uint8)
        kernels.copy(memory[begin:begin + length], source[at:at + length],
                     "ordinary" if interleaved else stores, instructions, interleaved)
        np.testing.assert_array_equal(memory[begin:begin + length], source[at:at + length])
        assert (memory[:begin] == 0xAA).all() and (memory[begin + length:] == 0xAA).all()


def test_unknown_stores_are_refused():
    with pytest.raises(ValueError, match="is not one of ordinary"):
        kernels.copy(bytearray(8), bytes(8), "slow")


# ---------------------------------------------------------------------- the choice

SETUP = """
import sys
import numpy
from Cython.Build import cythonize
from setuptools import Extension, setup
headers, sources = sys.argv[-2:]
del sys.argv[-2:]
setup(script_args=["-q", "build_ext", "--inplace"], ext_modules=cythonize(
    Extension("store_choices", ["store_choices.pyx"], extra_compile_args=["-O1"],
              include_dirs=[headers, numpy.get_include()]),
    include_path=[sources]))
"""


@pytest.fixture(scope="module")
def choices(tmp_path_factory):
    folder = tmp_path_factory.mktemp("choices")
    shutil.copy(Path(__file__).with_name("store_choices.pyx"), folder)
    (folder / "setup.py").write_text(SETUP)
    sources = Path(smcoll.__file__).parents[1]
    subprocess.run([sys.executable, "setup.py", smcoll.get_include(), str(sources)], cwd=folder,
                   check=True, timeout=200)
    sys.path.insert(0, str(folder))
    import store_choices

    yield store_choices
    sys.path.remove(str(folder))


def costs(ordinary, string, non_temporal):
    return {"ordinary": ordinary, "string": string, "non_temporal": non_temporal}


def used(pair, sections, to_write, to_read, line=0):
    """How often each kind was. ``line``: ns that one takes from the reader; 0: not known."""
    return collections.Counter(pair.section(to_write, to_read, line) for _ in range(sections))


def only_available(table):
    return {name: ns for name, ns in table.items() if name in AVAILABLE}


@pytest.mark.parametrize("far", [False, True])
@pytest.mark.parametrize("nbytes", [4096, 32768, 131072])
@pytest.mark.parametrize("write, read", [
    (costs(1000, 1500, 3000), costs(1000, 1000, 1000)),   # cheap to write
    (costs(1000, 2000, 2500), costs(9000, 5000, 1000)),   # dear to read
    (costs(4000, 1000, 2500), costs(3000, 3000, 3000)),
])
@pytest.mark.lengthy
def test_a_writer_takes_the_kind_that_costs_it_and_its_readers_least(choices, far, nbytes, write,
                                                                     read):
    pair = choices.Pair(nbytes, far)
    total = only_available({name: write[name] + read[name] for name in write})
    cheapest = min(total, key=total.get)
    used(pair, 1000, write, read)
    later = used(pair, 20000, write, read)
    assert later[cheapest] > 0.98 * 20000
    # What trials cost, in sections of the cheapest kind.
    spent = sum(total[name] * count for name, count in later.items()) / total[cheapest]
    assert spent < 1.01 * 20000


# Around the caches reading costs the same far and near.
NEAR = costs(1000, 1100, 3000), costs(1000, 1000, 4000), 30
FAR = costs(20000, 19000, 1500), costs(5000, 4000, 4000), 110
has_all_kinds = pytest.mark.skipif(len(AVAILABLE) < 3, reason="needs all kinds of stores")


@has_all_kinds
@pytest.mark.parametrize("ring", [3, 8, 16])
def test_all_kinds_are_compared_in_the_first_rounds_after_the_memory_was_used_once(choices, ring):
    pair = choices.Pair(32768, fresh=4 * ring, ring=ring)
    assert set(used(pair, 4 * ring, *NEAR)) == {"string"}
    used(pair, 5 * ring, *FAR)
    assert pair.in_use == "non_temporal"


@has_all_kinds
@pytest.mark.parametrize("nbytes", [16384, 131072])
def test_what_is_read_from_memory_used_for_the_first_time_does_not_count(choices, nbytes):
    """Such memory is slow, whatever the stores; only the usual kind is read there."""
    pair = choices.Pair(nbytes, fresh=32)
    write, read = costs(9000, 1200, 1000), costs(2000, 2400, 3500)
    used(pair, 32, write, costs(30000, 30000, 30000))
    used(pair, 6 * 16, write, read)
    assert pair.in_use == "string"


@has_all_kinds
def test_what_was_read_of_another_algorithm_is_forgotten(choices):
    pair = choices.Pair(16384)
    write = costs(9000, 1200, 1000)
    used(pair, 400, write, costs(30000, 30000, 30000))
    assert pair.in_use == "string"
    pair.change_algorithm()
    used(pair, 6 * 16, write, costs(2000, 2400, 3500))
    assert pair.in_use == "string"


@has_all_kinds
def test_a_ring_with_fewer_segments_than_kinds_has_one_trial_after_the_other(choices):
    pair = choices.Pair(32768, fresh=2, ring=2)
    used(pair, 200, *FAR)
    assert pair.in_use == "non_temporal"


@has_all_kinds
def test_who_stores_nothing_while_the_others_compare_compares_later(choices):
    pair = choices.Pair(32768)
    pair.skip(1600)
    used(pair, 16 * 5, *FAR)
    assert pair.in_use == "non_temporal"


@has_all_kinds
@pytest.mark.parametrize("ring, roots", [(16, 3), (16, 5), (16, 7), (8, 3)])
def test_a_rank_that_stores_one_section_of_several_finds_the_cheapest_kind_too(choices, ring,
                                                                              roots):
    pair = choices.Pair(32768, fresh=2 * ring, ring=ring)
    for _ in range(400 * ring):
        pair.section(*FAR[:2])
        pair.skip(roots - 1)
    assert pair.in_use == "non_temporal"


@has_all_kinds
@pytest.mark.parametrize("ring", [1, 2, 4, 16])
def test_a_change_of_the_distance_is_followed_soon_whatever_the_ring(choices, ring):
    pair = choices.Pair(32768, fresh=4 * ring, ring=ring)
    used(pair, 500 * ring, *NEAR)
    for _ in range(3):
        used(pair, 100 * ring, *FAR)
        assert pair.in_use == "non_temporal"
        used(pair, 100 * ring, *NEAR)
        assert pair.in_use != "non_temporal"
    assert pair.moves == 6


@pytest.mark.parametrize("lines, moves", [
    ([30] * 20 + [110] * 20, [23]),               # 4 in a row
    ([110] * 20 + [30] * 20, [21]),               # 2 in a row
    ([3000, 2000] + [30] * 20 + [35, 28] * 9, []),            # the first ones are cold
    ([30] * 20 + [0, 110] * 4 + [0] * 9 + [110] * 9, [27]),   # those not known do not count
    ([30] * 20 + [110, 110, 3000, 110] + [110] * 20, [23]),   # the least of them is the new one
    ([30] * 20 + [3000, 3000, 3000, 30] * 20, []),
    ([30] * 20 + [20, 40, 15] * 20, []),
    ([100] * 9 + [120, 130, 150, 170, 190] * 2 + [60] * 9, [20]),
])
def test_cores_have_moved_where_lines_take_longer_or_less_long_several_times(choices, lines, moves):
    assert choices.moves_noticed(lines) == moves


@has_all_kinds
def test_some_sections_may_cost_little_where_most_are_dear(choices):
    """Some lines have left the reader's caches, others have not."""
    pair = choices.Pair(32768)
    rng = random.Random(3)
    dear, cheap = costs(20000, 19000, 3000), costs(2000, 1900, 3000)
    for _ in range(16 * 20):
        pair.section(cheap if rng.random() < 0.4 else dear, NEAR[1])
    assert pair.in_use == "non_temporal"


@has_all_kinds
def test_alarms_that_change_nothing_become_rare(choices):
    pair = choices.Pair(32768)
    used(pair, 2000, *NEAR)
    tried = 0
    for _ in range(200):
        for line in (110, 30):
            tried += used(pair, 128, *NEAR[:2], line)["non_temporal"]
    assert tried < 0.02 * 200 * 256


@has_all_kinds
def test_another_algorithm_has_a_survey_of_its_own(choices):
    pair = choices.Pair(32768)
    used(pair, 160, *NEAR)
    before = pair.in_use
    # Only what writing costs is different.
    later = costs(20000, 19000, 1500), *NEAR[1:]
    used(pair, 16, *later)
    pair.change_algorithm()
    used(pair, 80, *later)
    assert (before, pair.in_use) == ("string", "non_temporal")


@has_all_kinds
def test_what_suited_another_algorithm_a_little_has_no_claim(choices):
    """Only a kind that is much cheaper replaces the one in use in a survey."""
    pair = choices.Pair(32768)
    read = costs(1000, 1000, 1000)
    used(pair, 160, costs(9000, 3000, 1000), read)
    before = pair.in_use
    pair.change_algorithm()
    used(pair, 80, costs(9000, 1000, 1200), read)
    assert (before, pair.in_use) == ("non_temporal", "string")


def test_a_writer_follows_by_trials_where_no_change_of_the_distance_shows(choices):
    near = costs(1000, 1100, 3000), costs(1000, 1000, 1500)
    far = costs(2500, 2500, 2600), costs(9000, 9000, 1500)
    pair = choices.Pair(32768)
    for write, read in (near, far, near, far):
        used(pair, 5000, write, read)
        last = used(pair, 5000, write, read)
        best = "non_temporal" if write is far[0] else "ordinary"
        # Kinds that cost the same within 15 % may stay.
        good = {"non_temporal"} if best == "non_temporal" else {"ordinary", "string"}
        if best in AVAILABLE:
            assert sum(last[kind] for kind in good) > 0.95 * 5000


@has_all_kinds
@pytest.mark.parametrize("collective, overlapped, best", [
    (2, 1, "non_temporal"),    # a Bcast of one section: first written, then read
    (2, 8, "string"),          # of more: one is written while another is read
    (4, 8, "non_temporal"),    # an Allreduce: each rank writes and reads
])
def test_of_overlapped_writing_and_reading_the_dearer_counts(choices, collective, overlapped, best):
    pair = choices.Pair(32768, overlapped=overlapped, collective=collective)
    used(pair, 2000, costs(9000, 3000, 500), costs(3000, 3000, 4000))
    assert pair.in_use == best


@has_all_kinds
def test_a_kind_that_is_a_tenth_cheaper_is_found_in_several_trials(choices):
    pair = choices.Pair(32768, far=True)
    read = costs(1000, 1000, 1000)
    used(pair, 1000, costs(3000, 2000, 1000), read)
    assert pair.in_use == "non_temporal"
    used(pair, 16 * 1000, costs(3000, 800, 1000), read)
    assert pair.in_use == "string"


def test_figures_that_are_disturbed_do_not_make_the_choice_flap(choices):
    rng = random.Random(3)
    pair = choices.Pair(32768)
    write, read = costs(1000, 1000, 1400), costs(1000, 1000, 1000)
    kinds, in_use = [], []
    for _ in range(60000):
        # One section in ten: another process had the core.
        factor = 40 if rng.random() < 0.1 else rng.uniform(0.9, 1.1)
        slower = 40 if rng.random() < 0.02 else rng.uniform(0.9, 1.1)
        kinds.append(pair.section({name: int(ns * factor) for name, ns in write.items()},
                                  {name: int(ns * slower) for name, ns in read.items()}))
        in_use.append(pair.in_use)
    assert kinds[2000:].count("non_temporal") < 0.02 * 58000
    assert sum(a != b for a, b in itertools.pairwise(in_use[2000:])) < 20


def test_short_messages_and_single_ranks_have_no_choice(choices):
    assert choices.has_choice(4096, 2)
    assert not choices.has_choice(4095, 2)
    assert not choices.has_choice(1 << 20, 1)
    assert choices.has_choice(1 << 40, 3)


# ---------------------------------------------------------------------- in communicators


@pytest.mark.mpi(2, 3, 5)
@pytest.mark.parametrize("stores", [*AVAILABLE, "auto"])
def test_every_kind_gives_the_same_results(stores):
    world = MPI.COMM_WORLD
    rank, size = world.rank, world.size
    with smcoll.Comm(world, smcoll.Config(stores=stores)) as comm:
        for count in (600, 5000, 40000):
            mine = (np.arange(count, dtype=np.int64) + 1) * (rank + 1)
            base, ranks = np.arange(count, dtype=np.int64) + 1, np.arange(size) + 1
            total = np.zeros_like(mine)
            comm.Allreduce(mine, total)
            np.testing.assert_array_equal(total, base * ranks.sum())
            comm.Scan(mine, total)
            np.testing.assert_array_equal(total, base * ranks[:rank + 1].sum())
            everyone = np.zeros((size, count), np.int64)
            comm.Allgather(mine, everyone)
            np.testing.assert_array_equal(everyone, base * ranks[:, None])
            crossed = np.zeros_like(everyone)
            comm.Alltoall(everyone * (rank + 1), crossed)
            np.testing.assert_array_equal(crossed, base * (rank + 1) * ranks[:, None])
            for root in range(size):
                data = mine.copy()
                comm.Bcast(data, root)
                np.testing.assert_array_equal(data, base * (root + 1))
                comm.Reduce(mine, total, root=root)
                if rank == root:
                    np.testing.assert_array_equal(total, base * ranks.sum())


@pytest.mark.mpi(2)
@pytest.mark.parametrize("stores", AVAILABLE)
def test_stores_are_complete_before_their_flag(stores):
    """Every byte of a short section, which is read as soon as its flag is seen."""
    world = MPI.COMM_WORLD
    with smcoll.Comm(world, smcoll.Config(stores=stores)) as comm:
        for nbytes in (512, 4096, 8192):
            data = np.zeros(nbytes, np.uint8)
            for number in range(6000):
                value = number % 251
                data[:] = value if comm.rank == 0 else 255
                comm.Bcast(data, 0)
                assert (data == value).all()


@pytest.mark.one_node
@pytest.mark.mpi(2)
def test_explain_says_which_stores_are_in_use_and_why():
    world = MPI.COMM_WORLD
    with smcoll.Comm(world, smcoll.Config(stores="ordinary")) as comm:
        parameters = comm.explain("bcast", 1 << 20).parameters
        assert parameters["stores"] == "ordinary"
        assert "SMCOLL_STORES" in parameters["stores_because"]
    comm = smcoll.Comm(world, smcoll.Config(stores="auto"))
    assert "nothing is measured" in comm.explain("bcast", 1 << 20).parameters["stores_because"]
    data = np.zeros(1 << 20, np.uint8)
    for _ in range(40):
        comm.Bcast(data, 0)
        comm.Bcast(data, 1)
    why = comm.explain("bcast", 1 << 20).parameters["stores_because"]
    assert "ns a line" in why and "ordinary" in why
    assert "stores" not in comm.explain("bcast", 8).parameters
    # The segment may be gone; what others published there can't be asked.
    engine = comm.engine
    comm.Free()
    assert engine.stores_in_use(2, 1 << 20) == ("none", "the communicator was freed")


@pytest.mark.one_node
@pytest.mark.mpi(2)
@pytest.mark.skipif(len(AVAILABLE) == 1 or os.cpu_count() < 2,
                    reason="needs a choice of stores, and a CPU for each rank")
def test_explain_says_how_long_a_line_takes_from_the_next_rank():
    world = MPI.COMM_WORLD
    data, total = np.ones(4096), np.empty(4096)
    with smcoll.Comm(world, smcoll.Config(stores="auto", learn="off")) as comm:
        why, calls = "", 0
        # Where both ranks are on one CPU for a while, nothing is known.
        while calls < 100_000 and not world.allreduce("a line takes" in why, MPI.LAND):
            for _ in range(500):
                comm.Allreduce(data, total)
            calls += 500
            why = comm.explain("allreduce", data.nbytes).parameters["stores_because"]
    assert f"from the core of rank {1 - world.rank} a line takes " in why
    assert 0 < int(why.rsplit(" ", 2)[1]) < 100_000


@pytest.mark.skipif(len(AVAILABLE) == 3, reason="this processor has all kinds of stores")
@pytest.mark.mpi(2)
def test_stores_that_the_processor_lacks_are_an_agreed_fallback():
    missing = next(name for name in kernels.STORES_NAMES if name not in AVAILABLE)
    with smcoll.Comm(MPI.COMM_WORLD, smcoll.Config(stores=missing)) as comm:
        assert comm.explain("bcast", 8).path == "MPI"


# ---------------------------------------------------------------------- routes


def test_routes_have_a_class_for_each_power_of_two_from_where_measuring_begins(choices):
    first = select.MEASURED_FROM
    classes, smallest = choices.classes_of_routes((first, 2 * first - 1, 2 * first, 1 << 40))
    assert classes == [0, 0, 1, 15]
    assert smallest == first


def test_the_faster_route_is_found_and_the_slower_one_seldom_tried(choices):
    staged = choices.routes_taken(lambda route, _: (300, 200)[route], 8000)
    kernel = choices.routes_taken(lambda route, _: (200, 900)[route], 8000)
    assert staged[200:].count(1) > 0.97 * 7800
    assert kernel[200:].count(0) > 0.98 * 7800
    # Both had their turn at the beginning.
    assert set(staged[:40]) == set(kernel[:40]) == {0, 1}


@pytest.mark.parametrize("gain, trials", [(0.11, 2), (0.06, 4), (0.03, 7)])
def test_a_route_that_gains_less_has_to_win_more_trials(choices, gain, trials):
    taken = choices.routes_taken(lambda route, _: (1, 1 - gain)[route] * 1_000_000, 1000)
    bursts = [taken[first] for first in range(0, 1000, 8)]
    last_trial = list(itertools.pairwise(bursts)).index((1, 1))
    assert bursts[:last_trial + 1].count(1) == trials


@pytest.mark.parametrize("ns, calls", [(200, 3), (130, 3), (120, 8)])
def test_a_trial_that_is_clearly_lost_ends_with_its_third_call(choices, ns, calls):
    taken = choices.routes_taken(lambda route, _: (100, ns)[route], 200)
    trials = [len(list(group)) for route, group in itertools.groupby(taken) if route == 1]
    assert trials and set(trials) == {calls}
    taken = choices.routes_taken(lambda route, _: (100, ns)[route], 200, together=True)
    trials = [len(list(group)) for route, group in itertools.groupby(taken) if route == 1]
    assert trials and set(trials) == {8}


def test_a_trial_with_two_slow_calls_goes_on(choices):
    """As where arrays are read for the first time in their sender's memory."""
    first = choices.routes_taken(lambda *_: 100, 200).index(1)
    taken = choices.routes_taken(
        lambda route, number: (100, 1000 if number < first + 2 else 50)[route], 200)
    assert sum(taken[first:first + 8]) == 8 and set(taken[-8:]) == {1}


def test_routes_that_take_the_same_time_stay(choices):
    taken = choices.routes_taken(lambda route, _: (100, 99)[route] * 10_000, 8000)
    assert taken.count(1) < 0.05 * 8000


def test_the_first_calls_of_a_route_may_be_slow_without_deciding(choices):
    taken = choices.routes_taken(lambda route, number: 200 + 5000 * (number < 8) + 50 * route, 1000)
    assert taken[100:].count(0) > 0.9 * 900


def test_a_disturbance_as_long_as_a_trial_does_not_decide_the_route(choices):
    calm = choices.routes_taken(lambda route, _: (200, 300)[route], 4000)
    trial = calm.index(1, 1000)
    for begin in range(trial - 24, trial + 16, 4):
        def ns(route, number, begin=begin):
            return (200, 300)[route] * (3 if begin <= number < begin + 16 else 1)

        taken = choices.routes_taken(ns, trial + 500)
        assert taken[trial:].count(0) > 0.9 * 500, begin


def test_routes_are_measured_anew_where_the_distance_has_changed(choices):
    def ns(route, number):
        return (200, 300)[route ^ (number >= 4300)]

    # Without such a change the next trial begins with call 5120.
    for moves_at, followed in (([4300], 560), ([], 0)):
        taken = choices.routes_taken(ns, 5000, moves_at)
        assert taken[2000:4300].count(0) > 0.9 * 2300
        assert taken[4340:4940].count(1) >= followed
        assert followed or taken[4340:4940].count(0) == 600


def test_the_route_of_a_distance_is_taken_again_as_soon_as_that_is_back(choices):
    def ns(route, number):
        return (200, 300)[route ^ (2000 <= number < 4000 or number >= 6000)]

    moves_at = (2000, 4000, 6000)
    taken = choices.routes_taken(ns, 8000, moves_at, (400, 110, 350))
    assert set(taken[3900:4000]) == {1}
    assert set(taken[4000:4016]) == {0}
    assert set(taken[6000:6016]) == {1}
    # A third distance: what is known of others does not help.
    taken = choices.routes_taken(ns, 8000, moves_at, (400, 110, 2000))
    assert set(taken[6000:6016]) == {0}
    assert set(taken[7900:]) == {1}


def test_routes_follow_when_what_is_fast_changes(choices):
    taken = choices.routes_taken(lambda route, number: (200, 300)[route ^ (number > 4000)], 12000)
    assert taken[2000:4000].count(0) > 0.9 * 2000
    assert taken[8000:].count(1) > 0.9 * 4000


def test_changes_of_the_distance_that_leave_the_route_cost_little(choices):
    moves = range(1000, 20_000, 150)

    def share(moves_at):
        taken = choices.routes_taken(lambda route, _: (200, 300)[route], 20_000, moves_at)
        return taken[1000:].count(1) / 19_000

    assert share(()) < 0.01
    assert share(moves) < 0.04


@pytest.mark.parametrize("lag", [0, 1, 13, 40])
def test_ranks_that_see_a_change_one_by_one_try_together_nevertheless(choices, lag):
    """What is slow if only one of two ranks does it may be the fastest if both do."""
    def ns(route, other, number):
        if route != other:
            return 250
        return (120 if number >= 2000 else 400, 150)[route]

    taken = choices.routes_of_two_ranks(ns, 6000, (2001, 2001 + lag))
    assert taken[1000:2000].count((1, 1)) > 0.9 * 1000
    assert taken[3000:].count((0, 0)) > 0.9 * 3000


def test_ranks_leave_a_route_that_has_become_slow_one_after_the_other(choices):
    def ns(route, other, number):
        if route != other:
            return 200
        return (145, 100 if number < 3100 else 300)[route]

    # The next trial of both begins with call 4096.
    taken = choices.routes_of_two_ranks(ns, 4000)
    assert taken[2000:3100].count((1, 1)) > 0.9 * 1100
    assert taken[3200:].count((1, 1)) < 0.1 * 800
    assert taken[3700:].count((0, 0)) > 0.9 * 300


@pytest.mark.parametrize("kinds", [((4, 2), (5, 2)), ((6, 1), (6, 3)), ((6, 1), (6, 2))],
                         ids=["two collectives", "two sizes", "neighbours"])
def test_calls_of_one_loop_do_not_measure_each_other_s_trials(choices, kinds):
    """What one gains by its other route is much; what the other one loses is little."""
    taken = choices.routes_in_one_loop(kinds, ((400, 100), (100, 150)), 6000)
    assert taken[3000:].count((1, 0)) > 0.9 * 3000
