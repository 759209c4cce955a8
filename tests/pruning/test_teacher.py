import pytest
import tiny
import torch

from kprune.config import PruneConfig
from kprune.errors import NotFinite
from kprune.models.batches import Sample
from kprune.models.outputs import kind_of
from kprune.models.passes import forward
from kprune.models.sublayer import find
from kprune.pruning.criteria import CRITERIA
from kprune.pruning.measurement import measure
from kprune.pruning.registry import resolve
from kprune.pruning.streams import Streams
from kprune.pruning.teacher import TeacherPredictions, teacher_of

FROM_FIRST_TOKENS = ("classification", "multi-label classification", "regression")


def predictions_of(model, *, pooling="mean", sample=None, **options):
    return TeacherPredictions(model, kind_of(model, pooling=pooling), sample or tiny.sample_of(tiny.texts()), **options)


@pytest.mark.parametrize("family", tiny.CORE_FAMILIES)
@pytest.mark.parametrize("kind", tiny.KIND_NAMES)
def test_heads_that_read_first_tokens_alone_are_told_from_others(family, kind):
    assert predictions_of(tiny.tiny_model(family, kind))._use_first_token == (kind in FROM_FIRST_TOKENS)


@pytest.mark.parametrize("family", tiny.SEAM_FAMILIES)
@pytest.mark.parametrize("kind", tiny.SEAM_KINDS)
def test_families_that_do_not_opt_in_have_no_first_token_saving(family, kind):
    assert predictions_of(tiny.tiny_model(family, kind))._use_first_token is False


@pytest.mark.parametrize(("pooling", "expected"), [("mean", False), ("max", False), ("cls", True)])
def test_poolings_that_read_first_tokens_alone_are_told_from_others(pooling, expected):
    assert predictions_of(tiny.tiny_model("bert", "embedding"), pooling=pooling)._use_first_token is expected


@pytest.mark.parametrize(
    ("family", "kind"),
    [
        *((name, "classification") for name in tiny.ALL_FAMILIES),
        *((name, "embedding") for name in tiny.SEAM_FAMILIES),
        ("bert", "masked language model"),
    ],
)
def test_predictions_that_are_asked_for_equal_recorded_ones_bit_for_bit(family, kind):
    teacher = tiny.tiny_model(family, kind).requires_grad_(False)
    batches = [*tiny.sample_of(tiny.texts()).batches, tiny.sample_of([torch.tensor([7])]).batches[0]]
    sample = Sample(batches, sum(len(batch.example) for batch in batches), sum(b.real_tokens for b in batches))
    asked, recorded = (predictions_of(teacher, sample=sample) for _ in range(2))
    config = resolve(PruneConfig(criterion="fisher"), head_width=8)
    streams, sublayers = Streams(teacher, teacher, sample), find(teacher)
    costs = [1.0] * len(sublayers)
    measure(teacher, sublayers, costs, streams.student, recorded, CRITERIA["fisher"], config, is_teacher=True)
    for number, batch in enumerate(batches):
        assert torch.equal(asked[number].values, recorded[number].values)
        with torch.no_grad():
            plain = kind_of(teacher).read(forward(teacher, batch), batch)
        torch.testing.assert_close(asked[number].values, plain.values, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", tiny.KIND_NAMES)
def test_a_state_gives_the_same_predictions_to_another_run(kind, tmp_path):
    model = tiny.tiny_model("bert", kind).requires_grad_(False)
    first = predictions_of(model)
    assert first.state() is None
    values = [first[number].values for number in range(len(first.sample.batches))]
    state = {name: tensor.clone() for name, tensor in first.state().items()}
    for offload in (None, tmp_path):
        other = predictions_of(tiny.tiny_model("bert", kind, seed=1), offload=offload)  # its own would differ
        other.teacher = model if kind == "masked language model" else None  # the head of a language model runs again
        other.restore(state)
        assert all(torch.equal(other[number].values, each) for number, each in enumerate(values))
        assert all(map(torch.equal, other.state().values(), state.values()))


@pytest.mark.parametrize("kind", ["classification", "masked language model"])
def test_a_state_of_other_batches_is_not_taken(kind):
    model = tiny.tiny_model("bert", kind).requires_grad_(False)
    first = predictions_of(model)
    for number in range(len(first.sample.batches)):
        first[number]
    for sample in (first.sample.halved(), tiny.sample_of(tiny.texts(), tokens=700)):
        other = predictions_of(model, sample=sample)
        other.restore(first.state())
        assert other.state() is None


def test_outputs_of_the_model_that_are_not_finite_are_told():
    model = tiny.tiny_model()
    with torch.no_grad():
        model.classifier.weight.fill_(3e38)
    with pytest.raises(NotFinite, match="the model's own outputs on the sample are not finite"):
        predictions_of(model)[0]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_a_teacher_has_at_least_float32_and_shares_weights_that_have_it(dtype):
    model = tiny.tiny_model().to(dtype).train()
    teacher = teacher_of(model)
    assert not teacher.training
    assert model.training
    is_coarse = dtype in (torch.float16, torch.bfloat16)
    assert teacher.dtype == (torch.float32 if is_coarse else dtype)
    shared = {p.data_ptr() for p in model.parameters()} & {p.data_ptr() for p in teacher.parameters()}
    assert bool(shared) != is_coarse
