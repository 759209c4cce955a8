import copy
import dataclasses

import pytest
import tiny
import torch

import kprune
from kprune import KpruneError, PruneConfig, Pruner, RunConfig, prune
from kprune.errors import NotFinite, NotSound
from kprune.models.resize import shrink
from kprune.models.sublayer import find
from kprune.pruning import knowledge_pruning, memory_policy
from kprune.pruning import pruner as pruner_module
from kprune.pruning.teacher import TeacherPredictions

BATCHES = tiny.batched(tiny.texts(64))
SMALL = {"ridge": 1e-4}


@pytest.mark.parametrize(("family", "kind"), tiny.ALL_CASES)
def test_zero_reduction_returns_the_teacher_bit_for_bit(family, kind):
    model = tiny.tiny_model(family, kind)
    pruned = prune(model, BATCHES, reduction=0.0)
    assert pruned.reduction == 0.0
    assert tiny.same_outputs(model, pruned.model, BATCHES[0])
    assert getattr(pruned.model.config, "quantization_config", None) is None
    weights = pruned.model.state_dict()
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("examples", [37, 61, 63])
def test_zero_reduction_is_exact_for_every_mean_length(examples):
    model = tiny.tiny_model()
    pruned = prune(model, tiny.batched(tiny.texts(examples)), reduction=0.0)
    assert all(len(step.kept) == step.units for step in pruned.steps)
    assert tiny.same_outputs(model, pruned.model, BATCHES[0])


@pytest.mark.parametrize(
    ("family", "criterion"),
    [*((name, "compensated") for name in tiny.CORE_FAMILIES), *(("bert", c) for c in ("fisher", "paper", "released"))],
)
def test_the_budget_is_never_exceeded_and_missed_by_less_than_one_head(family, criterion):
    pruner = Pruner(tiny.tiny_model(family), BATCHES[:3], criterion=criterion, **SMALL)
    for reduction in [0.05, 0.5, 0.95] if criterion != "fisher" else [n / 20 for n in range(1, 20)]:
        pruned = pruner.prune(reduction)
        dense, left = pruned.flops
        length = pruned.tokens / pruned.examples
        head = 8 * length * 32 * 8 + 4 * length**2 * 8
        assert left <= (1 - reduction) * dense
        assert (1 - reduction) * dense - left < head
        kept = {(s.index, s.kind): s.units for s in find(pruned.model)}
        assert kept == {(step.layer, step.kind): len(step.kept) for step in pruned.steps}


@pytest.mark.parametrize(("family", "kind"), tiny.ALL_CASES)
def test_every_family_and_kind_is_pruned(family, kind, tmp_path):
    model = tiny.tiny_model(family, kind)
    pruned = prune(model, BATCHES, reduction=0.6)
    assert pruned.reduction >= 0.6
    assert (pruned.config.criterion, pruned.config.refresh) == ("compensated", 0)
    assert pruned.parameters[1] == pruned.model.num_parameters() < pruned.parameters[0] == model.num_parameters()
    assert all(0 <= step.error_after <= step.error_before * (1 + 1e-6) for step in pruned.steps)
    with torch.no_grad():
        assert pruned.model(**BATCHES[0])[0].isfinite().all()
    per_layer = pruned.model.config.quantization_config["per_layer"]
    assert per_layer == [
        {step.kind: len(step.kept) for step in pruned.steps if step.layer == layer} for layer in range(3)
    ]
    # A folder that transformers reads as it reads any other.
    kprune.save(pruned, tmp_path / "out")
    loaded = tiny.HEADS[kind][0].from_pretrained(tmp_path / "out")
    assert type(loaded) is type(model)
    assert tiny.same_outputs(pruned.model, loaded.eval(), BATCHES[0])


@pytest.mark.parametrize("family", tiny.SEAM_FAMILIES)
@pytest.mark.parametrize("criterion", ["fisher", "paper", "released"])
def test_other_families_are_pruned_by_iterative_criteria(family, criterion):
    pruned = prune(tiny.tiny_model(family), BATCHES[:3], reduction=0.5, criterion=criterion, **SMALL)
    dense, left = pruned.flops
    assert left <= 0.5 * dense
    assert all(0 <= step.error_after <= step.error_before * (1 + 1e-6) for step in pruned.steps)


