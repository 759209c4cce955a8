"""The card of a folder in the hub layout; tests/deploy/test_hub_exporter.py runs its snippets."""

import ast
import re
from pathlib import Path

import hub_sources
import huggingface_hub
import pytest
import tiny
from task_data import load_tokenizer

from kprune.checkpoints.source import Source
from kprune.deploy.exported import Graph
from kprune.deploy.hub_card import hub_card, sections
from kprune.deploy.hub_folder import Served

GUIDE = Path(__file__).parents[2] / "docs/serving.md"


def served(folder: Path, kind: str, **config: object) -> Served:
    hub_sources.write_json(folder / "config.json", {"model_type": "bert", **config})
    pooling = "mean" if kind == "embedding" else None
    return Served(Source(folder, name="mine"), tiny.tiny_model("bert", kind), load_tokenizer(), pooling, 48)


@pytest.mark.parametrize("kind", tiny.KIND_NAMES)
def test_every_kind_has_snippets_that_are_code(kind, tmp_path):
    found = sections(served(tmp_path, kind), "small")
    titles = [section.title for section in found]
    assert {"ONNX Runtime", "OpenVINO", "optimum", "transformers.js"} < set(titles)
    assert ("fastembed" in titles) == (kind == "embedding")
    serves = kind in ("embedding", "classification", "multi-label classification", "regression")
    assert ("Text Embeddings Inference" in titles) == serves
    for section in found:
        assert not re.search(r"\b(FOLDER|TASK|OUTPUT|CLASS|FILE|BACKEND|WIDTH|TEXTS|ENCODED)\b", section.code), (
            section.title
        )
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


def test_the_guide_shows_the_snippets_of_the_card(tmp_path):
    """Documents cannot run what needs other packages, so their code is the card's, which is run elsewhere."""
    embedder = served(tmp_path / "embedder", "embedding")
    reranker = served(tmp_path / "reranker", "regression", sentence_transformers={"activation_fn": "torch.nn.Sigmoid"})
    cards = [each.code.strip() for model in (embedder, reranker) for each in sections(model, "served")]
    shown = re.findall(r"```(?:py|javascript|sh)\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    assert len(shown) > 6
    for code in shown:
        assert code.strip() in cards, code
