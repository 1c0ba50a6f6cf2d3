"""What is found, and what is never found."""

from __future__ import annotations

import pytest

from octavo.cache.prefix_tree import PrefixNode, PrefixTree

NS = "fingerprint"


def grow(tree: PrefixTree, token_ids: list[int], blocks: list[int], namespace: str = NS) -> list[PrefixNode]:
    """Insert and settle a chain of blocks, the last may be a tail."""
    level, nodes = tree.root(namespace), []
    for index, block in enumerate(blocks):
        part = tuple(token_ids[index * tree.block_size : (index + 1) * tree.block_size])
        level = node = tree.insert(level, part, block)
        tree.settle(node)
        nodes.append(node)
    tree.check_integrity()
    return nodes


def found(tree: PrefixTree, token_ids: list[int], namespace: str = NS) -> tuple[list[int], int | None, int]:
    match = tree.match(namespace, token_ids, len(token_ids) - 1)
    return list(match.blocks), match.source, match.num_tokens


def test_full_blocks_then_the_longest_part_of_one_more() -> None:
    tree = PrefixTree(4)
    grow(tree, [1, 2, 3, 4, 5, 6, 7, 8], [10, 11])
    assert found(tree, [1, 2, 3, 4, 5, 6, 7, 8, 9]) == ([10, 11], None, 8)
    assert found(tree, [1, 2, 3, 4, 5, 6, 0, 0]) == ([10], 11, 6)
    assert found(tree, [1, 2, 0]) == ([], 10, 2)
    assert found(tree, [0, 2, 3]) == ([], None, 0)
    assert found(tree, [1]) == ([], None, 0)


def test_one_token_is_always_left_to_compute() -> None:
    tree = PrefixTree(4)
    grow(tree, [1, 2, 3, 4, 5, 6, 7, 8], [10, 11])
    assert found(tree, [1, 2, 3, 4, 5, 6, 7, 8]) == ([10], 11, 7)
    assert found(tree, [1, 2, 3, 4]) == ([], 10, 3)


def test_namespaces_do_not_see_each_other() -> None:
    tree = PrefixTree(2)
    grow(tree, [1, 2], [0], "mine")
    assert found(tree, [1, 2, 3], "yours") == ([], None, 0)
    assert found(tree, [1, 2, 3], "mine") == ([0], None, 2)


def test_equal_hashes_are_not_equal_tokens() -> None:
    class Collision(int):
        def __hash__(self) -> int:
            return 0

    tree = PrefixTree(2)
    grow(tree, [Collision(1), Collision(2)], [0])
    assert found(tree, [Collision(3), Collision(4), 5]) == ([], None, 0)


def test_the_longest_part_among_many_children() -> None:
    tree = PrefixTree(8)
    root = tree.root(NS)
    for block in range(200):
        tree.settle(tree.insert(root, (1, 2, block % 4, block, 0, 0, 0, 0), block))
    for block in range(200):
        prompt = [1, 2, block % 4, block, 0, 0, 9, 9, 9]
        assert found(tree, prompt) == ([], block, 6)
    naive = max(range(200), key=lambda b: b % 4 == 3)
    assert found(tree, [1, 2, 3, 999, 0])[2] == 3
    assert naive % 4 == 3


def test_only_computed_tokens_are_copied_but_full_blocks_are_shared_at_once() -> None:
    tree = PrefixTree(4)
    node = tree.insert(tree.root(NS), (1, 2, 3, 4), 7)
    assert found(tree, [1, 2, 3, 4, 5]) == ([7], None, 4)
    assert found(tree, [1, 2, 3, 9, 9]) == ([], None, 0)
    tree.settle(node)
    assert found(tree, [1, 2, 3, 9, 9]) == ([], 7, 3)


def test_a_tail_becomes_a_full_block() -> None:
    tree = PrefixTree(4)
    root = tree.root(NS)
    tree.settle(tree.insert(root, (1, 2), 5))
    assert found(tree, [1, 2, 3, 4, 9]) == ([], 5, 2)
    tree.settle(tree.insert(root, (1, 2, 3, 4), 5))
    assert found(tree, [1, 2, 3, 4, 9]) == ([5], None, 4)
    assert len(tree) == 1
    tree.check_integrity()


def test_forgetting_a_block_forgets_what_hangs_below() -> None:
    tree = PrefixTree(2)
    nodes = grow(tree, [1, 2, 3, 4, 5, 6], [0, 1, 2])
    assert sorted(tree.remove(nodes[1])) == [1, 2]
    assert found(tree, [1, 2, 3, 4, 5, 6, 7]) == ([0], None, 2)
    assert tree.node_of(2) is None
    tree.check_integrity()
    tree.remove(nodes[0])
    assert len(tree) == 0
    assert not tree._roots, "an empty namespace costs no memory"


def test_one_entry_per_content_and_block() -> None:
    tree = PrefixTree(2)
    node = grow(tree, [1, 2], [0])[0]
    with pytest.raises(RuntimeError):
        tree.insert(tree.root(NS), (1, 2), 1)
    with pytest.raises(RuntimeError):
        tree.insert(tree.root(NS), (3, 4), 0)
    tree.remove(node)
    with pytest.raises(RuntimeError):
        tree.insert(node, (5, 6), 3)
