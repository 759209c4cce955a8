import json
from pathlib import Path

import pytest
from command_line import kprune
from transformers import AutoModel


@pytest.mark.real
def test_the_demo_runs_on_the_real_model(tmp_path, monkeypatch):
    monkeypatch.setattr("kprune.jobs.demo.HELD_OUT", 32)
    monkeypatch.setattr("kprune.jobs.demo.ROUNDS", 2)
    result = kprune("demo", tmp_path / "demo", "--tokens", 2000, "--reduction", 0.3, "--json")
    assert result.exit_code == 0, result.output
    printed = json.loads(result.stdout)
    assert printed["flops"][1] <= 0.7 * printed["flops"][0]
    assert printed["cosine"] > 0.7
    assert len(printed["nearest"]) == 3
    assert Path(printed["picture"]).read_bytes().startswith(b"\x89PNG")
    assert AutoModel.from_pretrained(tmp_path / "demo/model").num_parameters() == printed["parameters"][1]
