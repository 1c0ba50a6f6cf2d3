#!/usr/bin/env python3
"""Checks that imports point one way, and that files and functions stay short. Prints file:line: message.

    python scripts/check_layers.py [ROOT]      ROOT: the package folder, by default src/octavo

Imports inside functions count, and those under `if TYPE_CHECKING` as well: they too tie modules together.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

PACKAGE = "octavo"
MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60

EVERYONE_MAY = {"version", "config", "params", "request", "batch"}
"""Plain data at the top of the package. They may import each other."""

MAY_IMPORT: dict[str, set[str]] = {
    "cli": {"bench", "server", "engine", "models", "kernels", "formats", "text", "__init__"},
    "bench": {"engine", "formats", "kernels", "sampling", "text", "_native", "__init__"},
    "server": {"engine", "sampling", "text"},
    "engine": {"scheduler", "cache", "runner", "models", "kernels", "formats", "sampling", "text"},
    "scheduler": {"cache"},
    "cache": set(),
    "runner": {"models", "kernels"},
    "models": {"kernels", "formats"},
    "formats": {"kernels.weights"},
    "kernels": {"_native"},
    "sampling": set(),
    "text": set(),
    "__init__": {"engine"},
    "__main__": {"cli"},
}
"""Layer → layers (or single modules) that it may import, besides itself and EVERYONE_MAY (not kernels)."""

IDS_ONLY = {"cache", "scheduler"}
"""Layers that hold ids and counts, and so have no use for numpy."""


class Offence(NamedTuple):
    path: Path
    line: int
    message: str


class Import(NamedTuple):
    line: int
    module: str
    """Dotted, absolute."""


def check_tree(root: Path) -> list[Offence]:
    """All offences under a package folder, by file and line."""
    return [offence for path in sorted(root.rglob("*.py")) for offence in check_file(path, root)]


def check_file(path: Path, root: Path) -> list[Offence]:
    source = path.read_text(encoding="utf-8")
    tree = ast.parse(source, str(path))
    found = [*check_imports(path, root, tree), *check_lengths(path, source, tree)]
    return sorted(found, key=lambda offence: offence.line)


def check_imports(path: Path, root: Path, tree: ast.Module) -> Iterator[Offence]:
    layer = layer_of(path.relative_to(root).with_suffix("").parts)
    if layer not in MAY_IMPORT and layer not in EVERYONE_MAY:
        yield Offence(
            path, 1, f"{layer} has no place in the import order; give it one in {Path(__file__).name}"
        )
        return
    for line, module in imports_of(tree, path, root):
        if module.split(".")[0] == "numpy" and layer in IDS_ONLY:
            yield Offence(path, line, f"{layer} holds ids only and must not import numpy")
        if module.split(".")[0] == PACKAGE and not is_allowed(layer, module):
            yield Offence(path, line, f"{layer} must not import {module}")


def is_allowed(layer: str, module: str) -> bool:
    """Whether a module of ours may be imported from `layer`."""
    parts = module.split(".")[1:] or ["__init__"]
    target = layer_of(tuple(parts))
    if target == layer:
        return True
    allowed = MAY_IMPORT.get(layer, set())
    if layer != "kernels":
        allowed = allowed | EVERYONE_MAY
    return target in allowed or ".".join(parts[:2]) in allowed


def layer_of(parts: tuple[str, ...]) -> str:
    """The folder, or the module where it stands at the top of the package."""
    return parts[0]


def imports_of(tree: ast.Module, path: Path, root: Path) -> Iterator[Import]:
    """Every import, wherever it stands; `from octavo.x import y` counts as octavo.x.y where y is a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (Import(node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = absolute(node, path, root)
            for alias in node.names:
                yield Import(
                    node.lineno, f"{base}.{alias.name}" if is_module(base, alias.name, root) else base
                )


def absolute(node: ast.ImportFrom, path: Path, root: Path) -> str:
    if not node.level:
        return node.module or ""
    package = (PACKAGE, *path.relative_to(root).parent.parts)
    return ".".join((*package[: len(package) - node.level + 1], *((node.module,) if node.module else ())))


def is_module(base: str, name: str, root: Path) -> bool:
    package, *folders = base.split(".")
    path = root.joinpath(*folders, name)
    return package == PACKAGE and (path.is_dir() or path.with_suffix(".py").is_file() or name == "_native")


def check_lengths(path: Path, source: str, tree: ast.Module) -> Iterator[Offence]:
    num_lines = source.count("\n")
    if num_lines > MAX_FILE_LINES:
        yield Offence(
            path, MAX_FILE_LINES + 1, f"the file has {num_lines} lines, at most {MAX_FILE_LINES} may stand"
        )
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > MAX_FUNCTION_LINES:
                message = f"{node.name} has {length} lines, at most {MAX_FUNCTION_LINES} may stand"
                yield Offence(path, node.lineno, message)


def main(arguments: list[str]) -> int:
    root = Path(arguments[0]) if arguments else Path(__file__).parents[1] / "src" / PACKAGE
    offences = check_tree(root)
    for path, line, message in offences:
        print(f"{path}:{line}: {message}")
    return 1 if offences else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
