"""Builds the wheel, checks what is in it, installs it into an empty environment and runs the demo there.

    python dev/check_wheel.py [--no-demo]

Needs pip and the package index; takes some minutes.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import venv
import zipfile
from email.parser import Parser
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parents[1]


def run(*command: str | Path, cwd: Path | None = None) -> str:
    """What a command prints; raises if it fails."""
    words = [str(word) for word in command]
    return subprocess.run(words, check=True, cwd=cwd, stdout=subprocess.PIPE, text=True).stdout


def build(folder: Path) -> Path:
    """The wheel of the checkout."""
    run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--wheel-dir", folder, ROOT)
    (wheel,) = folder.glob("kprune-*.whl")
    return wheel


def require_complete(wheel: Path) -> None:
    """Raise if a module, py.typed, the licence or the entry point is missing, or if a stray file is in the wheel."""
    source = ROOT / "src"
    expected = {str(path.relative_to(source)) for path in (source / "kprune").rglob("*.py")} | {"kprune/py.typed"}
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        inside = {name for name in names if ".dist-info/" not in name}
        (metadata,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        headers = Parser().parsestr(archive.read(metadata).decode())
    if inside != expected:
        raise SystemExit(f"missing: {sorted(expected - inside)}; not expected: {sorted(inside - expected)}")
    for ending in ("licenses/LICENSE", "entry_points.txt"):
        if not any(name.endswith(ending) for name in names):
            raise SystemExit(f"the wheel has no {ending}")
    print(f"{wheel.name}: {len(inside)} files, py.typed among them; Python {headers['Requires-Python']}")


def run_demo(wheel: Path, folder: Path) -> None:
    """Install the wheel into an empty environment, and run the demo in an empty folder."""
    environment, work = folder / "environment", folder / "work"
    work.mkdir()
    venv.create(environment, with_pip=True)
    python = environment / ("Scripts" if sys.platform == "win32" else "bin") / "python"
    run(python, "-m", "pip", "install", "-q", "-c", ROOT / "constraints.txt", f"{wheel}[demo]")
    run(python, "-c", "import kprune; assert '/site-packages/' in kprune.__file__", cwd=work)
    print(run(python, "-m", "kprune", "demo", "demo", "--tokens", "5000", cwd=work))
    if not (work / "demo/model/model.safetensors").is_file():
        raise SystemExit("the demo wrote no model")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--no-demo", action="store_true", help="build and check the wheel only")
    options = parser.parse_args()
    with TemporaryDirectory() as folder:
        wheel = build(Path(folder))
        require_complete(wheel)
        if not options.no_demo:
            run_demo(wheel, Path(folder))


if __name__ == "__main__":
    main()
