"""Finds blocks again by the tokens they hold: a tree of blocks, one level a block, one root a namespace."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass

TokenIds = tuple[int, ...]


class PrefixLevel:
    """The blocks that may follow one prefix. A root is such a level with no block of its own."""

    __slots__ = ("children", "computed_keys", "is_attached")

    def __init__(self) -> None:
        self.children: dict[TokenIds, PrefixNode] = {}
        """Keyed by the tokens themselves: dict compares keys, so a colliding hash finds nothing wrong."""
        self.computed_keys: list[TokenIds] = []
        """Sorted: the children that an earlier step computed, the only ones that may be copied."""
        self.is_attached = True
        """Whether the tree still holds it."""


class PrefixRoot(PrefixLevel):
    """Where the prefixes of one namespace begin."""

    __slots__ = ("namespace",)

    def __init__(self, namespace: Hashable) -> None:
        super().__init__()
        self.namespace = namespace


class PrefixNode(PrefixLevel):
    """One findable block. With fewer than block_size tokens it is a tail: a leaf, copied and never shared."""

    __slots__ = ("block", "parent", "token_ids")

    def __init__(self, block: int, token_ids: TokenIds, parent: PrefixLevel) -> None:
        super().__init__()
        self.block = block
        self.token_ids = token_ids
        self.parent = parent


@dataclass(frozen=True, slots=True)
class PrefixMatch:
    """What a prompt finds. Valid until the cache changes.

    tokens  0          block_size · len(blocks)       num_tokens         len(prompt)
            [ shared blocks )[ copied from `source` )[ to be computed, at least one )
    """

    namespace: Hashable
    blocks: tuple[int, ...] = ()
    """Full blocks to be shared, in order."""
    level: PrefixLevel | None = None
    """The node of the last of them, or the root; None when the namespace holds nothing."""
    source: int | None = None
    """The block whose first num_copied_tokens tokens continue the prefix."""
    num_copied_tokens: int = 0
    num_tokens: int = 0
    """Tokens found, shared and copied."""


class PrefixTree:
    """An index of blocks by exact token ids. Knows nothing of holders: the manager keeps both in step."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self._roots: dict[Hashable, PrefixRoot] = {}
        self._nodes: dict[int, PrefixNode] = {}

    def __len__(self) -> int:
        return len(self._nodes)

    def node_of(self, block: int) -> PrefixNode | None:
        return self._nodes.get(block)

    def root(self, namespace: Hashable) -> PrefixRoot:
        """The namespace's root, made if need be."""
        return self._roots.setdefault(namespace, PrefixRoot(namespace))

    def match(self, namespace: Hashable, token_ids: Sequence[int], limit: int) -> PrefixMatch:
        """The longest known prefix of token_ids[:limit]: full blocks, then a part of one more.

        Changes nothing. O(limit) for the blocks and O(log children) for the part.
        """
        root = self._roots.get(namespace)
        if root is None:
            return PrefixMatch(namespace)
        level: PrefixLevel = root
        size = self.block_size
        blocks: list[int] = []
        start = 0
        while start + size <= limit:
            child = level.children.get(tuple(token_ids[start : start + size]))
            if child is None:
                break
            blocks.append(child.block)
            level = child
            start += size
        rest = tuple(token_ids[start : min(start + size, limit)])
        source, num_copied = _longest_part(level, rest)
        return PrefixMatch(namespace, tuple(blocks), level, source, num_copied, start + num_copied)

    def insert(self, parent: PrefixLevel, token_ids: TokenIds, block: int) -> PrefixNode:
        """Make `block` findable below `parent`, for sharing only (see settle).

        The block's entry as a tail is replaced. Raises RuntimeError if the place is taken or gone, or the
        block is known for as many tokens.
        """
        known = self._nodes.get(block)
        if not parent.is_attached or token_ids in parent.children:
            raise RuntimeError(f"block {block} cannot be indexed here")
        if known is not None and len(known.token_ids) >= len(token_ids):
            raise RuntimeError(f"block {block} is indexed already")
        node = PrefixNode(block, token_ids, parent)
        parent.children[token_ids] = self._nodes[block] = node
        if known is not None:
            self._unlink(known)
        return node

    def settle(self, node: PrefixNode) -> None:
        """The node's tokens have been computed: from now on parts of the block may be copied."""
        insort(node.parent.computed_keys, node.token_ids)

    def has_computed(self, level: PrefixLevel, token_ids: TokenIds) -> bool:
        """Whether a copy of some child of `level` would give all these tokens."""
        keys = level.computed_keys
        position = bisect_left(keys, token_ids)
        return position < len(keys) and keys[position][: len(token_ids)] == token_ids

    def remove(self, node: PrefixNode) -> list[int]:
        """Forget a node and all below it, which can no longer be reached. Returns their blocks."""
        self._unlink(node)
        removed = []
        stack = [node]
        while stack:
            current = stack.pop()
            current.is_attached = False
            del self._nodes[current.block]
            removed.append(current.block)
            stack.extend(current.children.values())
        parent = node.parent
        if isinstance(parent, PrefixRoot) and not parent.children:
            parent.is_attached = False  # salts of the past cost no memory
            del self._roots[parent.namespace]
        return removed

    def nodes(self) -> Iterator[PrefixNode]:
        """All nodes, parents before children."""
        stack: list[PrefixNode] = [node for root in self._roots.values() for node in root.children.values()]
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children.values())

    def _unlink(self, node: PrefixNode) -> None:
        parent = node.parent
        node.is_attached = False
        del parent.children[node.token_ids]
        keys = parent.computed_keys
        position = bisect_left(keys, node.token_ids)
        if position < len(keys) and keys[position] == node.token_ids:
            del keys[position]

    def check_integrity(self) -> None:
        """Raises AssertionError unless keys, nodes and blocks agree. O(size of the tree)."""
        seen = set()
        for node in self.nodes():
            assert node.is_attached, f"block {node.block} is in the tree but marked detached"
            assert self._nodes.get(node.block) is node, f"block {node.block} has two index entries"
            assert node.parent.children.get(node.token_ids) is node, (
                f"block {node.block} is under a wrong key"
            )
            assert 0 < len(node.token_ids) <= self.block_size, f"block {node.block} has too many tokens"
            assert len(node.token_ids) == self.block_size or not node.children, "a tail has children"
            assert node.computed_keys == sorted(node.computed_keys), "computed keys are out of order"
            assert set(node.computed_keys) <= set(node.children), "a computed key has no child"
            seen.add(node.block)
        assert seen == set(self._nodes), "an index entry cannot be reached"


def _longest_part(level: PrefixLevel, rest: TokenIds) -> tuple[int | None, int]:
    """The child with the longest common prefix with `rest`, and its length.

    In a sorted list that child is a neighbour of the place where `rest` would stand, so two are looked at.
    """
    keys = level.computed_keys
    position = bisect_left(keys, rest)
    source: int | None = None
    best = 0
    for key in keys[max(position - 1, 0) : position + 1]:
        length = _common_len(key, rest)
        if length > best:
            source, best = level.children[key].block, length
    return source, best


def _common_len(left: TokenIds, right: TokenIds) -> int:
    length = 0
    for a, b in zip(left, right, strict=False):
        if a != b:
            break
        length += 1
    return length