def test_units_of_grouped_queries_are_recorded_as_key_value_heads():
    pruned = prune(tiny.tiny_model("llama"), BATCHES[:3], reduction=0.7, **SMALL)
    counts = [layer["attention"] for layer in pruned.model.config.quantization_config["per_layer"]]
    assert all(count <= 2 for count in counts)
    assert sum(counts) < 6
    for sublayer in find(pruned.model)[::2]:
        if sublayer.units:
            query, key, value = sublayer.producers
            assert query.out_features == 2 * key.out_features == 2 * value.out_features == 16 * sublayer.units


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_the_teacher_is_left_as_it_was(dtype):
    model = tiny.tiny_model("bert").to(dtype).train()
    model.bert.embeddings.requires_grad_(False)
    model.bert.encoder.layer[0].eval()
    before = copy.deepcopy(model)
    pruned = prune(model, BATCHES, reduction=0.5, **SMALL)
    for (name, was), (_, now) in zip(before.named_parameters(), model.named_parameters(), strict=True):
        assert torch.equal(was, now), name
        assert (was.dtype, was.requires_grad) == (now.dtype, now.requires_grad)
        assert now.grad is None
    for was, now in zip(before.modules(), model.modules(), strict=True):
        assert was.training == now.training
        assert not now._forward_hooks
        assert not now._forward_pre_hooks
    assert model.config.to_dict() == before.config.to_dict()
    # The student comes in the same dtype and trainability, and shares no memory with the teacher.
    assert {p.dtype for p in pruned.model.parameters()} == {dtype}
    assert not any(p.requires_grad for p in pruned.model.bert.embeddings.parameters())
    assert pruned.model.bert.encoder.layer[1].output.dense.weight.requires_grad
    assert pruned.model.training
    theirs = {p.data_ptr() for p in model.parameters() if p.numel()}
    assert not theirs & {p.data_ptr() for p in pruned.model.parameters() if p.numel()}


def test_half_precision_is_calibrated_in_float32():
    model = tiny.tiny_model("bert").half()
    coarse = prune(model, BATCHES, reduction=0.5)
    fine = prune(copy.deepcopy(model).float(), BATCHES, reduction=0.5)
    assert [step.kept for step in coarse.steps] == [step.kept for step in fine.steps]
    for small, exact in zip(coarse.model.parameters(), fine.model.parameters(), strict=True):
        assert torch.equal(small, exact.half())


