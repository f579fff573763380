"""What commands make of measured rows: colours, tables, figures, files. No job is started."""

from __future__ import annotations

import itertools
import struct

import pytest
from rich.console import Console

from smcoll import config
from smcoll.algorithms import ALGORITHMS, RADICES
from smcoll.cli import compare_output, info, model_output, output, selection, sweep, sweep_nodes
from smcoll.cli.page import page_console, prose


@pytest.mark.parametrize("low, high, standing, style", [
    (0.90, 3.0, "undecided", ""),       # 1.9 times faster, with a wide spread
    (0.97, 1.02, "undecided", ""),
    (1.0, 1.2, "undecided", ""),
    (1.01, 1.2, "faster", "green"),
    (0.5, 0.99, "slower", "red"),
])
def test_only_an_interval_without_1_is_coloured(low, high, standing, style):
    assert output.standing(low, high) == standing
    assert output.ratio((low * high) ** 0.5, low, high).style == style


def test_a_ratio_that_is_not_known_has_no_colour():
    assert output.ratio(None, None, None).plain == "-"


# ---------------------------------------------------------------------- tables


def measured(collective="allreduce", nbytes=4194304, ratio=(1.91, 1.7, 2.1), **changes):
    """A row of compare, with the widest figures."""
    return {"collective": collective, "bytes": nbytes, "ranks": 2, "algorithm": "tiled",
            "smcoll_us": 10234.0, "smcoll_us_min": 10000.0, "smcoll_us_max": 12000.0,
            "mpi_us": 19547.0, "mpi_us_min": 19000.0, "mpi_us_max": 23000.0,
            "ratio": ratio[0], "ratio_low": ratio[1], "ratio_high": ratio[2],
            "distance": "near", "path": "shared memory", "parameters": {}, "valid": True,
            "mpi_valid": True, "problems": []} | changes


def printed(part) -> str:
    console = Console(width=200)
    with console.capture() as captured:
        console.print(part)
    return captured.get()


def test_a_table_of_compare_has_70_columns_at_most():
    rows = [measured(name, ratio=ratio, distance=state, algorithm="reduce_scatter_gather")
            for (name, ratio), state in zip(itertools.product(selection.COLLECTIVES, (
                (1.91, 1.7, 2.1), (0.97, 0.9, 1.1), (123.4, 101.5, 150.6))),
                itertools.cycle(("near", "far", "mixed")), strict=False)]
    lines = printed(compare_output.table(rows, "2 ranks", "Intel MPI")).splitlines()
    assert max(len(line.rstrip()) for line in lines) <= 70
    rows = [row | {"limit_us": 9999.0} for row in rows]
    lines = printed(compare_output.table(rows, "2 ranks", "Intel MPI", full=True)).splitlines()
    assert max(len(line.rstrip()) for line in lines) <= 80


def test_what_the_bounds_do_not_decide_is_called_undecided_and_counted():
    rows = [measured(), measured(nbytes=8, ratio=(1.2, 0.99, 1.5)),
            measured(nbytes=64, ratio=(0.8, 0.7, 0.9)),
            measured(nbytes=512, ratio=(None,) * 3, valid=False)]
    text = printed(compare_output.table(rows, "2 ranks", "MPI"))
    cells = {line.split()[0]: line.split() for line in text.splitlines() if line[:7].strip()}
    assert cells["4194304"][3:5] == ["1.91", "1.70-2.10"]
    assert cells["8"][3:5] == ["undecided", "0.99-1.50"]
    assert cells["512"][3:5] == ["WRONG:", "smcoll"]
    assert text.splitlines()[-1] == "faster in 1, undecided 1, slower 1, wrong 1"


def test_a_second_job_s_quotients_stand_beside_its_own_times():
    row = measured()
    compare_output.add_forced(row, measured(ratio=(3.0, 2.5, 3.5), smcoll_us=100.0, mpi_us=300.0,
                                            distance="far"))
    forced, = compare_output.against_forced([row])
    assert (forced["smcoll_us"], forced["mpi_us"], forced["ratio"]) == (100.0, 300.0, 3.0)
    assert forced["distance"] == "far"
    assert (row["smcoll_us"], row["point_to_point_smcoll_us"]) == (10234.0, 100.0)


def swept(collective, algorithm, nbytes, **changes):
    names = RADICES.get((collective, algorithm), ())
    return measured(collective, nbytes, algorithm=algorithm, segment_size=262144,
                    layout="mpiexec's own", nodes=2, **dict.fromkeys(names, 16), **changes)


