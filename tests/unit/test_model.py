"""The performance model: the equations beside the paper, the registry, parameters, the command."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from smcoll import config
from smcoll.algorithms import ALGORITHMS
from smcoll.cli import model, model_output
from smcoll.cli.app import app_of
from smcoll.tuning.model import costs, hockney, lhs, machine, parameters, predict
from smcoll.tuning.model.parameters import Curve, Link, ParameterError, UnknownParameter, flat

# Round numbers, a = 10 and a = 90, so that results can be computed by hand.
ALPHA = Link("alpha", latency=14.0, b=flat(4), B=flat(3))
BETA = Link("beta", latency=100.0, b=flat(10), B=flat(8))
PARAMETERS = {
    "name": "made up", "local": {"latency": 1.0, "b": 1.0, "B": 0.5}, "call": 200, "step": 20,
    "level": [{"name": "l3", "latency": 14, "b": 4, "B": 3},
              {"name": "machine", "latency": 100, "b": 10, "B": 8}], "yield": 1500}


def of(description="package:2 l3:1 core:4", ranks=8, **changes):
    return machine.of_topology(description, ranks, parameters.from_dict(PARAMETERS | changes))


PLAN = costs.Plan(fan_in=4, fan_out=4)


# ---------------------------------------------------------------------- LHS


def test_an_access_is_a_plus_b_m_or_a_plus_b_d_m_where_d_share_the_link():
    assert ALPHA.access(10) == 10 + 4 * 10
    assert ALPHA.access(10, d=4) == 10 + 3 * 4 * 10
    assert ALPHA.access(10, d=1) == ALPHA.access(10)
    assert ALPHA.access(1, d=4) == 14    # one line: congestion is ignored (LHS 3.4)
    assert ALPHA.access(0) == 0


def test_equation_1_has_the_three_steps_of_section_3_4_for_6_threads():
    assert lhs.simultaneous(6, 2) == [2, 1, 1]
    assert lhs.simultaneous(8, 2) == [4, 2, 1]
    assert lhs.simultaneous(1, 2) == []
    assert lhs.simultaneous(9, 3) == [3, 1]
    # (a + 2 B m) + 2 (a + b m), m = 10
    assert lhs.intra_reduce(ALPHA, 6, 10) == (10 + 2 * 3 * 10) + 2 * (10 + 4 * 10)


def test_equation_2_goes_up_the_tree_between_sockets():
    assert lhs.inter_reduce(BETA, 4, 10) == 2 * (90 + 10 * 10)
    assert lhs.inter_reduce(BETA, 4, 10, n=4) == 3 * 1 * (90 + 10 * 10)
    assert lhs.inter_reduce(BETA, 1, 10) == 0


def test_equations_3_to_5():
    red = lhs.tree_reduce(ALPHA, BETA, 6, 2, 10)
    assert red == 170 + 190
    one = 90 + 8 * 6 * 10
    two = (10 + 3 * 5 * 10) + (90 + 10 * 10)
    assert lhs.one_stage_broadcast(ALPHA, BETA, 6, 2, 10) == one
    assert lhs.two_stage_broadcast(ALPHA, BETA, 6, 2, 10) == two
    assert lhs.broadcast(ALPHA, BETA, 6, 2, 10) == min(one, two)
    assert lhs.reduce_broadcast(ALPHA, BETA, 6, 2, 10) == red + min(one, two)


def test_the_best_tree_is_binary():
    """LHS: equation (3) grows with n."""
    times = [lhs.tree_reduce(ALPHA, BETA, 8, 4, 100, n) for n in (2, 4, 8)]
    assert times == sorted(times)


def test_equations_6_and_7_dissemination():
    assert lhs.dissemination(ALPHA, BETA, 4, 2, 10) == (
        2 * (10 + 3 * 4 * 10) + (90 + 8 * 4 * 10))
    # 6 threads a socket: q' = 4, r = 2
    assert lhs.dissemination(ALPHA, BETA, 6, 2, 10) == (
        2 * (10 + 3 * 4 * 10) + (90 + 8 * 4 * 10) + 2 * (10 + 3 * 2 * 10))


def test_equations_8_to_11_tiled():
    intra = 4 * 10 + 3 * 4 * 20
    inter = 2 * (90 + 8 * 20)
    assert lhs.tiled_intra_reduce(ALPHA, 4, 20) == intra
    assert lhs.tiled_inter_reduce(BETA, 4, 4, 20) == inter
    assert lhs.tiled_reduce(ALPHA, BETA, 4, 4, 20) == intra + inter
    assert lhs.tiled_reduce_broadcast(ALPHA, BETA, 4, 4, 20) == (
        intra + inter + lhs.broadcast(ALPHA, BETA, 4, 4, 20))


def test_westmere_takes_306_7_ns_for_one_line():
    known = parameters.load("westmere")
    latencies = {"Rl": known.local.latency, "Rs": known.level("L3Cache").latency,
                 "Rr": known.level("Machine").latency}
    terms = lhs.one_line_terms(q=6, s=2)
    assert terms == {"Rs": 3, "Rr": 2, "Rl": 9}
    assert lhs.one_line_time(terms, latencies) == pytest.approx(306.7)


def test_magny_cours_in_symbols():
    """The paper prints 608.4 ns and not what it is made of: no number is checked."""
    assert lhs.one_line_terms(q=8, s=4, stages=2, farthest="Rd") == {
        "Rs": 4, "Rr": 2, "Rd": 1, "Rl": 12}


@pytest.mark.parametrize("takes, messages", [
    (hockney.flat_broadcast, 7), (hockney.pipeline, 7), (hockney.chain, 5), (hockney.binary, 6),
    (hockney.binomial, 3), (hockney.in_order_binary, 7), (hockney.split_binary, 7)])
def test_hockney_counts_the_messages_on_the_longest_way(takes, messages):
    assert takes(8, 1.0, 0.0, 1000) == messages
    assert takes(1, 1.0, 0.0, 1000) == 0
    # Only half of the vector goes through a side of a split binary tree.
    part = 0.5 if takes is hockney.split_binary else 1
    assert takes(8, 0.0, 1.0, 1000) == messages * 1000 * part


def test_hockney_summed_over_levels_is_7_thirds_faster():
    """GJMM section 6: 8 processes, three levels of two."""
    flat_tree = hockney.flat_broadcast(8, 2.0, 3.0, 1)
    levels = hockney.hierarchical_broadcast([(2, 2.0, 3.0)] * 3, 1)
    assert flat_tree / levels == pytest.approx(7 / 3)


# ---------------------------------------------------------------------- parameters, machines


def test_curves_are_linear_between_points_in_the_logarithm_of_the_size():
    curve = Curve(((64, 1.0), (256, 3.0), (1024, 3.0)))
    assert [curve.at(n) for n in (8, 64, 128, 256, 512, 1 << 20)] == [1, 1, 2, 3, 3, 3]


def test_parameters_survive_json():
    known = parameters.from_dict(PARAMETERS)
    again = parameters.from_dict(json.loads(json.dumps(known.as_dict())))
    assert again == known


def test_what_a_file_leaves_out_is_not_made_up():
    westmere = machine.of_topology("package:2 l3:1 core:6", 12, parameters.load("westmere"))
    plan = predict.plan_for(westmere, config.Config())
    assert predict.microseconds("bcast", "fan_out", westmere, 8, plan)[0] > 0
    assert predict.microseconds("bcast", "fan_out", westmere, 4096, plan) == (
        None, "b of local is not known")
    with pytest.raises(UnknownParameter, match="yield"):
        costs.predict("barrier", "all_read", machine.of_topology(
            "package:1 l3:1 core:2", 4, parameters.load("westmere")), 0, plan)


@pytest.mark.parametrize("change, message", [
    ({"level": []}, "at least one"),
    ({"level": [{"latency": 3}]}, "number 1 has no name"),
    ({"level": [{"name": "bla", "latency": 3}]}, "unknown level 'bla'"),
    ({"level": [{"name": "l3"}]}, "level L3Cache: no latency"),
    ({"level": [{"name": "l3", "latency": 3}, {"name": "L3Cache", "latency": 3}]}, "twice"),
    ({"level": [{"name": "l3", "latency": "3"}]}, "'3' is no number"),
    ({"level": [{"name": "l3", "latency": 3, "b": -1}]}, "-1 is no number"),
    ({"level": [{"name": "l3", "latency": 3, "b": [[64, 1], [8, 1]]}]}, "must ascend"),
    ({"level": [{"name": "l3", "latency": 3, "c": 1}]}, "unknown c"),
    ({"local": 3}, r"\[local\]: not a table"),
    ({"speed": 3}, "unknown speed"),
])
def test_malformed_parameters_are_refused_with_the_place(change, message):
    with pytest.raises(ParameterError, match=message):
        parameters.from_dict(PARAMETERS | change)


def test_every_level_joins_its_ranks():
    eight = of()
    assert (eight.q, eight.s) == (4, 2)
    assert (eight.alpha.name, eight.beta.name) == ("L3Cache", "Machine")
    assert eight.joined(0, 3).name == "L3Cache"
    assert eight.joined(3, 4).name == "Machine"
    inside = of(ranks=4)
    assert (inside.q, inside.s, inside.beta.name) == (4, 1, "L3Cache")
    crowded = of(ranks=16)
    assert crowded.oversubscribed
    assert crowded.joined(0, 8) is crowded.local


def test_three_levels():
    three = machine.of_topology("package:2 l3:2 core:2", 8, parameters.from_dict(PARAMETERS | {
        "level": [{"name": "l3", "latency": 10}, {"name": "package", "latency": 50},
                  {"name": "machine", "latency": 90}]}))
    assert [(tier.link.name, tier.parts, tier.width) for tier in three.tiers] == [
        ("L3Cache", 2, 1), ("Package", 2, 2), ("Machine", 2, 4)]
    assert [three.joined(0, other).latency for other in (1, 2, 4)] == [10, 50, 90]


# ---------------------------------------------------------------------- costs


def test_every_algorithm_has_a_cost():
    assert set(costs.COSTS) == {
        (collective, name) for collective, names in ALGORITHMS.items() for name in names}


@pytest.mark.parametrize("key", costs.COSTS, ids="-".join)
def test_a_cost_grows_with_size_and_ranks_share_cores_at_a_price(key):
    collective, name = key
    small, large = (costs.predict(collective, name, of(), nbytes, PLAN)
                    for nbytes in (64, 1 << 20))
    assert small > 0
    assert (large == small) if collective == "barrier" else (large > 10 * small)
    crowded = costs.predict(collective, name, of(ranks=16), 64, PLAN)
    assert crowded > small


def test_direct_access_is_what_staging_is_without_its_copies():
    """LHS (4), one stage, and (8): a Bcast takes one access to each line, nobody copies in."""
    two, three = of("package:1 l3:1 core:2", 2), of("package:1 l3:1 core:3", 3)
    nbytes = 1 << 20
    # Each of two copies a half.
    assert costs.predict("bcast", "shared_heap", two, nbytes, PLAN) == pytest.approx(
        200 + 20 + 2 * 14 + 4 * nbytes / 64 / 2)
    assert costs.predict("bcast", "shared_heap", three, nbytes, PLAN) > 4 * nbytes / 64
    for collective in ("allreduce", "allgather", "reduce_scatter", "scan"):
        staged = min(costs.predict(collective, name, two, nbytes, PLAN)
                     for name in predict.algorithms_of(collective))
        assert costs.predict(collective, "shared_heap", two, nbytes, PLAN) < staged


def test_a_chain_is_best_where_ranks_share_cores():
    """Measured with 8 ranks on 2 cores; all ranks read all lower ones' vectors otherwise."""
    crowded = of("package:1 l3:1 core:2", 8)
    for nbytes in (1 << 16, 1 << 20):
        chain, direct = (costs.predict("scan", name, crowded, nbytes, PLAN)
                         for name in ("chain", "direct"))
        assert chain < direct


