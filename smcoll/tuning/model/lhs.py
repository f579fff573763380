"""The equations of Li, Hoefler & Snir 2013, section 2, in the paper's names.

``alpha`` is the link inside a socket (a_alpha, b_alpha, B_alpha), ``beta`` the one between sockets;
``s`` sockets with ``q`` threads each, p = q s; ``m`` cache lines. Results in ns.

As in section 3.4, an access to one line takes its latency a + b, congested or not.
"""

from __future__ import annotations

from collections import Counter

from smcoll.tuning.model.parameters import Link


def ceil_log(x: int, n: int = 2) -> int:
    """The least h with n**h >= x, without rounding errors."""
    height, width = 0, 1
    while width < x:
        width *= n
        height += 1
    return height


def floor_log(x: int, n: int = 2) -> int:
    """The largest h with n**h <= x."""
    height = ceil_log(x, n)
    return height if n ** height == x else height - 1


def simultaneous(q: int, n: int) -> list[int]:
    """How many accesses share the socket's cache in each step of the n-ary tree, bottom first.

    ceil(log_n q) steps: n**i for the tree of the largest power of n, and 1 for the step that only
    the threads beyond it need. For q = 6, n = 2 that is [2, 1, 1]: section 3.4's unfolding,
    (a + 2 B m) + 2 (a + b m).
    """
    congested = [n ** i for i in reversed(range(floor_log(q, n)))]
    return congested + [1] * (ceil_log(q, n) - len(congested))


def intra_reduce(alpha: Link, q: int, m: float, n: int = 2) -> float:
    """Equation (1): the n-ary reduction tree inside a socket.

    T = (n - 1) sum over the steps of max(a + b m, a + B n^i m).

    Printed, the sum goes from i = 0 to ceil(log_n q): four terms for q = 6. Section 3.4 unfolds
    three, and three steps there are (Figure 16), so this has ceil(log_n q) terms, with the
    congestion that 3.4 writes (``simultaneous``).
    """
    return (n - 1) * sum(alpha.access(m, d) for d in simultaneous(q, n))


def inter_reduce(beta: Link, s: int, m: float, n: int = 2) -> float:
    """Equation (2): the tree between sockets, (n - 1) (a + b m) ceil(log_n s)."""
    return (n - 1) * beta.access(m) * ceil_log(s, n)


def tree_reduce(alpha: Link, beta: Link, q: int, s: int, m: float, n: int = 2) -> float:
    """Equation (3): (1) + (2)."""
    return intra_reduce(alpha, q, m, n) + inter_reduce(beta, s, m, n)


def one_stage_broadcast(alpha: Link, beta: Link, q: int, s: int, m: float) -> float:
    """In equation (4): all threads read at once, q of them over each link: a + B q m.

    In one socket, where the paper has no case, they are the q - 1 others of it.
    """
    return beta.access(m, q) if s > 1 else alpha.access(m, q - 1)


def two_stage_broadcast(alpha: Link, beta: Link, q: int, s: int, m: float) -> float:
    """In equation (4): socket masters first, then the q - 1 others of each socket."""
    return (alpha.access(m, q - 1) if q > 1 else 0.0) + (beta.access(m) if s > 1 else 0.0)


def broadcast(alpha: Link, beta: Link, q: int, s: int, m: float) -> float:
    """Equation (4): the faster of the two."""
    return min(two_stage_broadcast(alpha, beta, q, s, m), one_stage_broadcast(alpha, beta, q, s, m))


def reduce_broadcast(alpha: Link, beta: Link, q: int, s: int, m: float, n: int = 2) -> float:
    """Equation (5): (3) + (4)."""
    return tree_reduce(alpha, beta, q, s, m, n) + broadcast(alpha, beta, q, s, m)


def dissemination(alpha: Link, beta: Link, q: int, s: int, m: float) -> float:
    """Equations (6), for a power of two of threads, and (7), for any other number.

    In every step all threads communicate, q of them over each link. With q' = 2^floor(log2 q)
    the other q - q' threads of a socket hand in first and fetch the result at the end. (7) as
    printed takes the number of sockets as it is: it has no term for excess sockets.
    """
    inside = 1 << floor_log(q)
    excess = q - inside
    time = sum(alpha.access(m, inside) for _ in range(ceil_log(inside)))
    time += sum(beta.access(m, inside) for _ in range(ceil_log(s)))
    return time + 2 * (alpha.access(m, excess) if excess else 0.0)


def tiled_intra_reduce(alpha: Link, q: int, m: float) -> float:
    """Equation (8): each thread reduces its q-th of all q vectors: (a + B q (m/q)) q."""
    return q * alpha.access(m / q, q, nbytes=m * 64) if q > 1 else 0.0


def tiled_inter_reduce(beta: Link, q: int, s: int, m: float) -> float:
    """Equation (9): q slices at once between sockets: (a + B (m/q) q) ceil(log2 s)."""
    return beta.access(m / q, q, nbytes=m * 64) * ceil_log(s)


def tiled_reduce(alpha: Link, beta: Link, q: int, s: int, m: float) -> float:
    """Equation (10): (8) + (9)."""
    return tiled_intra_reduce(alpha, q, m) + tiled_inter_reduce(beta, q, s, m)


def tiled_reduce_broadcast(alpha: Link, beta: Link, q: int, s: int, m: float) -> float:
    """Equation (11): (10) + (4)."""
    return tiled_reduce(alpha, beta, q, s, m) + broadcast(alpha, beta, q, s, m)


# ---------------------------------------------------------------------- section 3.4, one line


def one_line_terms(q: int, s: int, stages: int = 1, farthest: str = "Rr") -> Counter:
    """Equation (5) with n = 2 for a single line, as section 3.4 counts it, in symbols.

    Rl, Rs, Rr, Rd: latency of a line in the own first-level cache, in another of the same socket,
    in another socket, in the diagonal one. A step of the reduction reads an own line and another
    thread's, and writes one: R + 2 Rl; a step of the broadcast reads one and writes one: R + Rl.
    The first stage of the broadcast goes to the ``farthest`` socket.
    """
    inside, between = ceil_log(q), ceil_log(s)
    terms = Counter({"Rs": inside, "Rr": between, "Rl": 2 * (inside + between)})
    terms[farthest if s > 1 else "Rs"] += 1
    terms["Rl"] += 1
    if stages == 2 and s > 1 and q > 1:
        terms["Rs"] += 1
        terms["Rl"] += 1
    return +terms


def one_line_time(terms: Counter, latencies: dict[str, float]) -> float:
    """ns of terms. KeyError for a latency that is not given."""
    return sum(count * latencies[name] for name, count in terms.items())
