"""Folders with a GGUF file: what is in them, how they are checked, what is refused."""

import json
import logging
import sys

import pytest
import torch
from command_line import kprune, write_decoder
from gguf_models import GgufModel
from task_data import load_decoder_tokenizer

from kprune import KpruneError, Source, export
from kprune.data.calibration import python_documentation
from kprune.deploy import gguf_check, gguf_exporter


@pytest.fixture(scope="module")
def decoder(tmp_path_factory):
    return write_decoder(tmp_path_factory.mktemp("decoder") / "dense")


class Reader:
    """In the place of llama.cpp: the file as the architecture is documented, and the tokenizer itself."""

    def __init__(self, path, shift=0.0, extra=()):
        self.model, self.tokenizer = GgufModel(path), load_decoder_tokenizer()
        self.shift, self.extra = shift, list(extra)

    def tokenize(self, text, *, add_bos, special):
        return self.tokenizer(text.decode())["input_ids"] + self.extra

    def eval(self, ids):
        self.scores = self.model.logits(ids).numpy() + self.shift

    def reset(self):
        self.scores = None

    def close(self):
        pass


def install(monkeypatch, **changes):
    """Check files in a `Reader`, whether or not llama.cpp is installed."""
    pytest.importorskip("gguf")
    monkeypatch.setattr(gguf_exporter, "has_llama_cpp", lambda: True)
    monkeypatch.setattr(gguf_check, "start_llama_cpp", lambda path, context: Reader(path, **changes))


def test_a_folder_has_the_file_and_a_readme_with_its_difference(decoder, tmp_path, monkeypatch):
    install(monkeypatch)
    done = kprune("export", decoder, tmp_path / "chat", "--to", "gguf", "--dtype", "float16", "--json")
    assert done.exit_code == 0, done.output
    printed = json.loads(done.stdout)
    assert 1e-6 < printed["difference"] < 1e-2
    assert (printed["texts"], printed["target"]) == (16, "gguf")
    assert {path.name for path in (tmp_path / "chat").iterdir()} == {"model.gguf", "README.md"}
    card = (tmp_path / "chat/README.md").read_text()
    assert 'Llama("model.gguf"' in card
    assert f"On 16 texts its logits differ from torch's by at most {printed['difference']:.2g}" in card
    assert GgufModel(tmp_path / "chat/model.gguf").fields["general.file_type"] == 1
    again = kprune("export", decoder, tmp_path / "chat", "--to", "gguf", "--overwrite")
    assert again.exit_code == 0, again.output
    assert "MB as safetensors); on 16 texts its outputs differ from torch's by at most" in again.output
    assert kprune("bench", tmp_path / "chat").exit_code == 1


def test_without_llama_cpp_the_file_is_written_and_not_compared(decoder, tmp_path, monkeypatch, caplog):
    pytest.importorskip("gguf")
    monkeypatch.setattr(gguf_exporter, "has_llama_cpp", lambda: False)
    with caplog.at_level(logging.WARNING):
        exported = export(decoder, tmp_path / "chat", to="gguf")
    assert exported.difference is None
    assert "not compared with torch: llama.cpp's package llama-cpp-python is not installed" in caplog.text
    assert "It was not compared with torch." in (tmp_path / "chat/README.md").read_text()
    ids = load_decoder_tokenizer()("Names are bound.")["input_ids"]
    model = Source(decoder).load()
    with torch.no_grad():
        wanted = model(torch.tensor([ids])).logits[0]
    assert torch.allclose(GgufModel(exported.file).logits(ids), wanted, atol=1e-4)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"shift": 1.0}, r"the gguf file differs from torch by .*, more than 0\.001; nothing was written"),
        ({"shift": float("nan")}, r"the gguf file differs from torch by nan"),
        ({"extra": [3]}, "llama.cpp reads .* as other tokens than the tokenizer; nothing was written"),
    ],
)
def test_a_file_that_is_wrong_is_not_left_there(changes, sentence, decoder, tmp_path, monkeypatch):
    install(monkeypatch, **changes)
    with pytest.raises(KpruneError, match=sentence):
        export(decoder, tmp_path / "chat", to="gguf", texts=python_documentation()[:2])
    assert not list(tmp_path.iterdir())


def test_a_missing_package_is_named(decoder, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(KpruneError, match=r"gguf needs gguf: pip install 'kprune\[gguf\]'"):
        export(decoder, tmp_path / "chat", to="gguf")


@pytest.mark.parametrize(
    ("options", "code", "sentence"),
    [
        (("--to", "gguf", "--int8"), 2, "GGUF files are written in float32 or float16; leave --int8 out"),
        (("--to", "gguf", "--text", "x.txt"), 2, "a GGUF file is compared with torch, not evaluated"),
        (("--dtype", "float16"), 2, "graphs have float32 weights, not float16; leave --dtype out, or add --to gguf"),
        (("--to", "gguf", "--dtype", "bfloat16"), 1, "cannot have weights in bfloat16; use one of float32, float16"),
    ],
)
def test_options_that_do_not_fit_get_a_sentence(options, code, sentence, decoder, tmp_path):
    pytest.importorskip("gguf")
    result = kprune("export", decoder, tmp_path / "chat", *options)
    assert (result.exit_code, sentence in " ".join(result.output.split())) == (code, True), result.output
    assert not list(tmp_path.iterdir())