@pytest.mark.parametrize("name", ["direct", "chain", "shared_heap"])
def test_an_exclusive_scan_of_two_ranks_reduces_nothing(name):
    """The second rank takes the first one's vector as it is."""
    reducing = PARAMETERS["level"][0] | {"reduction": 3}
    two = of("package:1 l3:1 core:2", 2, level=[reducing])
    nbytes = 1 << 20
    inclusive, exclusive = (costs.predict(collective, name, two, nbytes, PLAN)
                            for collective in ("scan", "exscan"))
    assert inclusive - exclusive == pytest.approx(3 * nbytes / 64, rel=0.1)


@pytest.mark.parametrize("name", ["one_stage", "two_stage"])
def test_no_more_accesses_share_a_link_than_there_are_cores(name):
    """16 ranks on 2 cores do the work of 8 times as many, not 8 times slower each."""
    few, many = (costs.predict("bcast", name, of("package:1 l3:1 core:2", ranks), 1 << 20, PLAN)
                 for ranks in (4, 16))
    assert many < 8 * few


def test_all_read_by_hand():
    """2 ranks, 4 KiB in one section: copy in, one exchange, read and reduce the other's."""
    two = of("package:1 l3:1 core:2", 2)
    m = 64
    expected = 200 + 2 * 20 + 14 + m * 1.0 + m * 3 * 2
    assert costs.predict("allreduce", "all_read", two, 4096, PLAN) == expected
    # Inline, nothing is copied through a region: the second line of 8 + 32 bytes is not needed.
    assert costs.predict("allreduce", "all_read", two, 8, PLAN) == 200 + 14


