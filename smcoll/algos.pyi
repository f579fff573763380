ALGORITHMS: dict[str, tuple[str, ...]]
RADICES: dict[tuple[str, str], tuple[str, ...]]
COLLECTIVE_NUMBERS: dict[str, int]
