"""Random numbers by counter: each depends on where it is used and on nothing that was drawn before."""

from __future__ import annotations

_MASK = 2**64 - 1
_GOLDEN = 0x9E3779B97F4A7C15


def uniform(seed: int, index: int, position: int) -> float:
    """A number in [0, 1) with 53 random bits, for output token `position` of choice `index` under `seed`.

    SplitMix64's finaliser over a chain of the three (Steele, Lea and Flood, Fast Splittable Pseudorandom
    Number Generators, 2014).
    """
    state = 0
    for value in (seed, index, position):
        state = _mix((state ^ (value & _MASK)) + _GOLDEN)
    return (state >> 11) * 2.0**-53


def _mix(value: int) -> int:
    """A bijection of 64-bit numbers in which every input bit reaches every output bit."""
    value &= _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)
