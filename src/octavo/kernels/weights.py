"""Weight matrices as model files hold them: GGUF block formats, row by row."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import numpy as np
import numpy.typing as npt


class WeightType(Enum):
    """The element formats that the executors take. The value is GGUF's type id."""

    F32 = 0
    F16 = 1
    Q4_0 = 2
    Q4_1 = 3
    Q8_0 = 8
    BF16 = 30

    @property
    def group_size(self) -> int:
        """Elements that share a scale; 1 for the float types."""
        return 32 if self in (WeightType.Q4_0, WeightType.Q4_1, WeightType.Q8_0) else 1

    @property
    def group_bytes(self) -> int:
        """Bytes of one group in a file."""
        return _GROUP_BYTES[self]


_GROUP_BYTES = {
    WeightType.F32: 4,
    WeightType.F16: 2,
    WeightType.BF16: 2,
    WeightType.Q4_0: 18,  # float16 scale, 16 bytes of nibbles
    WeightType.Q4_1: 20,  # float16 scale, float16 minimum, 16 bytes of nibbles
    WeightType.Q8_0: 34,  # float16 scale, 32 int8
}


@dataclass(frozen=True, slots=True, eq=False)
class Weight:
    """A matrix of `rows` outputs by `cols` inputs (a vector has rows 1), in its file format.

    data: uint8 [rows * cols / group_size * group_bytes], C order, possibly a view of a mapped file.
    """

    name: str
    type: WeightType
    rows: int
    cols: int
    data: npt.NDArray[np.uint8]

    def __post_init__(self) -> None:
        if self.rows < 1 or self.cols < 1 or self.cols % self.type.group_size:
            raise ValueError(
                f"{self.name}: {self.rows} x {self.cols} is not a shape of {self.type.name}, "
                f"whose rows are multiples of {self.type.group_size}"
            )
        expected = self.rows * (self.cols // self.type.group_size) * self.type.group_bytes
        if self.data.dtype != np.uint8 or self.data.ndim != 1 or self.data.size != expected:
            raise ValueError(f"{self.name}: expected {expected} bytes, got {self.data.size}")

    @property
    def num_bytes(self) -> int:
        return int(self.data.size)
