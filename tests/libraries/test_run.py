"""Programs started with ``--libraries``: what the dynamic linker finds, and what is said."""

from __future__ import annotations

import os
import subprocess
import textwrap

import pytest

from smcoll.launch import launch

PROGRAM = textwrap.dedent("""
    import ctypes
    from mpi4py import MPI
    everything = ctypes.CDLL(None)      # what a C library finds
    if hasattr(everything, "MPI_Barrier"):
        world = ctypes.c_size_t(MPI.COMM_WORLD.handle)
        for _ in range(150):
            assert everything.MPI_Barrier(world) == 0
        text = f"from C: {sum(row['from_c'] for row in MPI.COMM_WORLD.stats())} of 150"
    else:
        text = "nothing to be found"
    told = MPI.COMM_WORLD.gather(text)
    if told:
        print(told)
""")


def run(*options: str, **environment: str):
    return subprocess.run(
        launch.own_command("run", "-n", "2", *options, "-c", PROGRAM), capture_output=True,
        text=True, timeout=120, stdin=subprocess.DEVNULL, check=False,
        env={**os.environ, **environment})


def test_functions_with_mpis_names_are_there_only_where_asked_for():
    result = run()
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == str(["nothing to be found"] * 2)


@pytest.mark.parametrize("way", ["option", "variable"])
def test_calls_from_c_are_served_after_the_first_hundred_and_told_at_exit(way):
    options, environment = (["--libraries"], {}) if way == "option" else (
        [], {"SMCOLL_LIBRARIES": "1"})
    result = run(*options, SMCOLL_VERBOSE="1", **environment)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == str(["from C: 50 of 150"] * 2)
    table = [line.split() for line in result.stderr.splitlines() if "barrier" in line]
    assert ["50" in line for line in table] == [False, True]
    assert ["100" in line for line in table] == [True, False]
    assert all(line[-3:] == ["(all", "from", "C)"] for line in table)
