"""`inspect` reads shape and size from the config, and compares the weights' headers with it."""

import shutil

import pytest
import tiny
import torch
import zoo
from safetensors.torch import load_file, save_file
from torch.utils.flop_counter import FlopCounterMode
from uneven_model import BATCHES, uneven_result

import kprune
from kprune.checkpoints.inspection import inspect
from kprune.checkpoints.writer import save
from kprune.errors import BadCheckpoint
from kprune.models.sublayer import find
from kprune.pruning.budgets import total_flops


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save(uneven_result(), tmp_path_factory.mktemp("models") / "small")


def test_a_pruned_folder_has_the_models_shape_and_size(folder):
    result, found = uneven_result(), inspect(folder)
    units = [sublayer.units for sublayer in find(result.model)]
    assert (found.shape.heads, found.shape.neurons) == (units[::2], units[1::2])
    assert (found.shape.dense_heads, found.shape.dense_neurons) == (4, 48)
    assert found.parameters == result.parameters
    assert found.length == result.tokens / result.examples
    assert found.flops == result.flops
    assert found.bytes_on_disk == sum(file.stat().st_size for file in folder.iterdir())


def test_flops_are_counted_for_the_given_length(folder):
    assert inspect(folder, 50.0).flops[1] == total_flops(find(uneven_result().model), 50.0)


def test_a_dense_folder_has_no_history(tmp_path):
    tiny.tiny_model().save_pretrained(tmp_path)
    found = inspect(tmp_path)
    assert found.history == []
    assert found.length == 128.0
    assert found.flops[0] == found.flops[1]


@pytest.mark.parametrize(("name", "are_tied"), [("gpt2", True), ("gpt_neox", False)])
def test_the_vocabulary_of_a_language_model_is_counted_apart(name, are_tied, tmp_path):
    model = zoo.build(name, "causal language model")
    model.save_pretrained(tmp_path)
    found = inspect(tmp_path, 50.0)
    head = model.get_output_embeddings()
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        head(torch.zeros(50, head.in_features))
    weights = sum(each.numel() for _, each in model.named_parameters() if each.dim() == 2 and len(each) == 99)
    assert found.vocabulary.flops == counter.get_total_flops()
    assert found.vocabulary.parameters == weights
    assert (weights == head.weight.numel()) == are_tied


@pytest.mark.parametrize(("family", "kind"), tiny.ALL_CASES)
def test_sound_folders_are_inspected(family, kind, tmp_path):
    model = tiny.tiny_model(family, kind)
    model.save_pretrained(tmp_path / "dense")
    assert inspect(str(tmp_path / "dense")).parameters == (model.num_parameters(), model.num_parameters())
    pruned = kprune.prune(model, BATCHES, reduction=0.85, align=1)
    assert inspect(save(pruned, tmp_path / "small")).parameters == pruned.parameters


def test_weights_of_old_checkpoints_have_other_names(tmp_path):
    tiny.tiny_model().save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    old = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    for new, name in old.items():
        weights = {key.replace(new, name): value for key, value in weights.items()}
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    assert inspect(tmp_path).history == []


@pytest.fixture
def broken(request, folder, tmp_path):
    """A pruned or a dense folder, to be damaged."""
    if request.param == "pruned":
        shutil.copytree(folder, tmp_path / "model")
    else:
        tiny.tiny_model().save_pretrained(tmp_path / "model")
    return tmp_path / "model"


@pytest.mark.parametrize("broken", ["pruned", "dense"], indirect=True)
def test_a_folder_without_weights_is_refused(broken):
    (broken / "model.safetensors").unlink()
    with pytest.raises(BadCheckpoint, match=r"the weights .*model.safetensors are missing; restore"):
        inspect(broken)


@pytest.mark.parametrize("broken", ["pruned", "dense"], indirect=True)
@pytest.mark.parametrize(
    ("other", "message"),
    [
        (lambda: kprune.prune(tiny.tiny_model(), BATCHES, reduction=0.4).model, "do not belong together"),
        (lambda: tiny.tiny_model(intermediate_size=64), "do not belong together"),
        (lambda: tiny.tiny_model(num_hidden_layers=5), "declares 3 layers, and the weights hold 5"),
        (lambda: tiny.tiny_model("distilbert"), "declares 3 layers, and the weights hold 0"),
        (lambda: tiny.tiny_model("roberta"), r"is missing|do not belong together|hold 0"),
        (lambda: tiny.tiny_model("bert", "embedding"), r"is missing|do not belong together"),
    ],
    ids=["pruned otherwise", "wider", "deeper", "distilbert", "roberta", "headless"],
)
def test_weights_of_another_model_are_refused(broken, other, message, tmp_path):
    other().save_pretrained(tmp_path / "other")
    shutil.copy(tmp_path / "other/model.safetensors", broken)
    with pytest.raises(BadCheckpoint, match=message):
        inspect(broken)


def test_a_missing_shard_is_refused(tmp_path):
    tiny.tiny_model().save_pretrained(tmp_path, max_shard_size="20KB")
    assert inspect(tmp_path).history == []
    shard = sorted(tmp_path.glob("*.safetensors"))[1]
    shard.unlink()
    with pytest.raises(BadCheckpoint, match=f"{shard.name} are missing"):
        inspect(tmp_path)


def test_a_graph_is_not_inspected(folder, tmp_path):
    shutil.copy(folder / "config.json", tmp_path)
    (tmp_path / "model.onnx").write_bytes(b"")
    with pytest.raises(kprune.KpruneError, match="holds a graph, not a checkpoint; pass the folder"):
        inspect(tmp_path)


@pytest.mark.parametrize("name", ["vit", "deit", "dinov2", "siglip_vision_model", "whisper"])
def test_a_dense_model_of_images_counts_its_patches(name, tmp_path):
    model = zoo.build(name)
    model.save_pretrained(tmp_path)
    streams = []
    hook = find(model)[0].layer.register_forward_pre_hook(
        lambda module, args, kwargs: streams.append(args[0] if args else kwargs["hidden_states"]), with_kwargs=True
    )
    with torch.no_grad(), hook:
        (model.get_encoder() if name == "whisper" else model)(**zoo.batches(model)[0])
    found = inspect(tmp_path)
    assert found.length == streams[0].shape[1]
    assert found.flops[0] == total_flops(find(model), found.length)
