"""Goglin, Jeannot, Mansouri & Mercier 2018, section 6: Hockney's model, summed over levels."""

from __future__ import annotations

from collections.abc import Iterable


def flat_broadcast(p: int, alpha: float, beta: float, m: float) -> float:
    """A flat tree: the root sends to p - 1 others one after the other, (p - 1) (alpha + m beta)."""
    return (p - 1) * (alpha + m * beta)


def hierarchical_broadcast(levels: Iterable[tuple[int, float, float]], m: float) -> float:
    """The sum over levels of (p_i - 1) (alpha_i + m beta_i); levels are (p_i, alpha_i, beta_i).

    For 8 processes as 2 x 2 x 2 with equal latencies and bandwidths it is 3/7 of the flat tree.
    (The paper's third term there has alpha_0 and beta_1 for alpha_2 and beta_2.)
    """
    return sum(flat_broadcast(p, alpha, beta, m) for p, alpha, beta in levels)
