"""The door to native code: programs of ops, executors that run them, and the K and V memory they use."""

from __future__ import annotations

import os
from typing import TypedDict


class KernelInfo(TypedDict):
    """What the native kernels found on this machine."""

    isa: str
    """The table in use: the widest that the CPU has, or what OCTAVO_ISA names."""
    available_isas: list[str]
    """Tables that this CPU can run, narrowest first."""
    threads: int
    """Cores that this process may use."""


def info() -> KernelInfo:
    """Raises ImportError where OCTAVO_ISA names a table that this machine cannot run."""
    from octavo import _native  # here, so that the pure Python parts of this package need no compiled module

    return {
        "isa": _native.default_isa,
        "available_isas": list(_native.available_isas),
        "threads": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
    }
