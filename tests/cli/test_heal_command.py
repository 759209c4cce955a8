import json

import pytest
import torch
from command_line import kprune, write_decoder
from safetensors.torch import load_file
from transformers import AutoModelForSequenceClassification

pytest_plugins = ["command_fixtures"]

PRUNE = ("--reduction", 0.6, "--tokens", 1000, "--align", 1)
HEAL = ("--heal", "2x", "--heal-rate", 1e-3, "--step-tokens", 100)


def test_prune_and_heal_in_one_command(checkpoint, text, small, tmp_path):
    out = tmp_path / "healed"
    result = kprune("prune", checkpoint, out, "--text", text, *PRUNE, *HEAL, "--json")
    assert result.exit_code == 0, result.output
    (printed,) = json.loads(result.stdout)["healed"]
    assert printed["loss"][1] < printed["loss"][0]
    assert printed["heal"] == "2x"
    pruned, healed = (load_file(folder / "model.safetensors") for folder in (small, out))
    assert {name: value.shape for name, value in pruned.items()} == {n: value.shape for n, value in healed.items()}
    assert AutoModelForSequenceClassification.from_pretrained(out).dtype == torch.float16  # as it came
    assert "healed without labels" in (out / "README.md").read_text()
    assert "Nothing was retrained" not in (out / "README.md").read_text()


def test_heal_without_a_value_takes_the_default(checkpoint, text, tmp_path):
    out = tmp_path / "healed"
    result = kprune("prune", checkpoint, out, "--text", text, *PRUNE, "--heal", "--step-tokens", 500)
    assert result.exit_code == 0, result.output
    assert "healed  " in result.output
    history = json.loads((out / "config.json").read_text())["quantization_config"]["history"]
    assert history[-1]["healed"][0]["heal"] == "4x"


def test_a_model_that_was_pruned_earlier(checkpoint, text, small, tmp_path):
    out = tmp_path / "healed"
    arguments = ("heal", small, out, "--against", checkpoint, "--text", text, "--tokens", 1000, *HEAL)
    result = kprune(*arguments, "--evaluate", "--json", "--checkpoint", tmp_path / "journal")
    assert result.exit_code == 0, result.output
    printed = json.loads(result.stdout)
    assert printed["loss"][1] < printed["loss"][0]
    assert printed["evaluation"]["fidelity"]
    assert not (tmp_path / "journal").exists()
    before, after = (json.loads((folder / "config.json").read_text()) for folder in (small, out))
    healing = after["quantization_config"]["history"][-1].pop("healed")
    assert healing[0]["steps"] == printed["steps"]
    assert after == before
    card = (out / "README.md").read_text()
    assert "## Healing" in card
    assert card.count("## What was lost") == 1
    again = kprune(*arguments)
    assert again.exit_code == 1
    assert "exists; choose another folder" in again.output


def test_a_causal_language_model(text, tmp_path):
    dense = write_decoder(tmp_path / "dense")
    options = ("--text", text, "--tokens", 1000, "--max-length", 64)
    result = kprune("prune", dense, tmp_path / "out", *options, "--reduction", 0.5, "--align", 1, *HEAL)
    assert result.exit_code == 0, result.output
    assert "healed" in result.output


def test_a_drop_is_that_of_healed_models(checkpoint, table, tmp_path, monkeypatch):
    from kprune.jobs import max_drop

    healed, judged = [], []
    heal, examine = max_drop.healed, max_drop.evaluate_against_dense
    monkeypatch.setattr(max_drop, "healed", lambda *each: healed.append(heal(*each)) or healed[-1])
    monkeypatch.setattr(max_drop, "evaluate_against_dense", lambda *each: judged.append(each[1]) or examine(*each))
    data = ("--data", table, "--column", "text", "--label-column", "verdict", "--no-guard")
    options = ("--max-drop", 90, "--tokens", 1000, "--align", 1, "--heal", "1x", "--step-tokens", 300)
    result = kprune("prune", checkpoint, tmp_path / "out", *data, *options)
    assert result.exit_code == 0, result.output
    assert len(judged) == len(healed) > 1
    assert all(model is each.model and each.healed for model, each in zip(judged, healed, strict=True))


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (("--heal", "5"), 2, "5x are five passes, 10m ten minutes"),
        (("--heal", "1x", "--heal-rate", -1), 1, "heal_rate is -1"),
        (("--heal", "1x", "--held-out", 0.95), 1, "held_out is 0.95"),
    ],
)
def test_wrong_options_are_refused_before_any_work(options, code, message, checkpoint, text, tmp_path):
    result = kprune("prune", checkpoint, tmp_path / "out", "--text", text, *PRUNE, *options)
    assert result.exit_code == code
    assert message in " ".join(result.output.split())
    assert not (tmp_path / "out").exists()


def test_models_with_other_tokenizers_are_refused(small, text, tmp_path):
    other = write_decoder(tmp_path / "other", "classification")
    result = kprune("heal", small, tmp_path / "out", "--against", other, "--text", text)
    assert result.exit_code == 1
    assert "different tokenizers" in " ".join(result.output.split())
