"""`import kprune` makes plain `from_pretrained` read a pruned folder, whatever was imported first."""

import subprocess
import sys

import pytest
from task_data import load_tokenizer
from uneven_model import uneven_result

TRANSFORMERS = "from transformers import AutoModel"
SENTENCES = "from sentence_transformers import SentenceTransformer"
LOAD = "model = AutoModel.from_pretrained(folder)"
LOAD_SENTENCES = "model = SentenceTransformer(folder, device='cpu')"


@pytest.fixture(scope="module")
def pruned():
    return uneven_result()


@pytest.fixture(scope="module")
def folder(pruned, tmp_path_factory):
    folder = tmp_path_factory.mktemp("pruned") / "small"
    pruned.model.save_pretrained(folder)
    load_tokenizer().save_pretrained(folder)
    return folder


@pytest.mark.parametrize(
    "lines",
    [
        ("import kprune", TRANSFORMERS, LOAD),
        pytest.param(
            ("import kprune", "import transformers", "AutoModel = transformers.AutoModel", LOAD), marks=pytest.mark.slow
        ),
        pytest.param(("import transformers", "import kprune", TRANSFORMERS, LOAD), marks=pytest.mark.slow),
        (TRANSFORMERS, "from transformers import BertModel", "import kprune", LOAD),
        ("import kprune", SENTENCES, LOAD_SENTENCES),
        pytest.param((SENTENCES, "import kprune", LOAD_SENTENCES), marks=pytest.mark.slow),
    ],
    ids=" / ".join,
)
def test_from_pretrained_reads_a_pruned_folder_in_any_order(lines, folder, pruned):
    count = "print(sum(each.numel() for each in model.parameters()))"
    code = "\n".join(["import sys", "folder = sys.argv[1]", *lines, count])
    done = subprocess.run([sys.executable, "-c", code, folder], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    head = sum(parameter.numel() for parameter in pruned.model.classifier.parameters())
    assert int(done.stdout) == pruned.parameters[1] - head


def test_an_import_of_transformers_that_fails_is_watched_again():
    code = """
import sys
sys.modules["safetensors.torch"] = None  # transformers.modeling_utils imports it
import kprune
try:
    import transformers.modeling_utils
except ImportError:
    pass
else:
    raise SystemExit("the import did not fail")
del sys.modules["safetensors.torch"]
import transformers.modeling_utils
from transformers.quantizers.auto import AUTO_QUANTIZER_MAPPING
assert "kprune" in AUTO_QUANTIZER_MAPPING
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_one_watcher_is_enough():
    code = """
import importlib, sys
import kprune
from kprune.checkpoints.registration import Watcher
importlib.reload(kprune)
watchers = lambda: sum(isinstance(finder, Watcher) for finder in sys.meta_path)
assert watchers() == 1
import transformers.modeling_utils
assert watchers() == 0
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
