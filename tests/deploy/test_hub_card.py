"""The card of a folder in the hub layout; tests/deploy/test_hub_exporter.py runs its snippets."""

import ast
import re
from dataclasses import replace
from pathlib import Path

import hub_sources
import huggingface_hub
import pytest
import tiny
from task_data import load_tokenizer
from uneven_graphs import uneven_model

from kprune.checkpoints.source import Source
from kprune.deploy.exported import Graph
from kprune.deploy.hub_card import hub_card, sections
from kprune.deploy.hub_folder import Served
from kprune.deploy.targets import GGUF
from kprune.models.native import become_native
from kprune.models.pruned_shape import describe

GUIDE = Path(__file__).parents[2] / "docs/serving.md"


def served(folder: Path, kind: str, **config: object) -> Served:
    """A pruned model whose config has further entries."""
    hub_sources.write_json(folder / "config.json", {"model_type": "bert", **config})
    pooling = "mean" if kind == "embedding" else None
    model = uneven_model("bert", kind, **config)
    model.config.quantization_config = describe(model, [])
    return Served(Source(folder, name="mine"), model, load_tokenizer(), pooling, 48)


@pytest.mark.parametrize("kind", tiny.KIND_NAMES)
def test_every_kind_has_snippets_that_are_code(kind, tmp_path):
    found = sections(served(tmp_path, kind), "small")
    titles = [section.title for section in found]
    assert {"ONNX Runtime", "OpenVINO", "optimum", "transformers.js"} < set(titles)
    assert ("fastembed" in titles) == (kind == "embedding")
    serves = kind in ("embedding", "classification", "multi-label classification", "regression")
    assert ("Text Embeddings Inference" in titles) == serves
    for section in found:
        assert not re.search(
            r"\b(FOLDER|TASK|OUTPUT|CLASS|FILE|BACKEND|WIDTH|TEXTS|ENCODED|OPTIONS)\b", section.code
        ), section.title
        if section.language == "python":
            ast.parse(section.code)
            assert max(map(len, section.code.splitlines())) <= 120, section.title


def test_a_card_names_its_graphs_and_has_the_hubs_fields(tmp_path):
    graphs = [Graph(tmp_path / "onnx/model.onnx", "onnx", False, 2e-6, 1_500_000)]
    card = hub_card(served(tmp_path, "embedding"), "small", graphs, 64, ["input_ids"], ["sentence_embedding"])
    assert "| `onnx/model.onnx` | float32 | 1.5 | 2e-06 |" in card
    assert "truncates at 48 tokens" in card
    assert "before every text" not in card
    assert huggingface_hub.ModelCard(card).data.library_name == "sentence-transformers"


def test_a_card_names_the_default_prompt_that_other_programs_do_not_add(tmp_path):
    prompts = {"default_prompt_name": "query", "prompts": {"query": "query: "}}
    hub_sources.write_json(tmp_path / "config_sentence_transformers.json", prompts)
    card = hub_card(served(tmp_path, "embedding"), "small", [], 64, [], [])
    assert "sentence-transformers puts 'query: ' before every text; with other programs," in card


def torch_sections(model: Served) -> list[str]:
    return [section.code for section in sections(model, "small") if section.title.endswith("torch")]


@pytest.mark.parametrize("kind", ["embedding", "regression", "token classification"])
def test_torch_imports_kprune_only_where_it_cannot_load_the_weights_otherwise(kind, tmp_path):
    reranker = {"sentence_transformers": {}} if kind == "regression" else {}
    pruned = served(tmp_path / "pruned", kind, **reranker)
    assert all(code.strip().startswith("import kprune\n") for code in torch_sections(pruned))
    assert "torch reads after `import kprune`" in hub_card(pruned, "small", [], 64, [], [])
    (tmp_path / "pruned/modeling_pruned.py").write_text("")
    found = torch_sections(pruned)
    assert all("kprune" not in code and '("small", trust_remote_code=True)' in code for code in found)
    assert "the modeling file of this folder loads it" in hub_card(pruned, "small", [], 64, [], [])
    native = served(tmp_path / "native", kind, **reranker)
    native = replace(native, model=tiny.tiny_model("bert", kind, **reranker))
    become_native(native.model, [])
    found = torch_sections(native)
    assert len(found) > 0
    assert all("kprune" not in code and "trust_remote_code" not in code for code in found)
    assert "`import kprune`" not in hub_card(native, "small", [], 64, [], [])


def test_half_precision_weights_are_read_in_float32(tmp_path):
    for kind, option in (("embedding", 'model_kwargs={"dtype": "float32"}'), ("regression", "dtype=torch.float32")):
        model = served(tmp_path / kind, kind)
        assert "float32" not in torch_sections(model)[0]
        hub_sources.write_json(tmp_path / kind / "config.json", {"model_type": "bert", "dtype": "float16"})
        assert f'("small", {option})' in torch_sections(model)[0]


def test_self_contained_folders_are_loaded_by_auto_classes_which_read_their_file(tmp_path):
    model = served(tmp_path, "token classification")
    assert "BertForTokenClassification.from_pretrained" in torch_sections(model)[0]
    (tmp_path / "modeling_pruned.py").write_text("")
    assert "AutoModelForTokenClassification.from_pretrained" in torch_sections(model)[0]


def test_snippets_of_rerankers_apply_the_activation_or_say_that_they_do_not(tmp_path):
    found = {}
    for name in ("Identity", "Sigmoid", "Tanh"):
        settings = {"sentence_transformers": {"activation_fn": f"torch.nn.{name}"}}
        found[name] = [
            section.code
            for section in sections(served(tmp_path / name, "regression", **settings), "small")
            if section.language != "bash" and "CrossEncoder" not in section.title and "sentence" not in section.title
        ]
        assert len(found[name]) == 5
    assert not any("igmoid" in code or "CrossEncoder" in code for code in found["Identity"])
    assert all("logits.sigmoid()" in code or "1 / (1 + numpy.exp(-outputs))" in code for code in found["Sigmoid"])
    assert all(code.endswith(" logits, to which CrossEncoder applies Tanh") for code in found["Tanh"])


def test_the_guide_shows_the_snippets_of_the_card(tmp_path):
    """Documents cannot run what needs other packages, so their code is the card's, which is run elsewhere."""
    embedder = served(tmp_path / "embedder", "embedding")
    reranker = served(tmp_path / "reranker", "regression", sentence_transformers={"activation_fn": "torch.nn.Sigmoid"})
    cards = [each.code.strip() for model in (embedder, reranker) for each in sections(model, "served")]
    cards.append(GGUF.usage.format(file=f"chat/{GGUF.file}").strip())
    shown = re.findall(r"```(?:py|javascript|sh)\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    assert len(shown) > 6
    for code in shown:
        assert code.strip() in cards, code
