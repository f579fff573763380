"""Reduction and copy kernels against numpy: every operation x element type x instruction set."""

import itertools
import warnings

import numpy as np
import pytest

from smcoll.base import kernels

INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
REALS = ("float32", "float64", "longdouble")
COMPLEX = ("complex64", "complex128")
ARITHMETIC = ("SUM", "PROD")
ORDERED = ("MAX", "MIN")
LOGICAL = ("LAND", "LOR", "LXOR")
BITWISE = ("BAND", "BOR", "BXOR")
# What the MPI standard defines (section "Predefined Reduction Operations").
DEFINED = (
    set(itertools.product(ARITHMETIC + ORDERED + LOGICAL + BITWISE, INTEGERS))
    | set(itertools.product(LOGICAL, ["bool"]))
    | set(itertools.product(ARITHMETIC + ORDERED, REALS))
    | set(itertools.product(ARITHMETIC, COMPLEX))
)
COMBINATIONS = sorted(DEFINED)
ALL_COMBINATIONS = list(itertools.product(kernels.OPERATIONS, kernels.ELEMENT_TYPES))
SOURCE_COUNTS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 17)
LENGTHS = (0, 1, 2, 3, 7, 8, 9, 31, 64, 65, 1000, 4097)
GUARD = 0xA5
# The bytes of a long double that hold its value; the others are padding.
VALUE_BYTES = {"longdouble": 10 if np.finfo(np.longdouble).nmant == 63 else None}

NUMPY_OPERATIONS = {
    "SUM": np.add,
    "MAX": lambda a, b: np.where(a > b, a, b),
    "MIN": lambda a, b: np.where(a < b, a, b),
    "BAND": np.bitwise_and,
    "BOR": np.bitwise_or,
    "BXOR": np.bitwise_xor,
    "LAND": np.logical_and,
    "LOR": np.logical_or,
    "LXOR": np.logical_xor,
}


def product(a, b):
    if a.dtype.kind != "c":
        return a * b
    result = np.empty_like(a)
    result.real = a.real * b.real - a.imag * b.imag
    result.imag = a.real * b.imag + a.imag * b.real
    return result


def expected(operation, sources):
    """The left fold in source order, each step rounded (or wrapped) to the element's type."""
    combine = product if operation == "PROD" else NUMPY_OPERATIONS[operation]
    result = sources[0]
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        for source in sources[1:]:
            result = combine(result, source).astype(source.dtype)
    return result


def random_values(rng, name, length):
    """All bit patterns for integers; for floating point mixed magnitudes, so that order shows."""
    dtype = np.dtype(name)
    if name == "bool":
        return rng.integers(0, 2, length).astype(dtype)
    if dtype.kind in "iu":
        values = rng.integers(0, 256, length * dtype.itemsize, dtype=np.uint8).view(dtype)
        values[rng.random(length) < 0.3] = 0
        return values

    def real():
        return rng.standard_normal(length) * 10.0 ** rng.integers(-3, 4, length)

    return (real() + 1j * real() if dtype.kind == "c" else real()).astype(dtype)


class Area:
    """An array at a chosen distance from a 64-byte boundary, with guard bytes on both sides."""

    def __init__(self, values, distance):
        nbytes = values.nbytes
        self.memory = np.full(nbytes + 64 + 128 + distance, GUARD, np.uint8)
        start = 64 + (-(self.memory.ctypes.data + 64)) % 64 + distance
        self.span = slice(start, start + nbytes)
        self.bytes = self.memory[self.span]
        self.bytes[:] = values.view(np.uint8)
        self.dtype = values.dtype

    def values(self):
        return np.frombuffer(self.bytes.tobytes(), self.dtype)

    def guards_intact(self):
        outside = np.delete(self.memory, self.span)
        return bool(np.all(outside == GUARD))


def value_bits(values, name):
    """The bytes that carry values, so that comparing them is comparing bits."""
    rows = np.ascontiguousarray(values).view(np.uint8).reshape(len(values), values.dtype.itemsize)
    return rows[:, : VALUE_BYTES.get(name)]


def reduce_areas(operation, name, out, sources, instruction_set):
    kernels.reduce(
        kernels.OPERATIONS[operation],
        kernels.ELEMENT_TYPES[name],
        out.bytes,
        [source.bytes for source in sources],
        instruction_set,
    )


