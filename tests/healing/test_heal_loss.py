"""The loss of healing, compared with sums written out."""

import pytest
import torch
import zoo

from kprune.healing import heal_loss
from kprune.healing.heal_loss import Size, backpropagate, held_out_loss
from kprune.healing.targets import Targets
from kprune.models.outputs import kind_of
from kprune.models.passes import layers_of
from kprune.models.trainable import trainable_parameters

KINDS = [
    ("bert", "classification"),
    ("bert", "question answering"),
    ("bert", "embedding"),
    ("bert", "masked language model"),
    ("llama", "causal language model"),
]


def stated_loss(student, teacher, kind, batch, weight):
    """Mean of KL or squared error over examples, and the mean over layers and tokens of ‖T − S‖² / ‖T‖²."""
    streams = []
    for model in (student, teacher):
        own = []
        hooks = [
            layer.register_forward_hook(lambda m, a, o, own=own: own.append(o[0] if isinstance(o, tuple) else o))
            for layer in layers_of(model)
        ]
        rows = kind.read(model(**batch.inputs), batch)
        for hook in hooks:
            hook.remove()
        streams.append((rows, own))
    (ours, own), (theirs, other) = streams
    total = 0.0
    for row in range(len(ours.values)):
        if kind.is_distribution:
            p, q = theirs.values[row].softmax(0), ours.values[row].softmax(0)
            possible = p > 0
            lost = (p[possible] * (p[possible].log() - q[possible].log())).sum()
        else:
            lost = (theirs.values[row] - ours.values[row]).square().sum()
        total = total + ours.weights[row] * lost
    outputs = total / len(batch.example)
    tokens = batch.mask.nonzero().tolist()
    errors = [
        (t[row, place].detach().bfloat16().float() - s[row, place]).square().sum()
        / t[row, place].detach().bfloat16().float().square().sum()
        for s, t in zip(own, other, strict=True)
        for row, place in tokens
    ]
    return outputs, outputs + weight * torch.stack(errors).mean()


@pytest.mark.parametrize(("family", "name"), KINDS)
def test_the_gradient_and_the_judgement_are_those_of_the_stated_loss(family, name, monkeypatch):
    monkeypatch.setattr("kprune.pruning.measurement.LOGITS", 99 * 6 * 3)  # a causal model's head in several parts
    teacher, student = zoo.build(family, name), zoo.build(family, name)
    with torch.no_grad():
        for parameter in student.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    kind, batch = kind_of(teacher), zoo.sample(teacher).batches[0]
    parameters = trainable_parameters(student)
    student.requires_grad_(False)
    for parameter in parameters.values():
        parameter.requires_grad_(True)
    outputs, whole = stated_loss(student, teacher, kind, batch, 0.7)
    wanted = torch.autograd.grad(whole, list(parameters.values()), allow_unused=True)
    targets = Targets(teacher, kind)
    target = targets.of((0, 0), batch, with_streams=True)
    backpropagate(student, batch, target, targets, Size(len(batch.example), batch.real_tokens), 0.7)
    for parameter, expected in zip(parameters.values(), wanted, strict=True):
        found = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        torch.testing.assert_close(found, torch.zeros_like(parameter) if expected is None else expected)
    judged = float(held_out_loss(student, batch, target, targets)) / len(batch.example)
    assert judged == pytest.approx(float(outputs.detach()), rel=1e-4)


def test_a_model_equal_to_its_teacher_loses_nothing():
    teacher = zoo.build("bert")
    kind, batch = kind_of(teacher), zoo.sample(teacher).batches[0]
    targets = Targets(teacher, kind)
    target = targets.of((0, 0), batch, with_streams=True)
    assert float(held_out_loss(teacher, batch, target, targets)) == pytest.approx(0.0, abs=1e-6)
    _, streams = heal_loss.forward_with_streams(teacher, batch)
    assert float(heal_loss.hidden_loss(batch, streams, target.streams).detach()) < 1e-3  # kept in bfloat16
