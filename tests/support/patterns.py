"""Operations, element types, data and numpy's own result of a reduction, for all tests."""

from __future__ import annotations

import functools

import numpy as np

INTEGERS = "bBhHiIlLqQ"
FLOATS = "fdg"
COMPLEX = "FD"
TYPES = INTEGERS + "?" + FLOATS + COMPLEX
OPS = ("SUM", "PROD", "MAX", "MIN", "LAND", "BAND", "LOR", "BOR", "LXOR", "BXOR")
NUMPY_OPS = {
    "SUM": np.add, "PROD": np.multiply, "MAX": np.maximum, "MIN": np.minimum,
    "LAND": np.logical_and, "LOR": np.logical_or, "LXOR": np.logical_xor,
    "BAND": np.bitwise_and, "BOR": np.bitwise_or, "BXOR": np.bitwise_xor,
}  # fmt: skip
# Prime: data that land a segment too far, or in another rank's section, are seen.
PERIOD = 251
GUARD = 64


def defined(op: str, typecode: str) -> bool:
    """Does the MPI standard define this operation on this type?"""
    if typecode in INTEGERS:
        return True
    if typecode == "?":
        return op in ("LAND", "LOR", "LXOR")
    return op in (("SUM", "PROD") if typecode in COMPLEX else ("SUM", "PROD", "MAX", "MIN"))


def one_period(op: str, typecode: str, rank: int, seed: int) -> np.ndarray:
    """A rank's values: small whole numbers, so that every order of a float sum is exact."""
    random = np.random.default_rng([seed, rank])
    if op == "PROD":
        values = random.integers(1, 3, PERIOD)
    elif op in ("LAND", "LOR", "LXOR"):
        values = random.integers(0, 2, PERIOD) * random.integers(1, 100, PERIOD)
        if op == "LAND":
            # With many ranks hardly any place would be true.
            values[::3] = 7
    elif typecode in INTEGERS and op in ("BAND", "BOR", "BXOR"):
        values = random.integers(0, 2**62, PERIOD)
    else:
        values = random.integers(-100, 100, PERIOD)
    if typecode in COMPLEX:
        return (values + 1j * random.integers(-2, 3, PERIOD)).astype(typecode)
    return values.astype(typecode)


def data(op: str, typecode: str, rank: int, count: int, seed: int) -> np.ndarray:
    """``count`` elements of a rank."""
    return np.resize(one_period(op, typecode, rank, seed), count)


def expected(op: str, typecode: str, ranks: int, count: int, seed: int) -> np.ndarray:
    """numpy's result of the reduction over all ranks."""
    with np.errstate(all="ignore"):
        periods = [one_period(op, typecode, rank, seed) for rank in range(ranks)]
        if op.startswith("L") and ranks > 1:  # one rank's values are its result as they are
            periods = [period.astype(bool) for period in periods]
        return np.resize(functools.reduce(NUMPY_OPS[op], periods).astype(typecode), count)


class Guarded:
    """An array in the middle of a buffer of its own, at any byte offset, with guard bytes."""

    def __init__(self, typecode: str, count: int, offset: int = 0, content=None):
        dtype = np.dtype(typecode)
        self.buffer = bytearray(b"\xa5" * (2 * GUARD + offset + count * dtype.itemsize))
        self.start = GUARD + offset
        self.end = self.start + count * dtype.itemsize
        self.array = np.frombuffer(self.buffer, dtype, count, self.start) if count else (
            np.empty(0, dtype))
        if content is not None:
            self.array[:] = content

    def check_guards(self, what) -> None:
        """Nothing beside the array was written."""
        assert set(self.buffer[: self.start]) <= {0xA5}, f"{what}: bytes before the buffer changed"
        assert set(self.buffer[self.end :]) <= {0xA5}, f"{what}: bytes behind the buffer changed"


def check(got: np.ndarray, wanted: np.ndarray, what) -> None:
    """Equal in every element; the message says where the first wrong one is."""
    if np.array_equal(got, wanted):
        return
    assert got.shape == wanted.shape, f"{what}: shape {got.shape}, not {wanted.shape}"
    wrong = np.flatnonzero(got != wanted)
    first = wrong[0]
    raise AssertionError(
        f"{what}: {len(wrong)} of {len(got)} elements are wrong, first [{first}] = "
        f"{got[first]!r}, not {wanted[first]!r}; last wrong [{wrong[-1]}]"
    )


def bits(array: np.ndarray) -> bytes:
    """The bytes that carry an array's value (an x87 long double has 6 bytes of padding)."""
    if array.dtype == np.longdouble and np.finfo(np.longdouble).nmant == 63:
        return array.view(np.uint8).reshape(-1, array.itemsize)[:, :10].tobytes()
    return array.tobytes()
