"""What the model chooses where no table was measured for this number of ranks.

A bad model must not make anything slower than the built-in defaults. So it decides only with
parameters measured on this machine, for ranks with a core each, for collectives that it predicted
within ``TRUSTED`` of the measured time (median over all algorithms and sizes) at every measured
number of such ranks, and only where it expects to save more than that beside the default.
"""

from __future__ import annotations

from smcoll.algorithms import ALGORITHMS
from smcoll.topology import hardware, node
from smcoll.tuning import select
from smcoll.tuning.model import fit, machine, parameters, predict

TRUSTED = 0.25
SIZES = tuple(8 << shift for shift in range(0, 22, 3))


def rows(content: dict, ranks: int, config, heap: bool = False) -> dict[str, list[dict]]:
    """Rows of a decision table for the collectives that the model may decide about.

    ``heap``: the ranks share heaps; then it must have been right about that, too.
    """
    here = machine.of_hardware(hardware.read_machine(), ranks,
                               parameters.from_dict(content["parameters"]), node.allowed_cpus())
    errors = [table["errors"] for table in content["tables"]
              if not table["oversubscribed"] and table["heap"] == heap]
    found = {}
    for collective in ALGORITHMS:
        if collective not in fit.tuned(heap) or collective == "barrier" or not errors:
            continue
        if all(error.get(collective, 1.0) <= TRUSTED for error in errors):
            chosen = _choose(collective, here, config, heap)
            if chosen is not None:
                found[collective] = chosen
    return found


def _choose(collective: str, here: machine.Machine, config, heap: bool) -> list[dict] | None:
    """Rows by size; None where the default is nowhere much slower than the best prediction."""
    defaults = select.decide(config, here.ranks, False, here.s, heaps=heap)
    picked = []
    for nbytes in SIZES:
        usual = select.decision_for(defaults, collective, nbytes)
        plan = predict.plan_for(here, config, usual.section_bytes, usual.fan_in, usual.fan_out)

        def us(name: str, nbytes=nbytes, plan=plan) -> float | None:
            return predict.microseconds(collective, name, here, nbytes, plan)[0]

        in_heaps = heap and nbytes >= config.internals.heap_threshold
        best = predict.fastest((name, us(name)) for name in ALGORITHMS[collective]
                               if select.may_be_chosen(collective, name, in_heaps))
        expected = us(usual.algorithm)
        if best is None or expected is None:
            return None
        if us(best) > expected * (1 - TRUSTED):
            best = usual.algorithm
        picked.append((nbytes, best, usual, us(best)))
    if all(best == usual.algorithm for _, best, usual, _ in picked):
        return None
    result: list[dict] = []
    for position, (nbytes, best, usual, expected) in enumerate(picked):
        last = position + 1 == len(picked)
        up_to = select.UNLIMITED if last else nbytes * 3     # between this size and the next
        row = {"up_to": up_to, "algorithm": best, "fan_in": usual.fan_in,
               "fan_out": usual.fan_out, "section_bytes": max(64, usual.section_bytes),
               "points": [[nbytes, round(expected, 3), None]]}
        same = ("algorithm", "fan_in", "fan_out", "section_bytes")
        if result and all(result[-1][key] == row[key] for key in same):
            result[-1]["up_to"] = up_to
            result[-1]["points"] += row["points"]
        else:
            result.append(row)
    return result
