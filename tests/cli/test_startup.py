"""Help, version, a typo and shell completion answer before any heavy library is imported."""

import os
import subprocess
import sys

import pytest

HEAVY = ("torch", "transformers", "datasets", "pandas", "sklearn", "scipy", "rich", "matplotlib", "huggingface_hub")
MOST_SECONDS = 0.5
CODE = """
import resource, sys
from kprune.cli.main import main
try:
    main(sys.argv[1:], prog_name="kprune")
finally:
    used = resource.getrusage(resource.RUSAGE_SELF)
    print("heavy:", *[name for name in %r if name in sys.modules], file=sys.stderr)
    print("seconds:", used.ru_utime + used.ru_stime, file=sys.stderr)
""" % (HEAVY,)  # noqa: UP031
COMMANDS = (
    *("prune", "sweep", "report", "check", "evaluate", "bench", "export", "compare", "plot"),
    *("tasks", "inspect", "families", "demo"),
)
QUICK = [
    ("--help",),
    ("--version",),
    ("prun",),
    ("prune", "--reductoin", "0.5"),
    *((name, "--help") for name in COMMANDS),
]


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", CODE, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
    )


def require_quick(done: subprocess.CompletedProcess[str]) -> None:
    heavy, seconds = done.stderr.splitlines()[-2:]
    assert heavy == "heavy:"
    assert float(seconds.split()[1]) <= MOST_SECONDS


@pytest.mark.parametrize("arguments", QUICK, ids=" ".join)
def test_what_needs_no_model_is_quick(arguments):
    done = run(*arguments)
    require_quick(done)
    assert done.returncode == (0 if arguments[-1] in ("--help", "--version") else 2)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("kprune eva", "evaluate"),
        ("kprune prune --crit", "--criterion"),
        ("kprune prune --criterion fi", "fisher"),
        ("kprune prune --runtime on", "onnxruntime"),
        ("kprune export --to ope", "openvino"),
    ],
)
def test_the_shell_completes_quickly(words, expected):
    done = run(_KPRUNE_COMPLETE="bash_complete", COMP_WORDS=words, COMP_CWORD=str(len(words.split()) - 1))
    require_quick(done)
    assert f"plain,{expected}" in done.stdout.splitlines()


def test_importing_the_package_imports_nothing_heavy():
    code = f"import kprune, sys; print([name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


INTERRUPTED = """
import os, runpy, signal, sys

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job starts with SIGINT ignored

class Interrupt:
    def find_spec(self, name, path, target=None):
        if name == moment:
            sys.meta_path.remove(self)
            os.kill(os.getpid(), signal.SIGINT)

moment = sys.argv[1]
sys.meta_path.insert(0, Interrupt())
sys.argv[1:] = ["evaluate", "nowhere", "--text", "a.txt"]
runpy.run_module("kprune", run_name="__main__")
"""


@pytest.mark.parametrize(
    "moment",
    [
        "click",
        "kprune.config",
        "transformers",
        "rich.logging",
        "torch",
        "torch._C",
        "torch.nn",
        "kprune.models.outputs",
    ],
)
def test_an_interrupt_during_imports_is_one_line(moment):
    done = subprocess.run([sys.executable, "-c", INTERRUPTED, moment], capture_output=True, text=True, check=False)
    assert done.stderr == "kprune: interrupted; no model was written.\n"
    assert (done.returncode, done.stdout) == (130, "")


def test_the_installed_script_enters_where_interrupts_are_caught():
    from importlib.metadata import entry_points

    (script,) = entry_points(group="console_scripts", name="kprune")
    assert script.value == "kprune.__main__:main"
