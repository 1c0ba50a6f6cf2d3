"""The plan of memory that users see at start."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from octavo.kernels.kv_layout import KVLayout
from octavo.kernels.ops import Program


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """Where the memory goes. Sizes in bytes, lengths in tokens."""

    weight_bytes: int
    kv_bytes: int
    kv_cache_dtype: str
    bytes_per_token: int
    bytes_per_block: int
    block_size: int
    num_blocks: int
    num_tokens: int
    """Token slots of the pool."""
    max_model_len: int
    num_full_context_users: int
    """Requests of max_model_len tokens that fit at once, sharing nothing."""

    @classmethod
    def of(cls, program: Program, layout: KVLayout, max_model_len: int) -> MemoryPlan:
        blocks_a_user = -(-max_model_len // layout.block_size)
        return cls(
            weight_bytes=program.weight_bytes,
            kv_bytes=layout.num_bytes,
            kv_cache_dtype=layout.dtype,
            bytes_per_token=layout.bytes_per_token,
            bytes_per_block=layout.bytes_per_block,
            block_size=layout.block_size,
            num_blocks=layout.num_blocks,
            num_tokens=layout.num_blocks * layout.block_size,
            max_model_len=max_model_len,
            num_full_context_users=layout.num_blocks // blocks_a_user,
        )

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def lines(self) -> list[str]:
        """The plan for people, a line each."""
        users = "user" if self.num_full_context_users == 1 else "users"
        return [
            f"weights   {_size(self.weight_bytes)}",
            f"KV pool   {_size(self.kv_bytes)}: {self.num_blocks:,} blocks of {self.block_size} tokens "
            f"({self.kv_cache_dtype}, {_size(self.bytes_per_block)} a block, "
            f"{_size(self.bytes_per_token)} a token)",
            f"room for  {self.num_tokens:,} tokens: {self.num_full_context_users:,} {users} "
            f"with a full context of {self.max_model_len:,}",
        ]


def _size(num_bytes: int) -> str:
    value = float(num_bytes)
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.2f} GiB"