def printed_by(function, *arguments) -> list[str]:
    console = page_console()
    with console.capture() as captured:
        function(console, *arguments)
    return [line.rstrip() for line in captured.get().splitlines()]


def test_what_commands_print_fits_80_columns(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    points = [(collective, name) for collective in ("bcast", "reduce", "allreduce")
              for name in ALGORITHMS[collective]]
    rows = [swept(*point, nbytes) for point in points for nbytes in (8, 4194304)]
    slower = [row | {"smcoll_us": 20000.0} for row in rows]
    compared = [row | {"section_bytes": 131072, "measured_us": 10234.0, "predicted_us": 10234.0,
                       "error": -0.5, "best": True, "default": True, "chosen": True,
                       "unknown": ""} for row in rows]
    sizes = selection.sizes("8:4M", 4)
    model = [row | {"bytes": nbytes, "predicted_us": 10234.0} for row in rows for nbytes in sizes]
    pages = {
        "sweep": printed_by(sweep.print_best, rows + slower),
        "sweep-nodes": printed_by(sweep_nodes.print_times, rows[:8]),
        "tune": printed_by(lambda console: console.print(
            model_output.compared_table(compared, "2 ranks"))),
        "model": printed_by(lambda console: console.print(
            model_output.predictions_table(model, "2 ranks"))),
        "compare": printed_by(compare_output.print_how, rows, False),
        "compare --read": printed_by(compare_output.print_how, rows, True),
        "info": printed_by(info.print_facts, info.gather(4) | {"mpi": {
            "family": None, "problem": "there is none"}}),
        "info --config": printed_by(info.print_settings, config.describe()),
    }
    wide = {name: max(map(len, page)) for name, page in pages.items()}
    assert all(0 < columns <= 80 for columns in wide.values()), wide
    for name in ("tune", "model"):
        for _, algorithm in points:
            assert algorithm in "\n".join(pages[name])


def test_file_names_are_not_broken():
    name = "/" + "folder/" * 20 + "table.json"
    assert name in printed_by(prose, f"decision table: {name}")


# ---------------------------------------------------------------------- figures


def size_of_figure(file) -> tuple[int, int]:
    """(width, height) of a PNG in pixels."""
    return struct.unpack(">II", file.read_bytes()[16:24])


@pytest.mark.lengthy
@pytest.mark.parametrize("counts", [(2,), (2, 4)])
def test_a_figure_of_all_collectives_is_a_grid(tmp_path, counts):
    pytest.importorskip("matplotlib")
    rows = [measured(name, nbytes, ranks=ranks) for ranks in counts
            for name in selection.COLLECTIVES for nbytes in (8, 4096)]
    output.plot(tmp_path / "all.png", rows, "title")
    width, height = size_of_figure(tmp_path / "all.png")
    assert width < 6000 and height < 6000 and 0.4 < width / height < 2


def test_more_than_eight_series_look_different():
    looks = [tuple(output.style_of(number).values()) for number in range(40)]
    assert len(set(looks)) == 40


def test_a_curve_has_one_point_for_each_size():
    """The best variants of several sizes come from jobs whose MPI took other times."""
    rows = [measured("bcast", nbytes, algorithm=name, mpi_us=us)
            for nbytes, name, us in ((64, "fan_out", 3.0), (64, "n_ary", 5.0), (8, "n_ary", 2.0))]
    points = output.curves_of(rows)["MPI"]
    assert [(point["bytes"], point["us"]) for point in points] == [(8, 2.0), (64, 4.0)]


def test_one_radix_alone_is_not_drawn(tmp_path):
    one = [swept("reduce", "fan_in", nbytes) for nbytes in (8, 4096)]
    assert output.radix_curves(one) == {}
    several = [row | {"fan_in": radix} for row in one for radix in (4, 2)]
    assert [list(times) for times in output.radix_curves(several).values()] == [[2, 4], [2, 4]]
    pytest.importorskip("matplotlib")
    output.plot_sweep(tmp_path / "sweep.svg", one, "title")
    assert (tmp_path / "sweep.svg").stat().st_size > 1000


@pytest.mark.parametrize("known", [True, False])
def test_a_figure_of_the_model_says_what_is_predicted(known):
    figure = pytest.importorskip("matplotlib.figure").Figure()
    panel = figure.subplots()
    model_output.draw(panel, [
        {"algorithm": "tiled", "bytes": nbytes, "predicted_us": 1.0} | (
            {"measured_us": 1.1} if known else {}) for nbytes in (8, 64)])
    texts = [text.get_text() for text in panel.get_legend().get_texts()]
    assert "line: predicted" in texts and ("point: measured" in texts) is known
