"""Runtimes by name."""

import pytest
import torch

from kprune import KpruneError
from kprune.deploy.runtimes import RUNTIMES, runtime_named
from kprune.runtime.devices import torch_threads


def test_a_runtime_that_is_not_installed_is_named(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "openvino" else object())
    with pytest.raises(KpruneError, match=r"the runtime openvino is not installed: pip install 'kprune\[openvino\]'"):
        runtime_named("openvino")
    assert runtime_named("torch") is RUNTIMES["torch"]


def test_an_unknown_runtime_is_refused_with_the_known_ones():
    with pytest.raises(KpruneError, match="there is no runtime 'tensorrt'; use one of torch, compile"):
        runtime_named("tensorrt")


def test_threads_are_given_back():
    before = torch.get_num_threads()
    with torch_threads(3):
        assert torch.get_num_threads() == 3
    assert torch.get_num_threads() == before