def test_sections_overlap_only_if_pipelined():
    two = of("package:1 l3:1 core:2", 2)
    piped, single = (costs.predict("bcast", "fan_out", two, 1 << 20, costs.Plan(
        1, 1, section_bytes=64 << 10, pipelined=pipelined)) for pipelined in (True, False))
    m = 1024
    copy, read = m * 1.0, m * 4.0
    first = copy + 14 + read
    assert piped == 200 + 16 * 20 + first + 15 * max(copy, read)
    assert single == 200 + 16 * 20 + 16 * first


def test_two_stages_save_what_congestion_costs():
    """LHS 3.1: two-stage wins where many ranks share a slow link, one-stage where it is fast."""
    slow = of("package:4 l3:1 core:8", 32)
    fast = of("package:4 l3:1 core:8", 32, level=[
        {"name": "l3", "latency": 14, "b": 4, "B": 3},
        {"name": "machine", "latency": 20, "b": 4, "B": 0.1}])
    for where, better, worse in ((slow, "two_stage", "one_stage"),
                                 (fast, "one_stage", "two_stage")):
        assert costs.predict("bcast", better, where, 1 << 20, PLAN) < costs.predict(
            "bcast", worse, where, 1 << 20, PLAN)


def test_crossovers_are_where_the_lines_meet():
    def time_of(name, nbytes):
        return {"tree": 100 + 2 * nbytes, "tiled": 1000 + nbytes}[name]

    rows = predict.crossovers("allreduce", ["tree", "tiled"], time_of, [8, 128, 2048, 32768])
    assert [(row["from"], row["to"]) for row in rows] == [("tree", "tiled")]
    assert rows[0]["bytes"] == pytest.approx(900, rel=0.03)


