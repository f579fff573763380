"""The shared-memory protocol, model-checked: as it is, and with planted bugs (issue of the proof:
docs/protocol-proof.md). Needs SPIN, from Debian's package of that name."""

import os
from concurrent.futures import ThreadPoolExecutor

import protocol_models
import pytest
from protocol_models import CLEAN, LARGE, MUTANTS, SMALL

pytestmark = [
    pytest.mark.lengthy,
    pytest.mark.skipif(bool(protocol_models.missing_tools()),
                       reason=f"not installed: {', '.join(protocol_models.missing_tools())}")]


@pytest.fixture(scope="module")
def outcomes():
    """Of every small configuration and every planted bug, searched side by side."""
    wanted = [*SMALL, *((model, f"{mutant} {macros}") for model, mutant, macros in MUTANTS)]
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        searches = {key: pool.submit(protocol_models.check, *key) for key in wanted}
    return searches


def found(outcomes, model, macros):
    return outcomes[model, macros].result().found


@pytest.mark.parametrize("model, macros", SMALL)
def test_no_message_is_lost_no_slot_reused_early_and_nothing_deadlocks(outcomes, model, macros):
    assert found(outcomes, model, macros) == CLEAN


@pytest.mark.parametrize("model, mutant, macros", MUTANTS)
def test_a_planted_bug_is_found(outcomes, model, mutant, macros):
    assert found(outcomes, model, f"{mutant} {macros}") != CLEAN


def test_a_dropped_release_is_no_bug_where_stores_keep_their_order():
    """The model's memories differ where they should: x86 never reorders two stores."""
    assert protocol_models.check("inline", "RELAXED_FLAG PERIOD=1 CALLS=4").found == CLEAN


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("model, macros", LARGE)
def test_large_configurations(model, macros):
    assert protocol_models.check(model, macros, "-O2").found == CLEAN