def check_reduction(operation, name, values, instruction_set, distance, alias=None):
    """One call into a separate `out`, or into the source at position `alias`."""
    sources = [Area(each, distance * (3 + 2 * i) % 64) for i, each in enumerate(values)]
    out = Area(np.zeros_like(values[0]), distance) if alias is None else sources[alias]
    reduce_areas(operation, name, out, sources, instruction_set)
    wanted = expected(operation, values)
    np.testing.assert_array_equal(value_bits(out.values(), name), value_bits(wanted, name))
    assert out.guards_intact()
    for i, source in enumerate(sources):
        if i != alias:
            assert source.bytes.tobytes() == values[i].tobytes(), f"source {i} was changed"


def test_defined_combinations_are_those_of_the_standard():
    found = {
        (operation, name)
        for operation, name in ALL_COMBINATIONS
        if kernels.available(kernels.OPERATIONS[operation], kernels.ELEMENT_TYPES[name])
    }
    assert found == DEFINED


def test_best_instruction_set_is_the_last_of_those_that_run():
    names = kernels.instruction_sets()
    assert names[0] == "baseline"
    assert names[-1] == kernels.instruction_set()


@pytest.mark.parametrize("instruction_set", kernels.instruction_sets())
@pytest.mark.parametrize(("operation", "name"), COMBINATIONS)
def test_reduction_matches_numpy(operation, name, instruction_set):
    """Every source count; lengths, misalignments and the aliased source vary with it."""
    rng = np.random.default_rng(COMBINATIONS.index((operation, name)))
    lengths = itertools.cycle(LENGTHS)
    distances = itertools.cycle((0, 1, 3, 8, 13, 16, 31))
    aliases = itertools.cycle((None, 0, -1, 1, None, 3, 4))
    for count in SOURCE_COUNTS:
        for _ in range(4):
            length, distance, alias = next(lengths), next(distances), next(aliases)
            if alias is not None:
                alias %= count
            values = [random_values(rng, name, length) for _ in range(count)]
            check_reduction(operation, name, values, instruction_set, distance, alias)


@pytest.mark.parametrize("instruction_set", kernels.instruction_sets())
@pytest.mark.parametrize("name", ["int8", "uint16", "float64", "longdouble", "complex64"])
def test_every_length(name, instruction_set):
    rng = np.random.default_rng(5)
    for length, count in itertools.product(LENGTHS, (2, 3, 4, 9)):
        values = [random_values(rng, name, length) for _ in range(count)]
        for operation in ARITHMETIC:
            check_reduction(operation, name, values, instruction_set, distance=1)


@pytest.mark.parametrize("instruction_set", kernels.instruction_sets())
@pytest.mark.parametrize("name", ["uint8", "float64", "complex128"])
def test_out_may_be_any_source(name, instruction_set):
    rng = np.random.default_rng(6)
    for count, length in itertools.product(SOURCE_COUNTS, (9, 1000)):
        values = [random_values(rng, name, length) for _ in range(count)]
        for alias in range(count):
            check_reduction("SUM", name, values, instruction_set, 5, alias)


@pytest.mark.parametrize("instruction_set", kernels.instruction_sets())
def test_sources_may_repeat_and_all_be_out(instruction_set):
    rng = np.random.default_rng(7)
    for count in SOURCE_COUNTS:
        values = random_values(rng, "int32", 4097)
        area = Area(values, 3)
        reduce_areas("SUM", "int32", area, [area] * count, instruction_set)
        np.testing.assert_array_equal(area.values(), expected("SUM", [values] * count))


@pytest.mark.parametrize("instruction_set", kernels.instruction_sets())
@pytest.mark.parametrize("operation", LOGICAL)
def test_bool_takes_any_nonzero_byte_as_true(operation, instruction_set):
    rng = np.random.default_rng(8)
    values = [rng.integers(0, 3, 1000, dtype=np.uint8) * 85 for _ in range(5)]
    out = Area(np.zeros(1000, np.uint8), 0)
    reduce_areas(operation, "bool", out, [Area(each, 0) for each in values], instruction_set)
    wanted = expected(operation, [each.astype(bool) for each in values])
    np.testing.assert_array_equal(out.values(), wanted.astype(np.uint8))


