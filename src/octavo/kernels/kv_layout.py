"""The shape of the K and V memory: how many bytes a block takes, and where a slot lies."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

_ITEM_BYTES = {"float16": 2, "float32": 4}


@dataclass(frozen=True, slots=True, kw_only=True)
class KVLayout:
    """K and V of all layers, as [layer][block][kv_head][K panel | V panel].

    How a panel orders its block_size · head_dim elements is the executor's own affair.
    """

    num_layers: int
    num_kv_heads: int
    head_dim: int
    block_size: int
    num_blocks: int
    dtype: str
    """float16 or float32."""

    @property
    def panel_elements(self) -> int:
        return self.block_size * self.head_dim

    @property
    def bytes_per_token(self) -> int:
        """2 · layers · kv heads · head_dim · item size: K and V of one position in all layers."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * _ITEM_BYTES[self.dtype]

    @property
    def bytes_per_block(self) -> int:
        return self.bytes_per_token * self.block_size

    @property
    def num_bytes(self) -> int:
        return self.bytes_per_block * self.num_blocks

    @property
    def shape(self) -> tuple[int, int, int, int, int]:
        """[layer, block, kv head, K or V, panel element]."""
        return (self.num_layers, self.num_blocks, self.num_kv_heads, 2, self.panel_elements)

    @property
    def numpy_dtype(self) -> np.dtype[np.float16] | np.dtype[np.float32]:
        return np.dtype(np.float16) if self.dtype == "float16" else np.dtype(np.float32)
