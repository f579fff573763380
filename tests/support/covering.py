"""A covering design: rows in which every pair of values of every two factors occurs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from typing import Any

Pair = tuple[tuple[str, Any], tuple[str, Any]]


def everything_allowed(_first: tuple[str, Any], _second: tuple[str, Any]) -> bool:
    return True


def all_pairs(factors: Mapping[str, Sequence], allowed: Callable = everything_allowed) -> set[Pair]:
    """Every allowed pair ((factor, value), (factor, value)), factors in their given order."""
    return {
        ((one, x), (two, y))
        for one, two in combinations(factors, 2)
        for x in factors[one]
        for y in factors[two]
        if allowed((one, x), (two, y))
    }


def covering_rows(
    factors: Mapping[str, Sequence], allowed: Callable = everything_allowed
) -> list[dict[str, Any]]:
    """Rows that cover all allowed pairs; greedy and deterministic, no full product.

    ``allowed((factor, value), (factor, value))`` says whether two values may meet in a row,
    factors in their given order. Each row starts from a pair that is still missing and gets, factor
    by factor, the value that covers the most missing pairs; values that were used least break ties.
    """
    order = list(factors)
    position = {name: i for i, name in enumerate(order)}
    # Ordered, so that the design is the same in every process.
    missing = dict.fromkeys(sorted(all_pairs(factors, allowed), key=repr))
    used = {(name, value): 0 for name in order for value in factors[name]}
    rows = []
    while missing:
        row = dict(next(iter(missing)))
        for name in sorted(order, key=lambda name: -len(factors[name])):
            if name not in row:
                row[name] = _best_value(name, factors[name], row, missing, allowed, position, used)
        row = {name: row[name] for name in order}
        rows.append(row)
        for pair in combinations(row.items(), 2):
            missing.pop(pair, None)
        for cell in row.items():
            used[cell] += 1
    return rows


def _best_value(name, values, row, missing, allowed, position, used):
    def pairs_with(value):
        for other in row.items():
            cell = (name, value)
            yield (cell, other) if position[name] < position[other[0]] else (other, cell)

    candidates = [value for value in values if all(allowed(*pair) for pair in pairs_with(value))]
    if not candidates:
        raise ValueError(f"no value of {name} is allowed beside {row}")
    return max(
        candidates,
        key=lambda value: (sum(p in missing for p in pairs_with(value)), -used[name, value]),
    )
