"""`benchmarks/opt.py` on a tiny OPT: all of it runs, resumes, and its figures are those of plain transformers."""

import json
import math
import sys
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from command_line import write_decoder
from task_data import load_decoder_tokenizer
from transformers import AutoModelForCausalLM

from kprune.data.calibration import python_documentation

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """A results file of two runs, and what the second one printed."""
    sys.path.insert(0, str(BENCHMARKS))
    try:
        from opt import main
    finally:
        sys.path.remove(str(BENCHMARKS))
    folder = tmp_path_factory.mktemp("opt")
    model = write_decoder(folder / "dense", name="opt")
    sample, test = folder / "sample.txt", folder / "test.txt"
    texts = python_documentation()
    sample.write_text("\n".join(texts[:150]))
    test.write_text("\n".join(texts[150:250]))
    grid = ["--model", model, "--sample", sample, "--test", test, "--tokens", 3000, "--limit", 2, "--seed", 0]
    grid += ["--reduction", 0.3, "--method", "kprune", "--method", "flap"]
    for more in ([], ["--heal", "1x"]):
        result = CliRunner().invoke(main, [str(each) for each in [folder / "opt.jsonl", *grid, *more]])
        assert result.exit_code == 0, result.output
    return folder, result.output


def test_every_cell_has_one_line_and_a_second_run_adds_the_missing_ones(results):
    folder, output = results
    lines = [json.loads(line) for line in (folder / "opt.jsonl").read_text().splitlines()]
    found = [(line["method"], line["heal"], line["reduction"]) for line in lines]
    assert found == [("dense", None, 0.0), ("kprune", None, 0.3), ("flap", None, 0.3), ("kprune", "1x", 0.3)]
    assert all(line["flops"][1] < line["flops"][0] for line in lines[1:])
    assert "kprune, healed 1x" in output


def test_the_dense_perplexity_is_that_of_plain_transformers(results):
    folder, _ = results
    line = json.loads((folder / "opt.jsonl").read_text().splitlines()[0])
    rows = (folder / "test.txt").read_text().splitlines()
    model = AutoModelForCausalLM.from_pretrained(folder / "dense").eval()
    length = model.config.max_position_embeddings
    ids = torch.tensor(load_decoder_tokenizer()("\n\n".join(rows))["input_ids"][: 2 * length]).view(2, length)
    with torch.no_grad():
        losses = [float(model(row[None], labels=row[None]).loss) for row in ids]
    assert line["perplexity"]["test.txt"]["value"] == pytest.approx(math.exp(sum(losses) / 2), rel=1e-4)