def special_values(name):
    """All pairs of: NaN, infinities, signed zeros, denormals, ordinary and extreme numbers."""
    dtype = np.dtype(name)
    real = np.zeros(1, dtype).real.dtype
    limits = np.finfo(real)
    numbers = [np.nan, np.inf, 0.0, limits.tiny, limits.smallest_subnormal, limits.max, 1.5]
    numbers = np.array([sign * real.type(x) for x in numbers for sign in (1, -1)], real)
    if dtype.kind == "c":
        pairs = np.empty(numbers.size**2, dtype)
        pairs.real, pairs.imag = np.repeat(numbers, numbers.size), np.tile(numbers, numbers.size)
        return pairs, np.roll(pairs, 17)
    return np.repeat(numbers, numbers.size), np.tile(numbers, numbers.size)


@pytest.mark.parametrize(
    ("operation", "name"), [pair for pair in COMBINATIONS if pair[1] in REALS + COMPLEX]
)
def test_special_values_have_the_same_bits_in_every_instruction_set(operation, name):
    left, right = special_values(name)
    rng = np.random.default_rng(9)
    for count in (2, 3, 4, 5, 9):
        values = [left, right, *(rng.permutation(left) for _ in range(count - 2))]
        results = []
        for instruction_set in kernels.instruction_sets():
            out = Area(np.zeros_like(left), 1)
            sources = [Area(each, 2 * i + 1) for i, each in enumerate(values)]
            reduce_areas(operation, name, out, sources, instruction_set)
            results.append(out.values())
            if operation in ORDERED:
                wanted = value_bits(expected(operation, values), name)
                np.testing.assert_array_equal(value_bits(results[-1], name), wanted)
            else:
                np.testing.assert_array_equal(results[-1], expected(operation, values))
        for result in results[1:]:
            both_nan = np.isnan(result) & np.isnan(results[0])
            same = (value_bits(result, name) == value_bits(results[0], name)).all(axis=1)
            # Which of two NaNs' payloads comes out of + and * is open in C.
            assert np.all(same | (both_nan & (operation in ARITHMETIC)))


@pytest.mark.parametrize("name", COMPLEX)
def test_complex_product_is_not_fused(name):
    """A fused multiply-add would leave (1 + e)(1 + e) - (1 + e)(1 + e) a nonzero real part."""
    value = np.array([1 / 3, 0.1, 1.7, 9.3], name)
    operand = value + 1j * value
    for instruction_set in kernels.instruction_sets():
        out = Area(np.ones(1000 * operand.size, name), 0)
        sources = [Area(np.tile(operand, 1000), 0) for _ in range(2)]
        reduce_areas("PROD", name, out, sources, instruction_set)
        assert not out.values().real.any()


def test_reduce_refuses_what_it_cannot_do_safely():
    total, wide = kernels.OPERATIONS["SUM"], kernels.ELEMENT_TYPES["float64"]
    full, short = np.ones(8), np.ones(7)
    with pytest.raises(ValueError, match="source 1 has 56 bytes"):
        kernels.reduce(total, wide, full, [full, short])
    with pytest.raises(ValueError, match="at least one"):
        kernels.reduce(total, wide, full, [])
    with pytest.raises(ValueError, match="elements have 8"):
        kernels.reduce(total, wide, np.ones(9, np.uint8), [full])
    with pytest.raises(ValueError, match="partly"):
        kernels.reduce(total, wide, full[:7], [full[1:]])
    with pytest.raises(ValueError, match="instruction set"):
        kernels.reduce(total, wide, full, [full], "sse9")
    with pytest.raises(TypeError, match="no operation"):
        kernels.reduce(kernels.OPERATIONS["BAND"], wide, full, [full])
    with pytest.raises(TypeError, match="no operation"):
        kernels.reduce(99, wide, full, [full])
    with pytest.raises(BufferError):
        kernels.reduce(total, wide, bytes(64), [full])
    np.testing.assert_array_equal(full, np.ones(8))


@pytest.mark.parametrize("stores", kernels.stores_available())
def test_copy(stores):
    rng = np.random.default_rng(10)
    lengths = (0, 1, 15, 16, 63, 64, 65, 127, 128, 129, 200, 4097)
    distances = itertools.cycle(range(64))
    for length, to in itertools.product(lengths, range(64)):
        origin = Area(rng.integers(0, 256, length, dtype=np.uint8), next(distances))
        out = Area(np.zeros(length, np.uint8), to)
        kernels.copy(out.bytes, origin.bytes, stores)
        assert out.bytes.tobytes() == origin.bytes.tobytes()
        assert out.guards_intact()
