"""The layout of the package: rooms import in one direction, and modules and functions stay short."""

import ast
import re
from pathlib import Path

import pytest

import kprune

SOURCE = Path(__file__).parents[1] / "src/kprune"
TESTS = Path(__file__).parent
ROOMS = [
    {"errors", "config"},
    {"maths"},
    {"runtime"},
    {"models"},
    {"data"},
    {"pruning"},
    {"healing"},
    {"checkpoints"},
    {"evaluation", "deploy"},
    {"jobs"},
    {"report"},
    {"cli"},
]
"""From the lowest to the highest; a room imports from lower ones only."""
LONGEST_MODULE, LONGEST_FUNCTION = 350, 60
USUAL_FUNCTION, SHARE_OF_LONGER = 30, 0.05
MODULES = sorted(SOURCE.rglob("*.py"))
HOOK_MODULES = {
    "canonical",
    "gates",
    "head_bias",
    "hooks",
    "layer_trace",
    "passes",
    "first_token",
    "sublayer",
    "standalone",
}


def name_of(path: Path) -> str:
    return str(path.relative_to(SOURCE))


def room_of(path: Path) -> str:
    parts = path.relative_to(SOURCE).parts
    return parts[0] if len(parts) > 1 else path.stem


def imported(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            names |= {f"{module}.{alias.name}" for alias in node.names} if module == "kprune" else {module}
    return names


def imported_rooms(path: Path) -> set[str]:
    return {name.split(".")[1] for name in imported(path) if name.startswith("kprune.")}


def functions(path: Path) -> list[tuple[str, int]]:
    """Names of functions and their lines, signature and docstring included."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.append((node.name, (node.end_lineno or node.lineno) - node.lineno + 1))
    return found


def test_every_room_is_listed():
    rooms = {room_of(path) for path in MODULES} - {"__init__", "__main__"}
    assert rooms == set().union(*ROOMS)


@pytest.mark.parametrize("level", range(len(ROOMS)))
def test_rooms_import_in_one_direction(level):
    lower = set().union(*ROOMS[:level], {"errors"})
    for path in MODULES:
        if room_of(path) in ROOMS[level]:
            extra = imported_rooms(path) - lower - {room_of(path)}
            assert not extra, f"{name_of(path)} imports {sorted(extra)}"


def test_modules_of_a_room_do_not_import_each_other_in_a_circle():
    graph = {}
    for path in MODULES:
        module = "kprune." + name_of(path).removesuffix(".py").replace("/", ".").removesuffix(".__init__")
        graph[module] = {name for name in imported(path) if name.startswith("kprune.")}
    done: set[str] = set()

    def visit(module: str, above: tuple[str, ...]) -> None:
        assert module not in above, " -> ".join((*above, module))
        if module not in done:
            for other in graph.get(module, ()):
                visit(other, (*above, module))
            done.add(module)

    for module in graph:
        visit(module, ())


def test_the_maths_imports_only_torch():
    for path in (SOURCE / "maths").glob("*.py"):
        outside = {name for name in imported(path) if not name.startswith("kprune.maths")}
        assert outside <= {"torch", "__future__"}, path.name


def test_jobs_and_lower_rooms_do_not_print():
    for path in MODULES:
        if room_of(path) not in ("report", "cli", "__init__", "__main__"):
            names = {node.id for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Name)}
            assert "print" not in names, name_of(path)
            assert not imported(path) & {"click", "rich"}, name_of(path)


def test_hooks_are_registered_in_the_models_room_only():
    for path in MODULES:
        if path.stem not in HOOK_MODULES:
            assert "register_forward" not in path.read_text(), name_of(path)


def test_only_the_models_room_knows_module_paths():
    for path in MODULES:
        if room_of(path) not in ("models", "deploy", "checkpoints"):
            assert "get_submodule" not in path.read_text(), name_of(path)


def test_modules_are_short():
    assert {name_of(path): n for path in MODULES if (n := len(path.read_text().splitlines())) > LONGEST_MODULE} == {}


def test_functions_are_short():
    lengths = {f"{name_of(path)}:{name}": length for path in MODULES for name, length in functions(path)}
    assert {name: length for name, length in lengths.items() if length > LONGEST_FUNCTION} == {}
    longer = [name for name, length in lengths.items() if length > USUAL_FUNCTION]
    assert len(longer) <= SHARE_OF_LONGER * len(lengths), longer


def test_no_module_has_the_name_of_a_public_function():
    public = {name for name in kprune.__all__ if callable(getattr(kprune, name))}
    assert public & {path.stem for path in MODULES} == set()


def test_tests_mirror_the_rooms():
    rooms = {path.name for path in TESTS.iterdir() if path.is_dir() and list(path.glob("test_*.py"))}
    assert rooms == {path.name for path in SOURCE.iterdir() if list(path.glob("*.py"))}
    names = [path.name for path in TESTS.rglob("test_*.py")]
    assert len(names) == len(set(names))


def test_tests_import_no_private_names():
    for path in TESTS.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.ImportFrom) else []
            assert not [name for name in names if name.startswith("_")], path.name


def test_contributing_shows_every_module_of_the_tree():
    text = (SOURCE.parents[1] / "CONTRIBUTING.md").read_text()
    missing = [name_of(path) for path in MODULES if path.stem not in ("__init__", "__main__") and path.stem not in text]
    assert missing == []


def test_every_test_that_the_documentation_names_exists():
    tests = "".join(path.read_text() for path in TESTS.rglob("test_*.py"))
    named = re.findall(r"`(test_\w+)`", (SOURCE.parents[1] / "docs/reliability.md").read_text())
    assert len(named) > 20
    assert [name for name in named if f"def {name}(" not in tests] == []
