"""Imports point one way, and the maths knows nothing of models."""

import ast
import re
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src/kprune"
MATHS = {"gram", "knowledge", "compensate", "search", "refit", "cost"}
LEVELS = [
    {"errors", "settings", "metrics", "gram", "ranks", "shelf"},
    (MATHS - {"gram"}) | {"memory"},
    {"families", "sample"},
    {"sublayer", "outputs", "data", "squad"},
    {"observe", "record", "budget", "tasks", "pruned", "shapes", "timing", "graphs"},
    {"measure", "streams", "plugin", "labels", "bars", "runtimes"},
    {"checkpoint"},
    {"prune", "exams"},
    {"evaluate", "latency"},
    {"drop", "card", "baselines"},
    {"store", "methods"},
    {"compare", "export", "speed"},
    {"report"},
    {"inspection"},
    {"demo", "options", "plots"},
    {"__init__", "cli", "__main__"},
]


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            found |= {f"{module}.{alias.name}" for alias in node.names} if module == "kprune" else {module}
    return found


def own(path: Path) -> set[str]:
    return {name.split(".")[1] for name in imports(path) if name.startswith("kprune.")}


def files(name: str) -> list[Path]:
    """The files of a module, or of a folder of them."""
    return [SOURCE / f"{name}.py"] if (SOURCE / f"{name}.py").exists() else sorted((SOURCE / name).glob("*.py"))


def test_every_module_has_a_level():
    names = {path.stem for path in SOURCE.glob("*.py")} | {path.parent.name for path in SOURCE.glob("*/*.py")}
    assert names == set().union(*LEVELS)


def test_imports_point_one_way():
    for number, level in enumerate(LEVELS):
        below = set().union(*LEVELS[:number])
        for name in level:
            used = set().union(*map(own, files(name))) - {"errors", name}
            allowed = below if name not in ("__main__", "cli") else below | {"cli"}
            assert used <= allowed, f"{name} imports {sorted(used - allowed)}"


def test_the_maths_imports_only_torch_and_sums():
    for name in MATHS:
        assert imports(SOURCE / f"{name}.py") <= {"torch", "__future__", "kprune.gram"}, name


def test_only_one_module_hooks():
    for path in SOURCE.rglob("*.py"):
        if path.stem != "observe":
            assert "register_forward" not in path.read_text(), path.stem


def test_pruning_neither_prints_nor_writes():
    for name in ("prune", "measure", "streams", "observe", "sublayer", *MATHS):
        names = {
            node.id for node in ast.walk(ast.parse((SOURCE / f"{name}.py").read_text())) if isinstance(node, ast.Name)
        }
        assert not names & {"print", "open"}, name


def test_every_test_that_the_documentation_names_is_there():
    tests = "".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py"))
    named = re.findall(r"`(test_\w+)`", (SOURCE.parents[1] / "docs/reliability.md").read_text())
    assert len(named) > 20
    assert [name for name in named if f"def {name}(" not in tests] == []
