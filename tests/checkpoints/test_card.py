"""The model card of a checkpoint."""

import huggingface_hub
import pytest
from uneven_model import uneven_result

from kprune.checkpoints.card import model_card
from kprune.checkpoints.writer import save


@pytest.fixture(scope="module")
def pruned():
    return uneven_result()


def test_a_card_says_what_was_done(pruned, tmp_path):
    folder = save(pruned, tmp_path / "small")
    card = (folder / "README.md").read_text()
    assert f"kprune removed {pruned.reduction:.1%} of the encoder's FLOPs" in card
    assert 'BertForSequenceClassification.from_pretrained("small")' in card
    assert all(f"| {s.layer} | {s.kind} | {len(s.kept)} of {s.units} |" in card for s in pruned.steps)
    assert pruned.config.describe() in card


@pytest.mark.parametrize("library", ["transformers", "sentence-transformers"])
def test_the_hub_reads_the_front_matter(pruned, library):
    is_sentence_transformer = library == "sentence-transformers"
    card = model_card(pruned, source="a/model", folder="small", is_sentence_transformer=is_sentence_transformer)
    data = huggingface_hub.ModelCard(card).data
    assert data.library_name == library
    assert data.tags == ["kprune", "pruned"]
    assert ('SentenceTransformer("small")' in card) == is_sentence_transformer


def test_a_card_has_the_section_of_any_result_and_the_note(pruned):
    class Result:
        def card_section(self) -> str:
            return "## What was lost\n\nNothing.\n"

    card = model_card(
        pruned, source="x", folder="x", is_sentence_transformer=False, evaluation=Result(), note="Twice as fast."
    )
    assert "Twice as fast.\n\n## Load\n" in card
    assert "\n\n## What was lost\n\nNothing.\n\n## How it was made\n\n" in card
