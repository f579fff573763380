"""What a class of calls tries and keeps, and what is kept of it in a file. Without ranks."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from smcoll.algorithms import EXCHANGE, ROOTED, TABLE
from smcoll.config import Config
from smcoll.tuning import learned, select
from smcoll.tuning.exploration import EMPTY_TRIALS, Exploration
from smcoll.tuning.variants import MOST_VARIANTS, for_communicator, order_of, to_try

INLINE = {EXCHANGE: 2016, ROOTED: 1120}


def variants_for(ranks, collective, nbytes, core_cache=0, **settings):
    config = Config(table="off", **settings)
    rows = select.decide(config, ranks, False, core_cache=core_cache)
    everything = for_communicator(config, rows, ranks, 1, False)
    in_class = max(nbytes - 1, 0).bit_length()
    usual = select.decision_for(rows, collective, 1 << in_class)
    return everything.get(collective, ()), usual, to_try(
        collective, everything.get(collective, ()), in_class, ranks, rows[collective], INLINE)


def test_a_barrier_of_ranks_that_share_cpus_is_not_a_matter_of_luck():
    rows = select.decide(Config(table="off"), 8, True)
    apart, sharing = (for_communicator(Config(table="off"), rows, 8, 1, oversubscribed)
                      for oversubscribed in (False, True))
    assert "barrier" in apart and "barrier" not in sharing
    assert apart.keys() - {"barrier"} == sharing.keys()


def explore(exploration, time_of):
    while (number := exploration.next()) is not None:
        exploration.record([time_of(number)] * 8)
    return exploration.best()


@pytest.mark.parametrize("ranks", [2, 4, 16])
@pytest.mark.parametrize("nbytes", [8, 4096, 65536, 4 << 20])
@pytest.mark.parametrize("collective", ["bcast", "reduce", "allreduce", "scan", "allgather",
                                        "reduce_scatter"])
def test_whatever_is_fastest_is_found(ranks, nbytes, collective):
    """Where one family of variants is faster than all others, and one of its sizes the fastest."""
    _, _, candidates = variants_for(ranks, collective, nbytes)
    for wanted, row in candidates.items():
        def time_of(number, wanted=wanted, row=row):
            if number == wanted:
                return 50.0
            same = number in candidates and candidates[number].algorithm == row.algorithm and (
                candidates[number].fan_in, candidates[number].fan_out) == (row.fan_in, row.fan_out)
            return 80.0 if same else 100.0 + number

        exploration = Exploration(candidates)
        assert explore(exploration, time_of) == wanted
        assert len(exploration.trials) <= 60 and exploration.cost() > 0


def test_an_algorithm_that_is_near_the_best_shows_its_other_sections_too():
    _, _, candidates = variants_for(2, "bcast", 65536)
    best, other = "scatter_allgather", "fan_out"
    wanted = min((number for number, row in candidates.items() if row.algorithm == other),
                 key=lambda number: candidates[number].section_bytes)

    def time_of(number):
        if number == wanted:
            return 50.0
        return 100.0 if number and candidates[number].algorithm == best else 120.0

    exploration = Exploration(candidates)
    assert explore(exploration, time_of) == wanted
    assert exploration.trials[1][0] != wanted != exploration.trials[2][0]    # not at first


def test_a_little_faster_is_not_enough():
    _, _, candidates = variants_for(2, "allreduce", 65536)
    first = next(iter(candidates))
    assert explore(Exploration(candidates), lambda number: 97 if number == first else 100) == 0
    assert explore(Exploration(candidates), lambda number: 90 if number == first else 100) == first
    # The one in use is compared, whichever it is.
    assert explore(Exploration(candidates, current=first), lambda number: 97 + (number == first)
                   ) == first


def test_a_disturbed_trial_does_not_count():
    _, _, candidates = variants_for(2, "bcast", 1 << 20)
    first = next(iter(candidates))
    exploration, seen = Exploration(candidates), {}
    while (number := exploration.next()) is not None:
        seen[number] = seen.get(number, 0) + 1
        time = 50.0 if number == first else 60.0
        exploration.record([time, time, 10_000.0] if seen[number] != 2 else [5000.0] * 8)
    assert exploration.best() == first


def test_a_lucky_trial_does_not_decide():
    _, _, candidates = variants_for(2, "bcast", 1 << 20)
    first, second, *_ = candidates
    exploration, seen = Exploration(candidates), {}
    while (number := exploration.next()) is not None:
        seen[number] = seen.get(number, 0) + 1
        time = {first: 50.0, second: 20.0 if seen[number] == 2 else 55.0}.get(number, 60.0)
        exploration.record([time] * 8)
    assert exploration.best() == first and seen[second] == 3


def test_without_calls_to_measure_it_is_given_up():
    _, _, candidates = variants_for(2, "bcast", 1 << 20)
    exploration = Exploration(candidates)
    for _ in range(EMPTY_TRIALS):
        assert exploration.next() is not None
        exploration.record([])
    assert exploration.next() is None and exploration.best() == 0 and not exploration.ranking()


def test_what_is_known_is_looked_at_beside_the_one_in_use():
    _, _, candidates = variants_for(2, "bcast", 1 << 20)
    first, second, *_ = candidates
    exploration = Exploration(candidates, current=first, known=(second,))
    tried = []
    while (number := exploration.next()) is not None:
        tried.append(number)
        exploration.record([40.0 if number == second else 50.0])
    assert set(tried) == {first, second} and exploration.best() == second


@pytest.mark.parametrize("ranks", [2, 3, 8, 64])
def test_only_what_suits_the_calls_is_tried(ranks):
    lines = {(row.collective, row.name): row.lines for row in TABLE}
    for collective in ("barrier", "bcast", "reduce", "allreduce", "allgather", "reduce_scatter",
                       "scan", "exscan"):
        for nbytes in (0, 8, 256, 2048, 4096, 1 << 20, 1 << 28):
            everything, usual, candidates = variants_for(ranks, collective, nbytes)
            assert len(everything) <= MOST_VARIANTS and 0 not in candidates
            for number, row in candidates.items():
                assert everything[number - 1] == row
                assert select.may_be_chosen(collective, row.algorithm)
                assert row.algorithm not in ("n_ary", "one_stage", "two_stage", "hierarchical")
                assert order_of(collective, row) == order_of(collective, usual)
                if nbytes <= 256 and collective not in ("barrier",):
                    # Some of these calls travel in flag lines with the table's row.
                    assert lines[collective, row.algorithm] is not None, row
                if row.algorithm == "all_read" and ranks > 2:
                    assert nbytes * ranks <= 16 << 20


@pytest.mark.parametrize("core_cache", [0, 512 << 10, 2 << 20])
@pytest.mark.parametrize("segments", [1, 3, 8])
def test_two_ranks_try_variants_that_use_as_many_segments_as_the_usual_row(segments, core_cache):
    """The stores of a class are compared round by round through the segments in use."""
    for collective in ("bcast", "reduce", "allreduce", "allgather", "reduce_scatter", "scan"):
        for nbytes in (1 << 15, 1 << 17, (1 << 17) + 1, 1 << 22):
            _, usual, candidates = variants_for(2, collective, nbytes, core_cache,
                                                segments=segments)
            assert candidates
            assert {row.segments for row in candidates.values()} == {usual.segments}


def test_what_the_settings_fix_is_not_tried():
    assert not variants_for(4, "allreduce", 65536, algorithms="allreduce=tiled")[2]
    everything, _, _ = variants_for(8, "bcast", 65536, fan_out=3)
    assert {row.fan_out for row in everything if row.algorithm == "fan_out"} == {3}
    everything, _, _ = variants_for(8, "bcast", 65536, segment_size="32K")
    assert max(row.section_bytes for row in everything) <= 32 << 10


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


KIND = learned.Kind(2, False, 1, False)


def recall(variants, kind=KIND):
    return learned.recall(kind, variants, lambda *_: range(100))


def lesson(variant, **times):
    return SimpleNamespace(variant=variant, calls=300, times={
        int(number[1:]): ns for number, ns in times.items()})


def test_what_was_found_is_recalled(cache):
    everything, _, _ = variants_for(2, "bcast", 65536)
    variants = {"bcast": everything}
    assert recall(variants) == []
    learned.remember(KIND, variants, {("bcast", 16): lesson(3, v3=10.0, v0=12.0, v5=11.0)})
    assert recall(variants) == [["bcast", 16, 3, 5]]
    # Another job adds, and what it found anew counts.
    learned.remember(KIND, variants, {("bcast", 20): lesson(0, v0=1.0, v2=2.0),
                                      ("bcast", 16): lesson(5, v5=1.0, v3=2.0)})
    assert sorted(recall(variants)) == [["bcast", 16, 5, 3], ["bcast", 20, 0, 2]]
    assert recall(variants, learned.Kind(4, False, 1, False)) == []
    # What may not be tried with the settings of today, or is no variant any more, is left out.
    assert learned.recall(KIND, variants, lambda *_: (2,)) == [["bcast", 20, 0, 2]]
    assert recall({"bcast": everything[:4]}) == [["bcast", 20, 0, 2]]
    assert recall({}) == []


@pytest.mark.parametrize("damage", [
    "", "[]", "{", '{"format": 1}', '{"kinds": 3}', None, "numbers", "shape"])
def test_a_damaged_file_is_as_none(cache, damage):
    everything, _, _ = variants_for(2, "bcast", 65536)
    variants = {"bcast": everything}
    learned.remember(KIND, variants, {("bcast", 16): lesson(3, v3=10.0, v0=12.0)})
    file = learned.file()
    content = json.loads(file.read_text())
    if damage is None:
        content["machine"]["processor"] = "another"
    elif damage == "numbers":
        entry = content["kinds"][str(KIND)]["bcast"].pop("16")
        content["kinds"][str(KIND)]["bcast"]["99"] = entry
    elif damage == "shape":
        content["kinds"][str(KIND)]["bcast"]["16"]["best"] = ["tiled", [], {}]
    else:
        content = None
    file.write_text(damage if content is None else json.dumps(content))
    assert recall(variants) == []
    learned.remember(KIND, variants, {("bcast", 18): lesson(3, v3=10.0, v0=12.0)})
    assert ["bcast", 18, 3, 0] in recall(variants)


def test_without_a_home_nothing_is_kept(monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null/none")
    everything, _, _ = variants_for(2, "bcast", 65536)
    learned.remember(KIND, {"bcast": everything}, {("bcast", 16): lesson(3, v3=10.0)})
    assert recall({"bcast": everything}) == []
