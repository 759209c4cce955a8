"""torch's modes are switched off during a run, and are back after it."""

import pytest
import tiny
import torch
from task_data import load_tokenizer

import kprune
from kprune.data.calibration import python_documentation
from kprune.runtime.computation_mode import ordinary_mode


def is_ordinary() -> bool:
    product = torch.ones(2, 2) @ torch.ones(2, 2)
    return product.dtype == torch.float32 and not product.is_inference()


@pytest.mark.parametrize("mode", [lambda: torch.autocast("cpu", dtype=torch.bfloat16), torch.inference_mode])
def test_modes_are_off_inside_and_on_again_after_it(mode):
    with mode():
        assert not is_ordinary()
        with ordinary_mode():
            assert is_ordinary()
        with pytest.raises(ZeroDivisionError), ordinary_mode():
            1 / 0  # noqa: B018
        assert not is_ordinary()
    assert is_ordinary()


@pytest.mark.parametrize("mode", [lambda: torch.autocast("cpu", dtype=torch.bfloat16), torch.inference_mode])
def test_an_evaluation_is_the_same_in_every_mode(mode):
    tokenizer = load_tokenizer()
    dense, other = (tiny.tiny_model(vocab_size=len(tokenizer), pad_token_id=0, seed=seed) for seed in (0, 1))
    test = kprune.Test("texts", None, [(text[:80],) for text in python_documentation()[:24]], None)
    expected = kprune.evaluate(other, tokenizer, test, against=dense)
    with mode():
        found = kprune.evaluate(other, tokenizer, test, against=dense)
    assert found.fidelity == expected.fidelity
