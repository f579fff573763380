"""Goglin, Jeannot, Mansouri & Mercier 2018, section 6: Hockney's model, summed over levels.

A message of m bytes takes alpha + m beta; a process sends or receives one at a time. The algorithms
are those of Open MPI's tuned component, without segments, as it runs them when they are named.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

# Into which the chain algorithm cuts the ranks (coll_tuned_bcast_algorithm_chain_fanout).
CHAINS = 4


def flat_broadcast(p: int, alpha: float, beta: float, m: float) -> float:
    """A flat tree: the root sends to p - 1 others one after the other, (p - 1) (alpha + m beta)."""
    return (p - 1) * (alpha + m * beta)


def chain(p: int, alpha: float, beta: float, m: float) -> float:
    """The root serves the heads of some chains; the last rank of the last chain is through last."""
    chains = min(CHAINS, p - 1)
    longest = math.ceil((p - 1) / chains) if chains else 0
    return (chains + max(longest - 1, 0)) * (alpha + m * beta)


def pipeline(p: int, alpha: float, beta: float, m: float) -> float:
    """One chain; without segments nothing overlaps."""
    return (p - 1) * (alpha + m * beta)


def binary(p: int, alpha: float, beta: float, m: float) -> float:
    """Each rank serves two children, level by level."""
    return 2 * _depth(p) * (alpha + m * beta)


def split_binary(p: int, alpha: float, beta: float, m: float) -> float:
    """Half of the vector down each side of a binary tree, then the sides exchange their halves."""
    if p <= 2:
        return flat_broadcast(p, alpha, beta, m)
    return binary(p, alpha, beta, m / 2) + alpha + m / 2 * beta


def in_order_binary(p: int, alpha: float, beta: float, m: float) -> float:
    """A binary tree whose root is the last rank, which passes the result on."""
    return binary(p, alpha, beta, m) + (alpha + m * beta if p > 1 else 0)


def binomial(p: int, alpha: float, beta: float, m: float) -> float:
    """ceil(log2 p) rounds."""
    return (p - 1).bit_length() * (alpha + m * beta)


def _depth(p: int) -> int:
    """Levels below the root of a binary tree of ``p`` ranks, filled from above."""
    return p.bit_length() - 1


def hierarchical_broadcast(levels: Iterable[tuple[int, float, float]], m: float) -> float:
    """The sum over levels of (p_i - 1) (alpha_i + m beta_i); levels are (p_i, alpha_i, beta_i).

    For 8 processes as 2 x 2 x 2 with equal latencies and bandwidths it is 3/7 of the flat tree.
    (The paper's third term there has alpha_0 and beta_1 for alpha_2 and beta_2.)
    """
    return over_levels(flat_broadcast, levels, m)


def over_levels(algorithm: Callable[[int, float, float, float], float],
                levels: Iterable[tuple[int, float, float]], m: float) -> float:
    """The same for any algorithm: the sum of what it takes on each level."""
    return sum(algorithm(p, alpha, beta, m) for p, alpha, beta in levels)
