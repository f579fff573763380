"""Bugs planted in the real code are caught by the suite (--slow: each needs a build)."""

import mutants
import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.mark.parametrize("mutant", [mutant for mutant in mutants.MUTANTS if mutant.tests],
                         ids=lambda mutant: mutant.name)
def test_a_planted_bug_is_caught(mutant):
    assert mutants.catch(mutant, runs=1)[0] != "passed"


def test_a_copy_without_a_bug_passes():
    """Or else the copies fail for a reason of their own."""
    unchanged = mutants.Mutant("nothing", "", (), mutants.SEQUENCES)
    assert mutants.catch(unchanged, runs=1) == ["passed"]
