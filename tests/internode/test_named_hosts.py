"""Hosts as users name them, and what each launcher is told."""

from __future__ import annotations

import pytest

from smcoll.launch import hosts, launch
from smcoll.launch.hosts import Host


def test_hosts_of_an_option():
    assert hosts.parse("h1:4, h2:2") == [Host("h1", 4), Host("h2", 2)]
    assert hosts.parse("h1,10.0.0.2") == [Host("h1"), Host("10.0.0.2")]
    assert ",".join(map(str, hosts.parse("h1:4,h2:2"))) == "h1:4,h2:2"


def test_hosts_of_a_file_in_both_forms(tmp_path):
    file = tmp_path / "hosts"
    file.write_text("# ours\nh1 slots=4 max_slots=8\n\nh2:3   # the small one\n")
    assert hosts.read(file) == [Host("h1", 4), Host("h2", 3)]


@pytest.mark.parametrize("text", ["h1:x", "h1:4,h2", "h1:0", ",", "h1:4:4", "h1 4"])
def test_what_names_no_hosts_is_refused(text, tmp_path):
    with pytest.raises(ValueError):
        hosts.parse(text)
    with pytest.raises(ValueError):
        hosts.read(tmp_path / "nothing")


def test_ranks_fill_hosts_in_their_order():
    some = hosts.parse("h1:4,h2:2,h3:2")
    assert hosts.share(some, 8) == [("h1", 4), ("h2", 2), ("h3", 2)]
    assert hosts.share(some, 5) == [("h1", 4), ("h2", 1)]
    with pytest.raises(ValueError, match="take 8"):
        hosts.share(some, 9)


def test_hosts_without_numbers_get_even_shares():
    some = hosts.parse("h1,h2,h3")
    assert hosts.share(some, 7) == [("h1", 3), ("h2", 2), ("h3", 2)]
    assert hosts.share(some, 2) == [("h1", 1), ("h2", 1)]


@pytest.mark.parametrize("family", [launch.OPEN_MPI, launch.MPICH, launch.INTEL_MPI])
def test_each_launcher_is_told_how_many_ranks_each_host_gets(family, monkeypatch):
    monkeypatch.setenv("SMCOLL_SEGMENTS", "7")
    monkeypatch.setattr(launch, "crowded", lambda ranks: ranks > 2)
    info = launch.MPIInfo(family, "1", "1", "", "mpiexec")
    arguments, environment = launch.command(
        5, ["program"], hosts=hosts.parse("h1:2,h2:2,h3:2"), info=info, environment={"MINE": "1"})
    assert environment["SMCOLL_SEGMENTS"] == "7" and environment["MINE"] == "1"
    option = "--host" if family == launch.OPEN_MPI else "-hosts"
    assert arguments[:3] == ["mpiexec", option, "h1:2,h2:2,h3:1"]
    assert arguments[-3:] == ["-n", "5", "program"]
    if family == launch.OPEN_MPI:
        # It carries its own variables only.
        carried = [arguments[i + 1] for i, word in enumerate(arguments) if word == "-x"]
        assert {"SMCOLL_SEGMENTS", "MINE"} <= set(carried) and "HOME" not in carried
        # Two ranks on each host's two cores: as many as there are.
        assert "none" not in arguments


def test_a_layout_is_for_this_machine():
    with pytest.raises(launch.LaunchError, match="layout"):
        launch.command(2, ["program"], hosts=hosts.parse("h1"), layout="compact",
                       info=launch.MPIInfo(launch.MPICH, "1", "1", "", "mpiexec"))
