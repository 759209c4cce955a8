"""A folder whose tokenizer is absent, or another model's, is refused by every job that reads text."""

import pytest
from command_line import kprune, write_checkpoint, write_table
from task_data import load_tokenizer
from uneven_model import change_config

from kprune.checkpoints.files import TOKENIZER_FILES
from kprune.checkpoints.source import Source
from kprune.errors import BadCheckpoint


@pytest.fixture
def folder(tmp_path):
    return write_checkpoint(tmp_path / "model", num_labels=3)


def without_tokenizer(folder):
    for name in (*TOKENIZER_FILES, "tokenizer_config.json", "special_tokens_map.json"):
        (folder / name).unlink(missing_ok=True)


def with_few_tokens(folder):
    without_tokenizer(folder)
    (folder / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n")


def with_many_tokens(folder):
    tokenizer = load_tokenizer().__class__.from_pretrained(folder)
    tokenizer.add_tokens(["one-more"])
    tokenizer.save_pretrained(folder)


DAMAGES = {
    without_tokenizer: "has no tokenizer, so the model cannot read text; add its files",
    with_few_tokens: "has 5 tokens, and the model a vocabulary of 30522; use the tokenizer",
    with_many_tokens: "has a token number 30522, and the model 30522 embeddings; use the tokenizer",
}


def test_a_tokenizer_that_fits_is_loaded(folder):
    assert Source(folder).load_tokenizer().get_vocab() == load_tokenizer().get_vocab()


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_a_tokenizer_that_does_not_fit_is_refused(damage, folder):
    damage(folder)
    with pytest.raises(BadCheckpoint, match=DAMAGES[damage]):
        Source(folder).load_tokenizer()


def test_a_padded_vocabulary_is_accepted(folder):
    change_config(folder, vocab_size=30528)
    assert len(Source(folder).load_tokenizer()) == 30522


@pytest.mark.parametrize("command", ["prune", "evaluate"])
@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_commands_refuse_it(command, damage, folder, tmp_path):
    damage(folder)
    table = write_table(tmp_path / "table.csv")
    data = ("--data", table, "--text-column", "text", "--label-column", "verdict")
    out = (tmp_path / "out", "--reduction", 0.5, "--tokens", 500) if command == "prune" else ()
    column = ("--data", table, "--column", "text") if command == "prune" else data
    result = kprune(command, folder, *out, *column)
    assert result.exit_code == 1
    assert DAMAGES[damage] in " ".join(result.stderr.split())
    assert not (tmp_path / "out").exists()
