"""The covering design covers what it says, with far fewer rows than the full product."""

from itertools import combinations
from math import prod

import pytest
from covering import all_pairs, covering_rows

FACTORS = {
    "algorithm": ["tree", "tiled", "exchange"],
    "type": list("bhiqfd"),
    "op": ["sum", "max", "xor"],
    "banks": [1, 2, 3, 4],
    "pipeline": [False, True],
}


def not_xor_of_floats(first, second):
    return not (first[0] == "type" and first[1] in "fd" and second == ("op", "xor"))


@pytest.mark.parametrize("allowed", [lambda first, second: True, not_xor_of_floats])
def test_every_allowed_pair_and_no_other(allowed):
    rows = covering_rows(FACTORS, allowed)
    assert all(list(row) == list(FACTORS) for row in rows)
    covered = {pair for row in rows for pair in combinations(row.items(), 2)}
    assert covered == all_pairs(FACTORS, allowed)
    assert len(rows) < prod(map(len, FACTORS.values())) / 8
    assert rows == covering_rows(FACTORS, allowed)


def test_impossible_row_is_refused():
    # 1 may meet nobody's value of "third" beside it.
    factors = {"first": [1], "second": [1], "third": [1, 2]}

    def allowed(one, two):
        return (one, two) not in [(("first", 1), ("third", 1)), (("second", 1), ("third", 2))]

    with pytest.raises(ValueError, match="no value of"):
        covering_rows(factors, allowed)