# ---------------------------------------------------------------------- the command


def smcoll(*arguments, code=0):
    """The command, in this process: it starts no ranks."""
    result = CliRunner().invoke(app_of(), [str(argument) for argument in arguments])
    assert result.exit_code == code, result.output
    return result


@pytest.fixture
def toml(tmp_path):
    file = tmp_path / "magny-cours.toml"
    file.write_text("""
name = "made up"
call = 200
[local]
latency = 1.0
b = 1.0
[[level]]
name = "L3Cache"
latency = 14
b = 4.0
B = [[64, 2.0], [1048576, 6]]
[[level]]
name = "machine"
latency = 100
b = 10
B = 8
""")
    return file


def test_model_of_another_machine(toml, tmp_path):
    result = smcoll("model", "--topology", "package:4 numa:1 l3:1 core:8", "--params", toml,
                    "--collectives", "bcast,allreduce", "--sizes", "64,64K", "--json",
                    tmp_path / "m.json", "--csv", tmp_path / "m.csv", "--plot", tmp_path / "m.png")
    assert "32 ranks" in result.stdout
    record = json.loads((tmp_path / "m.json").read_text())
    assert {(row["collective"], row["algorithm"]) for row in record["rows"]} == {
        (kind, name) for kind in ("bcast", "allreduce") for name in predict.algorithms_of(kind)}
    assert all(row["predicted_us"] > 0 for row in record["rows"])
    assert record["crossovers"]
    with open(tmp_path / "m.csv", newline="") as lines:
        assert len(list(csv.DictReader(lines))) == len(record["rows"])
    assert (tmp_path / "m.png").stat().st_size > 1000


