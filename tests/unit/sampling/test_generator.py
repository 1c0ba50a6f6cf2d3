"""The counter-based generator."""

from __future__ import annotations

import itertools

from octavo.sampling.generator import uniform

EXPECTED = [0.13870941014555427, 0.9633517225922468, 0.43775600474440823, 0.2815569767288524]


def test_numbers_are_fixed_for_ever() -> None:
    # A change here changes every seeded answer: it needs a reason, and a word in the changelog.
    assert [uniform(0, 0, 0), uniform(7, 0, 1), uniform(7, 1, 0), uniform(-1, 2, 3)] == EXPECTED


def test_numbers_lie_in_the_unit_interval_and_spread_evenly() -> None:
    numbers = [uniform(seed, 0, position) for seed in range(20) for position in range(1000)]
    assert all(0.0 <= number < 1.0 for number in numbers)
    counts = [0] * 100
    for number in numbers:
        counts[int(number * 100)] += 1
    chi_square = sum((count - 200) ** 2 / 200 for count in counts)
    assert chi_square < 160  # 99 degrees of freedom; p = 1e-4


def test_neighbours_in_each_coordinate_are_unrelated() -> None:
    cube = list(itertools.product(range(16), repeat=3))
    assert len({uniform(*point) for point in cube}) == len(cube)
    for step in ((1, 0, 0), (0, 1, 0), (0, 0, 1)):
        products = [
            (uniform(*point) - 0.5) * (uniform(*(a + b for a, b in zip(point, step, strict=True))) - 0.5)
            for point in cube
        ]
        # The mean of 4096 products of independent numbers has standard deviation 1/12/64.
        assert abs(sum(products) / len(products)) < 5 / 12 / 64


def test_a_seed_is_taken_modulo_two_to_the_64() -> None:
    assert uniform(-1, 0, 0) == uniform(2**64 - 1, 0, 0)
    assert uniform(2**63, 0, 0) != uniform(0, 0, 0)
