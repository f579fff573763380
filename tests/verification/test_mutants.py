"""Bugs planted in the real code are caught by the suite (--slow: each needs a build)."""

import mutants
import pytest


def test_planted_bugs_have_their_places():
    """A change of the protocol takes its planted bugs along."""
    for mutant in mutants.MUTANTS:
        for edit in mutant.edits:
            text = (mutants.ROOT / edit.file).read_text()
            assert mutants.planted(text, mutant, edit) != text


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("mutant", [mutant for mutant in mutants.MUTANTS if mutant.tests],
                         ids=lambda mutant: mutant.name)
def test_a_planted_bug_is_caught(mutant):
    assert mutants.catch(mutant, runs=1)[0] != "passed"


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("tests", [mutants.SEQUENCES, mutants.BANKS])
def test_a_copy_without_a_bug_passes(tests):
    """Or else the copies fail for a reason of their own."""
    unchanged = mutants.Mutant("nothing", "", (), tests)
    assert mutants.catch(unchanged, runs=1) == ["passed"]