def test_what_the_parameters_do_not_say_is_said_and_not_shown_as_dashes():
    """Westmere's bandwidths are not published: one line's times can be predicted."""
    text = smcoll("model", "--params", "westmere", "--topology", "package:2 l3:1 core:6").stdout
    tables, _, rest = text.partition(" predictions could not be made")
    assert "-" not in tables.split() and "fan_out" in tables
    assert "b of L3Cache is not known" in " ".join(rest.split())


def test_parameters_in_json_are_those_of_tune(tmp_path):
    for content, message in (({}, "no parameters as smcoll tune writes them"), (None, "Expecting")):
        file = tmp_path / "t.json"
        file.write_text(json.dumps(content) if content is not None else "{")
        result = smcoll("model", "--params", file, "--topology", "core:2", code=2)
        assert message in " ".join(result.output.replace("│", " ").split())


def test_where_no_size_can_be_named_the_reason_is():
    row = {"collective": "bcast", "from": "fan_out", "to": "n_ary", "ranks": 2}
    assert model_output.words_of(row | {"bytes": 512}) == "fan_out -> n_ary at 512 bytes"
    assert "take the same time" in model_output.words_of(row | {"bytes": None, "tie": True})
    assert "only one of them is known" in model_output.words_of(row | {"bytes": None})


def test_algorithms_that_tie_are_no_crossover(monkeypatch):
    times = {("n_ary", 8): 1.0, ("fan_out", 8): 1.5, ("n_ary", 64): 2.0, ("fan_out", 64): 2.0}
    monkeypatch.setattr(predict, "microseconds", lambda kind, name, machine, nbytes, plan: (
        times.get((name, nbytes), 9.0), ""))
    row, = model.crossovers_of(of(), ["bcast"], [8, 64], False)
    assert model_output.words_of(row) == (
        "n_ary and fan_out take the same time where they are the fastest")


def test_the_model_s_pages_name_files_that_are_there():
    root = Path(__file__).resolve().parents[2]
    text = "".join((root / "docs" / page).read_text() for page in ("model.md", "notebook-model.md"))
    named = re.findall(r"`(smcoll/[\w./]+|bench/[\w./-]+\.json)`", text)
    assert named and all((root / name).exists() for name in named), named
    for name in re.findall(r"--params ([\w.-]+)", text):
        assert name in parameters.shipped() or name == "tuned.json", name


@pytest.mark.parametrize("options, message", [
    (["--topology", "package:2 bla:1"], "unknown type 'bla'"),
    (["--topology", "package:2 core:x"], "is not type:count"),
    (["--topology", "package:2 core:2"], "no level Package"),
    (["-n", "1"], "a collective needs 2"),
    (["--collectives", "bla"], "--collectives: bla"),
    (["--sizes", "7"], "multiples of 8"),
])
def test_model_refuses_what_it_does_not_know(options, message):
    result = smcoll("model", "--params", "westmere", "--topology", "package:2 l3:1 core:6",
                    *options, code=2)
    assert message in " ".join(result.output.replace("│", " ").split())


def test_model_names_the_file_that_is_wrong(tmp_path):
    file = tmp_path / "p.toml"
    for text, message in (("name = ", "Invalid value"), ("[[level]]\nname='l9'\nlatency=1",
                                                         "unknown level 'l9'")):
        file.write_text(text)
        result = smcoll("model", "--params", file, "--topology", "core:2", code=2)
        assert "p.toml" in result.output.replace("\n", "").replace("│", "").replace(" ", "")
        assert message in " ".join(result.output.replace("│", " ").split())
