"""A short run of the differential fuzzer, and proof that it finds what is wrong."""

from pathlib import Path

import programs
import pytest

FUZZER = (Path(__file__).parent / "differential.py").read_text()


@pytest.mark.parametrize("ranks, options", [
    (2, ()), (3, ("--small",)), (5, ()), (8, ("--small",)),
])
@pytest.mark.lengthy
def test_random_programs_give_the_same_on_mpi4py_and_on_smcoll(ranks, options):
    result = programs.run_ranks(ranks, FUZZER, "--seconds", "5", "--seed", str(ranks), *options)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "without a difference" in result.stdout


@pytest.mark.lengthy
def test_the_fuzzer_finds_a_wrong_element():
    result = programs.run_ranks(2, FUZZER, "--seconds", "60", "--mutant")
    assert result.returncode != 0
    assert "DIFFERENCE at --replay 1:" in result.stdout and "Allreduce" in result.stdout
