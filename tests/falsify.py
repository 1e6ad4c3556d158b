"""Deletes each row of each table of `core` and `engines` in turn, and sees a unit test fail: part of `make mutants`.

mutmut changes what stands in functions and leaves module tables alone; here they are. A row is an element of a dict,
tuple, list or set that a module-level name stands for, or of a local `table`. Exits 1 where fewer than 95 % are
noticed, or where a row that is not noticed is not named in docs/testing.md with its reason.
"""

from __future__ import annotations

import ast
import copy
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("factory_watchdog/core", "factory_watchdog/engines")
REASONS = ROOT / "docs/testing.md"
NEEDED = 0.95
"""Share of the rows that a test has to notice."""

TIME = 120.0
"""Seconds for the unit tests on one row: they take a tenth of it, and a row that makes them hang is noticed too."""

Container = ast.Dict | ast.Tuple | ast.List | ast.Set

LOCAL_TABLE = "table"
"""What a table inside a function is called."""


@dataclass(frozen=True)
class Row:
    """One row: where it stands, and the module without it."""

    module: Path
    name: str
    without: str


def main() -> int:
    """Delete them all, one at a time; 1 where too many stay unnoticed."""
    every = [row for package in PACKAGES for module in sorted((ROOT / package).glob("*.py")) for row in rows(module)]
    folders: SimpleQueue[Path] = SimpleQueue()
    workers = os.cpu_count() or 1
    with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor(workers) as pool:
        for number in range(workers):
            folders.put(copied(Path(scratch) / str(number)))
        noticed = list(pool.map(lambda row: is_noticed(row, folders), every))
    missed = [row.name for row, seen in zip(every, noticed, strict=True) if not seen]
    reasons = REASONS.read_text(encoding="utf-8") if REASONS.exists() else ""
    for name in missed:
        print(f"not noticed{'' if name in reasons else ', and no reason in docs/testing.md'}: {name}")
    share = 1 - len(missed) / len(every)
    print(f"{len(every) - len(missed)} of {len(every)} deleted rows were noticed ({share:.1%})")
    return 0 if share >= NEEDED and all(name in reasons for name in missed) else 1


def rows(module: Path) -> Iterator[Row]:
    """Each row of a module's tables, nested ones included."""
    tree = ast.parse(module.read_text(encoding="utf-8"))
    for place, (name, value) in enumerate(tables(tree)):
        for inner, container in enumerate(containers(value)):
            for index in range(len(elements(container))):
                changed = copy.deepcopy(tree)
                twin = list(containers(list(tables(changed))[place][1]))[inner]
                row = ast.unparse(elements(twin)[index])
                delete(twin, index)
                yield Row(module.relative_to(ROOT), f"{module.stem}.{name}: {row[:60]}", ast.unparse(changed))


def tables(tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    """The names that stand for tables, with their values."""
    local = (n for f in tree.body if isinstance(f, ast.FunctionDef) for n in f.body)
    for node in (*tree.body, *(n for n in local if name_of(n) == LOCAL_TABLE)):
        name = name_of(node)
        if name and isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None and name != "__all__":
            yield name, node.value


def name_of(node: ast.stmt) -> str:
    """The name that an assignment gives, empty for everything else."""
    match node:
        case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
            return name
    return ""


def containers(value: ast.expr) -> Iterator[Container]:
    """The literals of a value: itself, the values of a dict, the arguments of a call, both sides of a union."""
    if isinstance(value, Container):
        yield value
    inner: list[ast.expr] = []
    match value:
        case ast.Dict():
            inner = value.values
        case ast.Call():
            inner = [*value.args, *(keyword.value for keyword in value.keywords)]
        case ast.BinOp(op=ast.BitOr()):
            inner = [value.left, value.right]
    for part in inner:
        yield from containers(part)


def elements(container: Container) -> list[ast.expr]:
    """The rows of one literal; of a dict its keys, or its values where another dict is taken over."""
    if isinstance(container, ast.Dict):
        return [k if k is not None else v for k, v in zip(container.keys, container.values, strict=True)]
    return container.elts


def delete(container: Container, index: int) -> None:
    if isinstance(container, ast.Dict):
        del container.keys[index], container.values[index]
    else:
        del container.elts[index]


def copied(folder: Path) -> Path:
    """The project without what is made from it, to be changed."""
    ignored = shutil.ignore_patterns(".*", "__pycache__", "mutants", "build", "dist", "lab", "system")
    shutil.copytree(ROOT, folder, ignore=ignored)
    return folder


def is_noticed(row: Row, folders: SimpleQueue[Path]) -> bool:
    """Whether a unit test fails without the row."""
    folder = folders.get()
    module = folder / row.module
    whole = module.read_text(encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "tests/unit"]
    environment = {**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        module.write_text(row.without, encoding="utf-8")
        return subprocess.run(command, cwd=folder, env=environment, capture_output=True, timeout=TIME).returncode != 0
    except subprocess.TimeoutExpired:
        return True
    finally:
        module.write_text(whole, encoding="utf-8")
        folders.put(folder)


if __name__ == "__main__":
    sys.exit(main())
