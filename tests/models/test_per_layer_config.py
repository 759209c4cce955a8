"""Records in the form of transformers' schema: its own reading of them gives the counts of the record."""

import copy

import pytest
import torch
import zoo
from transformers import AutoConfig, PreTrainedConfig

from kprune.models.canonical import to_canonical
from kprune.models.families import family_of
from kprune.models.per_layer_config import SKIPPED
from kprune.models.pruned_shape import describe
from kprune.models.resize import shrink
from kprune.models.sublayer import find

ONE_EACH = [(name, kind) for name, kind in zoo.ONE_EACH if "/" not in name and name != "dinov2"]


def uneven_model(family, kind):
    """A model of three layers with other counts in each, an emptied attention and an emptied FFN among them."""
    model = zoo.build(family, kind)
    to_canonical(model)
    for number, sublayer in enumerate(find(model)):
        shrink(sublayer, torch.arange(sublayer.units) < (0 if number in (0, 3) else sublayer.units - number // 2))
    return model


@pytest.mark.skipif(not hasattr(PreTrainedConfig, "per_layer_config"), reason="transformers has no such schema")
@pytest.mark.parametrize(("family", "kind"), zoo.marked(ONE_EACH))
def test_transformers_reads_the_counts_of_every_layer(family, kind):
    model = uneven_model(family, kind)
    record = describe(model, [])
    config, row = copy.deepcopy(model.config), family_of(model.config)
    config.per_layer_config = record["per_layer_config"]
    assert config.is_heterogeneous
    for number, layer in enumerate(config.per_layer_config):
        for name, block in row.blocks.items():
            units = record["per_layer"][number][name]
            assert (SKIPPED[name] in layer.skip) == (units == 0)
            assert block.units_of(layer) == (units or block.units_of(model.config))
    widths = {value.get("head_dim") for value in record["per_layer_config"].values()}
    assert len(widths) == 1
    if widths != {None}:
        dense = getattr(model.config, "head_dim", None)
        assert widths == {dense or model.config.hidden_size // model.config.num_attention_heads}


def test_a_folder_with_the_counts_is_built_as_before(tmp_path):
    model = uneven_model("bert", "embedding")
    model.config.quantization_config = describe(model, [])
    model.config.save_pretrained(tmp_path)
    config = AutoConfig.from_pretrained(tmp_path)
    assert config.intermediate_size == model.config.intermediate_size
    assert config.quantization_config["per_layer_config"] == model.config.quantization_config["per_layer_config"]
    assert not getattr(config, "is_heterogeneous", False)


def test_a_config_without_an_attribute_for_the_counts_has_no_such_entry():
    model = uneven_model("dinov2", "embedding")
    assert "per_layer_config" not in describe(model, [])
