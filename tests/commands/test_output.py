"""What commands make of measured rows: colours, tables, figures, files. No job is started."""

from __future__ import annotations

import pytest

from smcoll.cli import output


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
