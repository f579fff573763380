"""What bytes an MPI datatype means: its type map as runs of bytes, in the order of MPI_Pack."""

from __future__ import annotations

import numpy as np
from mpi4py import MPI

Runs = tuple[np.ndarray, np.ndarray]  # offsets and lengths in bytes, both int64


def flatten(datatype: MPI.Datatype) -> Runs:
    """The runs of one element, adjacent ones merged; offsets count from the element's address."""
    basetype, combiner, given = datatype.decode()
    components = given.get("datatypes", [basetype])
    try:
        return _merged(_runs_of(datatype, combiner.removesuffix("_INTEGER"), basetype, given))
    finally:
        for component in components:
            if component is not datatype and not component.is_predefined:
                component.Free()


def _runs_of(datatype, combiner, basetype, given) -> Runs:
    if combiner in ("DUP", "RESIZED"):
        return flatten(basetype)
    if combiner == "STRUCT":
        parts = [_repeated(_block(*part[:2]), [part[2]]) for part in
                 zip(given["datatypes"], given["blocklengths"], given["displacements"],
                     strict=True)]
        return _concatenated(parts)
    if combiner == "SUBARRAY":
        return _subarray(basetype, given)
    displacements = _displacements(combiner, basetype, given)
    if displacements is not None:
        return _repeated(flatten(basetype), displacements)
    size = datatype.Get_size()
    if datatype.Get_extent() == (0, size):
        return np.zeros(1, np.int64), np.array([size], np.int64)
    if combiner == "NAMED":
        # A pair type: a value and behind it, aligned as in C, an int.
        value = size - 4
        return np.array([0, -(-value // 4) * 4]), np.array([value, 4])
    return discovered(datatype)


def _displacements(combiner, basetype, given):
    """Bytes from the start to each element of the base type; None where it is not so simple."""
    if combiner == "DARRAY":
        # The places are those of the same array of bytes.
        names = ("size", "rank", "gsizes", "distribs", "dargs", "psizes", "order")
        of_bytes = MPI.BYTE.Create_darray(*(given[name] for name in names))
        places = discovered(of_bytes)[0]
        of_bytes.Free()
        return places * basetype.Get_extent()[1]
    if combiner not in ("CONTIGUOUS", "VECTOR", "HVECTOR", "INDEXED", "HINDEXED", "INDEXED_BLOCK",
                        "HINDEXED_BLOCK"):
        return None
    extent = basetype.Get_extent()[1]
    if combiner == "CONTIGUOUS":
        return np.arange(given["count"], dtype=np.int64) * extent
    unit = 1 if combiner.startswith("H") else extent
    if combiner.endswith("VECTOR"):
        starts = np.arange(given["count"], dtype=np.int64) * given["stride"] * unit
        lengths = given["blocklength"]
    else:
        starts = np.array(given["displacements"], np.int64).ravel() * unit
        lengths = given["blocklength" if combiner.endswith("BLOCK") else "blocklengths"]
    lengths = np.broadcast_to(np.asarray(lengths, np.int64), starts.shape)
    within = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    return np.repeat(starts, lengths) + within * extent


def _block(basetype, count) -> Runs:
    extent = basetype.Get_extent()[1]
    return _repeated(flatten(basetype), np.arange(count, dtype=np.int64) * extent)


def _subarray(basetype, given) -> Runs:
    dimensions = list(zip(given["sizes"], given["subsizes"], given["starts"], strict=True))
    if given["order"] == MPI.ORDER_C:
        dimensions.reverse()
    runs, stride = flatten(basetype), basetype.Get_extent()[1]
    for size, subsize, first in dimensions:  # the fastest first
        runs = _merged(_repeated(runs, (first + np.arange(subsize, dtype=np.int64)) * stride))
        stride *= size
    return runs


def discovered(datatype: MPI.Datatype) -> Runs:
    """The runs of any type without padding, from MPI itself: pack bytes that tell their place.

    (MPI need not move the padding of a long double.)
    """
    lower, true_extent = datatype.Get_true_extent()
    size = datatype.Get_size()
    positions = np.arange(max(true_extent, 1), dtype=np.int64)
    found = np.zeros(size, np.int64)
    # mpi4py's Pack takes as many elements as extents fit the buffer: one byte, one element.
    moved = datatype.Create_hindexed([1], [-lower]).Create_resized(0, 1).Commit()
    try:
        for shift in range(0, 8 * 8, 8):
            if true_extent >> shift == 0:
                break
            digits = (positions >> shift).astype(np.uint8)
            packed = np.zeros(max(size, 1), np.uint8)
            if size:
                moved.Pack(digits[:1], packed, 0, MPI.Intracomm(MPI.COMM_SELF))
            found += packed[:size].astype(np.int64) << shift
    finally:
        moved.Free()
    return found + lower, np.ones(size, np.int64)


def _repeated(runs: Runs, displacements) -> Runs:
    offsets, lengths = runs
    displacements = np.asarray(displacements, np.int64)
    return ((displacements[:, None] + offsets[None, :]).ravel(),
            np.tile(lengths, len(displacements)))


def _concatenated(parts) -> Runs:
    if not parts:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    return np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])


def _merged(runs: Runs) -> Runs:
    offsets, lengths = runs
    filled = lengths > 0
    offsets, lengths = offsets[filled], lengths[filled]
    if len(offsets) < 2:
        return offsets, lengths
    starts = np.flatnonzero(np.append(True, offsets[1:] != offsets[:-1] + lengths[:-1]))
    return offsets[starts], np.add.reduceat(lengths, starts)