@pytest.mark.parametrize("criterion", ["paper", "fisher", "compensated"])
def test_the_result_does_not_depend_on_batches_or_padding(criterion, monkeypatch):
    model = tiny.tiny_model("roberta", "question answering")
    inputs = tiny.texts(48)
    expected = prune(model, tiny.batched(inputs), reduction=0.6, criterion=criterion)
    ways = [tiny.batched(inputs, size=1), tiny.batched(inputs, size=48, extra=9), tiny.batched(inputs, left=True)]
    for name in ("ACTIVATION_BYTES", "ACTIVATION_BYTES_ONCE"):  # regrouped batches are small, too
        monkeypatch.setattr(memory_policy, name, 300_000)
    for batches in ways:
        other = prune(model, batches, reduction=0.6, criterion=criterion)
        assert [step.kept for step in other.steps] == [step.kept for step in expected.steps]
        for one, two in zip(other.model.parameters(), expected.model.parameters(), strict=True):
            torch.testing.assert_close(one, two, rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize("criterion", ["paper", "fisher", "compensated", "released"])
def test_the_same_seed_gives_the_same_result(criterion):
    model = tiny.tiny_model()
    torch.manual_seed(1)
    one = prune(model, BATCHES, reduction=0.6, criterion=criterion, seed=5)
    torch.manual_seed(2)
    two = prune(model, BATCHES, reduction=0.6, criterion=criterion, seed=5)
    assert all(torch.equal(a, b) for a, b in zip(one.model.parameters(), two.model.parameters(), strict=True))
    if criterion in ("fisher", "compensated"):
        other = prune(model, BATCHES, reduction=0.6, criterion=criterion, seed=6)
        assert [step.kept for step in other.steps] != [step.kept for step in one.steps]


def test_the_refit_brings_the_student_closer_to_the_teacher():
    model = tiny.tiny_model("bert", "embedding")
    pruned = prune(model, BATCHES, reduction=0.5)
    held_out = tiny.batched(tiny.texts(32, seed=9))
    bare = copy.deepcopy(model)
    for sublayer, step in zip(find(bare), pruned.steps, strict=True):
        shrink(sublayer, torch.isin(torch.arange(step.units), torch.tensor(step.kept)))

    def distance(other):
        with torch.no_grad():
            return sum(
                float((other(**b)[0] - model(**b)[0])[b["attention_mask"].bool()].square().sum()) for b in held_out
            )

    assert distance(pruned.model) < 0.5 * distance(bare)


def test_a_pruned_model_can_be_pruned_again():
    model = tiny.tiny_model()
    once = prune(model, BATCHES, reduction=0.9)
    assert any(not step.kept for step in once.steps), "no sublayer was emptied: the case is too easy"
    twice = prune(once.model, BATCHES, reduction=0.5)
    assert twice.flops[0] == pytest.approx(once.flops[1])
    assert twice.reduction >= 0.5
    assert len(twice.model.config.quantization_config["history"]) == 2


def test_labels_mark_the_tokens_that_a_masked_language_model_predicts():
    model = tiny.tiny_model("bert", "masked language model")
    labelled = [{**b, "labels": torch.where(b["input_ids"] % 7 == 0, b["input_ids"], -100)} for b in BATCHES]
    some, all_tokens = (prune(model, b, reduction=0.6) for b in (labelled, BATCHES))
    assert [step.kept for step in some.steps] != [step.kept for step in all_tokens.steps]


def test_progress_is_told_from_start_to_end():
    told = []
    prune(tiny.tiny_model(), BATCHES, reduction=0.5, progress=told.append)
    fractions = [progress.fraction for progress in told]
    assert fractions == sorted(fractions)
    assert fractions[0] == 0.0
    assert fractions[-1] == pytest.approx(1.0)
    steps = [progress.step for progress in told if progress.step]
    assert [step.name for step in steps] == [f"layer {i} {k}" for i in range(3) for k in ("attention", "ffn")]


@pytest.mark.parametrize("reduction", [0.0, 0.05])
def test_progress_ends_at_one_where_sublayers_keep_all_units(reduction):
    reports = []
    prune(tiny.tiny_model(), BATCHES[:3], reduction=reduction, align=1, progress=reports.append, **SMALL)
    fractions = [report.fraction for report in reports]
    assert fractions == sorted(fractions)
    assert fractions[-1] == pytest.approx(1.0)


def test_the_result_is_frozen():
    pruned = prune(tiny.tiny_model(), BATCHES, reduction=0.1)
    with pytest.raises(dataclasses.FrozenInstanceError):
        pruned.seconds = 0.0


@pytest.mark.parametrize("reduction", [-0.1, 1.0, 1.5, float("nan")])
def test_a_reduction_outside_its_range_is_refused(reduction):
    with pytest.raises(KpruneError, match=f"reduction is {reduction}"):
        prune(tiny.tiny_model(), BATCHES, reduction=reduction)


def test_an_unreachable_reduction_is_refused_with_the_largest():
    with pytest.raises(KpruneError, match=r"reduction 0\.9999 would leave no unit at all; the largest .* is 0\.99"):
        prune(tiny.tiny_model(), BATCHES, reduction=0.9999, align=1)
    with pytest.raises(KpruneError, match=r"the largest possible reduction is 0\.95.* groups of 16 \(align"):
        prune(tiny.tiny_model(), BATCHES, reduction=0.99)


def test_a_sample_too_small_for_the_refit_is_refused_unless_a_ridge_is_given(caplog):
    few = tiny.batched(tiny.texts(2, shortest=10, longest=10))
    with pytest.raises(KpruneError, match=r"the sample has 20 tokens, but the refit of 48 features .*add 28 tokens"):
        prune(tiny.tiny_model(), few, reduction=0.5)
    with pytest.raises(KpruneError, match="the sample has 20 tokens"):
        prune(tiny.tiny_model(), few, reduction=0.5, ridge=1e-9)
    assert prune(tiny.tiny_model(), few, reduction=0.5, ridge=0.01).reduction >= 0.5
    assert "20 tokens are few for the refit of 48 features" in caplog.text


@pytest.mark.parametrize("kind", ["regression", "embedding"])
def test_a_criterion_that_finds_no_knowledge_is_refused(kind):
    with pytest.raises(KpruneError, match=r"'paper' with rep_weight 0 finds no knowledge in any unit: .*; use"):
        prune(tiny.tiny_model("bert", kind), BATCHES, reduction=0.5, criterion="paper", rep_weight=0.0)


def test_a_refitted_weight_that_does_not_fit_its_dtype_is_refused():
    model = tiny.tiny_model("bert", "embedding")
    with torch.no_grad():  # the bottom consumer turns tiny features into large outputs
        sublayer = find(model)[1]
        sublayer.producers[0].weight.mul_(1e-3)
        sublayer.producers[0].bias.mul_(1e-3)
        sublayer.consumer.weight.mul_(3e4)
    with pytest.raises(KpruneError, match=r"does not fit into torch\.float16"):
        prune(model.half(), BATCHES, reduction=0.5, criterion="released")


@pytest.mark.parametrize("kind", ["classification", "masked language model"])
def test_configs_that_ask_for_more_outputs_are_no_trouble(kind):
    asking = {"output_hidden_states": True, "output_attentions": True, "attn_implementation": "eager"}
    plain, model = tiny.tiny_model("bert", kind), tiny.tiny_model("bert", kind, **asking)
    pruned, expected = (prune(m, BATCHES, reduction=0.5) for m in (model, plain))
    assert [step.kept for step in pruned.steps] == [step.kept for step in expected.steps]
    with torch.no_grad():
        assert len(pruned.model(**BATCHES[0]).hidden_states) == 4
        assert len(model(**BATCHES[0]).hidden_states) == 4


@pytest.mark.parametrize("seed", [2**32, 2**63, -1])
def test_every_seed_is_accepted(seed):
    assert prune(tiny.tiny_model(), BATCHES[:2], reduction=0.5, seed=seed).config.seed == seed


def test_float64_models_are_pruned_in_float64():
    for criterion in ("fisher", "released"):
        pruned = prune(tiny.tiny_model().double(), BATCHES, reduction=0.5, criterion=criterion)
        assert pruned.model.dtype == torch.float64


def test_weights_that_are_not_finite_are_named():
    model = tiny.tiny_model()
    with torch.no_grad():
        model.bert.encoder.layer[1].output.dense.weight[0, 0] = torch.nan
    with pytest.raises(KpruneError, match=r"bert\.encoder\.layer\.1\.output\.dense\.weight has NaN"):
        prune(model, BATCHES, reduction=0.5)


def test_activations_that_are_not_finite_are_told():
    model = tiny.tiny_model()
    with torch.no_grad():
        model.bert.encoder.layer[2].output.dense.weight.fill_(3e38)
    with pytest.raises(KpruneError, match="outputs on the sample are not finite"):
        prune(model, BATCHES, reduction=0.5)


@pytest.mark.parametrize("criterion", ["compensated", "fisher", "paper"])
def test_gradients_that_are_not_finite_are_named(criterion):
    class Cliff(torch.autograd.Function):
        """A constant that has an infinite slope."""

        @staticmethod
        def forward(ctx, features):
            return features.clone()

        @staticmethod
        def backward(ctx, gradient):
            return gradient * torch.inf

    model = tiny.tiny_model()
    model.bert.encoder.layer[1].attention.output.dense.register_forward_hook(lambda module, args, y: Cliff.apply(y))
    with pytest.raises(NotFinite, match=r"the knowledge measured in layer [01] \w+ is not finite; load"):
        prune(model, BATCHES, reduction=0.5, ridge=1e-4, criterion=criterion)


def test_a_refit_that_is_worse_than_none_stops_the_run():
    with pytest.raises(
        NotSound,
        match=r"the refit of layer \d \w+ increases the error .*; use a smaller ridge .1e\+06 now",
    ):
        prune(tiny.tiny_model(), BATCHES, reduction=0.1, ridge=1e6)


def test_a_stream_that_blows_up_stops_the_run(monkeypatch):
    def wild(ridge):
        return lambda target, problem, weights: 1e4 * weights

    monkeypatch.setattr(knowledge_pruning, "least_squares_fit", wild)
    with pytest.raises(NotSound, match=r"the stream diverges: after layer 0 \w+ its error is \d\S* times the dense"):
        prune(tiny.tiny_model(), BATCHES, reduction=0.5, ridge=1e-6)


def test_a_student_that_answers_with_nan_is_not_handed_back(monkeypatch):
    hand_over = pruner_module.hand_over

    def spoiled(student, model):
        hand_over(student, model)
        student.classifier.weight.data.fill_(3e38)

    monkeypatch.setattr(pruner_module, "hand_over", spoiled)
    with pytest.raises(NotFinite, match="the pruned model's outputs are not finite"):
        prune(tiny.tiny_model(), BATCHES, reduction=0.5)


@pytest.mark.parametrize("size", [-3e4, 3e4])
def test_a_student_without_an_answer_in_its_own_dtype_is_not_handed_back(size):
    model = tiny.tiny_model()
    with torch.no_grad():
        model.classifier.weight.fill_(size)  # sums to more than float16 holds, and not more than float32 does
    with pytest.raises(NotFinite, match=r"outputs are not finite .* in torch.float16; .*load the model in float32"):
        prune(model.half(), BATCHES, reduction=0.3)


@pytest.mark.parametrize("ridge", [1e-4, 1e-3, 1e-2])
@pytest.mark.parametrize("reduction", [0.02, 0.1, 0.5, 0.9])
def test_a_ridge_that_the_documentation_offers_is_no_cause_to_stop(ridge, reduction):
    assert prune(tiny.tiny_model(), BATCHES[:3], reduction=reduction, ridge=ridge, align=1).reduction >= reduction


@pytest.mark.parametrize("align", [1, 8, 16])
def test_neurons_stay_by_multiples_within_the_budget(align):
    pruned = prune(tiny.tiny_model(), BATCHES, reduction=0.5, align=align)
    assert all(len(step.kept) % align == 0 for step in pruned.steps if step.kind == "ffn")
    assert pruned.reduction >= 0.5
    assert pruned.config.align == align


def test_a_budget_of_parameters_is_kept_to_the_parameter():
    model = tiny.tiny_model()
    heads, neurons = find(model)[:2]
    pruned = prune(model, BATCHES, reduction=0.5, budget="parameters", align=1)
    before, after = (sum(p.numel() for p in _inner(m).parameters()) for m in (model, pruned.model))
    # What is left of every layer whatever is removed: the consumers' biases and the norms.
    fixed = sum(
        p.numel() for name, p in _inner(model).named_parameters() if "LayerNorm" in name or "output.dense.bias" in name
    )
    per_head = heads.weights_per_unit + 3 * heads.width
    assert 0.5 * (before - fixed) - per_head < after - fixed <= 0.5 * (before - fixed)
    assert pruned.config.budget == "parameters"
    assert neurons.units  # the model itself is as it was


def _inner(model):
    return model.base_model.encoder


def test_config_objects_and_keywords_give_the_same_result(tmp_path):
    model, progress = tiny.tiny_model(), []
    options = {"reduction": 0.4, "criterion": "fisher", "ridge": 1e-3, "align": 4, "seed": 3}
    run = {"checkpoint": tmp_path / "kept", "progress": progress.append}
    by_keyword = prune(model, BATCHES[:3], **options, **run)
    reports, entries = len(progress), sorted(path.name for path in (tmp_path / "kept").iterdir())
    run["checkpoint"] = tmp_path / "again"
    by_object = prune(model, BATCHES[:3], PruneConfig(**options), run=RunConfig(**run))
    mixed = prune(model, BATCHES[:3], PruneConfig(**{**options, "seed": 0}), run=RunConfig(), seed=3)
    assert by_keyword.config == by_object.config == mixed.config
    assert len(progress) == 2 * reports
    assert sorted(path.name for path in (tmp_path / "again").iterdir()) == entries
    for other in (by_object, mixed):
        assert [step.kept for step in other.steps] == [step.kept for step in by_keyword.steps]
        pairs = zip(by_keyword.model.parameters(), other.model.parameters(), strict=True)
        assert all(torch.equal(one, two) for one, two in pairs)


def test_an_unknown_option_is_a_type_error_by_name():
    model = tiny.tiny_model()
    for call in (prune, Pruner):
        with pytest.raises(TypeError, match=r"unknown option 'reductoin'; options are .*reduction"):
            call(model, BATCHES, reductoin=0.5)
    with pytest.raises(TypeError, match="unknown option 'settings'"):
        Pruner(model, BATCHES[:2], **SMALL).with_config(settings=None)


def test_a_pruner_shares_sample_and_predictions_between_configs():
    pruner = Pruner(tiny.tiny_model(), BATCHES, criterion="fisher")
    other = pruner.with_config(criterion="released")
    assert other.shared.predictions is pruner.shared.predictions
    assert other.shared.sample is pruner.shared.sample
    alone = Pruner(tiny.tiny_model(), BATCHES, criterion="released")
    assert other.config == alone.config
    pruner.prune(0.5)
    assert other.shared.first is None  # scores of another criterion are not taken over
    assert [step.kept for step in other.prune(0.5).steps] == [step.kept for step in alone.prune(0.5).steps]


def test_the_first_measurement_serves_every_reduction(monkeypatch):
    measured = []
    measure = knowledge_pruning.measure
    monkeypatch.setattr(knowledge_pruning, "measure", lambda *args, **k: measured.append(1) or measure(*args, **k))
    pruner = Pruner(tiny.tiny_model(), BATCHES[:3], **SMALL)
    some = [pruner.prune(reduction) for reduction in (0.2, 0.7)]
    previewed = pruner.preview(0.7)
    assert len(measured) == 1
    assert previewed == [len(step.kept) for step in some[1].steps]
    for pruned in some:
        alone = prune(tiny.tiny_model(), BATCHES[:3], reduction=pruned.config.reduction, **SMALL)
        assert [step.kept for step in alone.steps] == [step.kept for step in pruned.steps]
        assert all(map(torch.equal, alone.model.state_dict().values(), pruned.model.state_dict().values()))


def test_names_of_earlier_versions_still_work():
    pruner = Pruner(tiny.tiny_model(), tiny.batched(tiny.texts()), ridge=1e-4)
    assert pruner.settings is pruner.config
    assert pruner.with_settings(criterion="fisher").config.criterion == "fisher"
    pruned = pruner.prune(0.5)
    assert pruned.settings is pruned.config
    assert kprune.Settings is PruneConfig


def test_a_rival_has_no_preview():
    pruner = Pruner(tiny.tiny_model(), tiny.batched(tiny.texts()), ridge=1e-4, method="magnitude")
    with pytest.raises(KpruneError, match="the method 'magnitude' has no preview; use the method 'kprune'"):
        pruner.preview(0.5)


def test_a_device_that_is_not_the_models_is_refused():
    with pytest.raises(KpruneError, match="the model is on cpu, but device is 'meta'; move the model"):
        prune(tiny.tiny_model(), tiny.batched(tiny.texts()), ridge=1e-4, device="meta")


def test_an_experimental_family_is_announced_as_such(caplog):
    prune(tiny.tiny_model("llama"), tiny.batched(tiny.texts()), ridge=1e-4)
    assert "support of llama is experimental" in caplog.text
    caplog.clear()
    prune(tiny.tiny_model("bert"), tiny.batched(tiny.texts()), ridge=1e-4)
    assert "experimental" not in caplog.text


def test_without_a_journal_offloaded_streams_are_not_read_back(tmp_path, monkeypatch):
    reads = []
    original = TeacherPredictions.state
    monkeypatch.setattr(TeacherPredictions, "state", lambda self: reads.append(self) or original(self))
    batches = tiny.batched(tiny.texts())
    model = tiny.tiny_model("bert", "masked language model")
    prune(model, batches, ridge=1e-4, criterion="fisher", offload=tmp_path)
    assert reads == []
    prune(model, batches, ridge=1e-4, criterion="fisher", checkpoint=tmp_path / "journal")
    assert len(reads) == 1
