"""Every law on every family and output kind: rows describe their models."""

import pytest
import torch
import zoo

from kprune.models.canonical import to_canonical
from kprune.models.laws import check_all
from kprune.models.outputs import kind_of
from kprune.models.passes import call


@pytest.mark.parametrize(("name", "kind_name"), zoo.marked(zoo.CASES))
def test_every_family_keeps_the_laws(name, kind_name):
    model = zoo.build(name, kind_name)
    to_canonical(model)
    check_all(model, kind_of(model), zoo.sample(model).batches[0])


@pytest.mark.parametrize(("name", "kind_name"), zoo.ONE_EACH)
def test_the_canonical_form_has_the_same_outputs(name, kind_name):
    model = zoo.build(name, kind_name)
    kind, batch = kind_of(model), zoo.sample(model).batches[0]
    with torch.no_grad():
        before = kind.read(call(model, batch), batch).values
        for _ in range(2):  # the second time nothing is left to do
            to_canonical(model)
            after = kind.read(call(model, batch), batch).values
            torch.testing.assert_close(after, before, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("name", "kind_name"), zoo.CASES)
def test_predictions_do_not_depend_on_the_batch(name, kind_name):
    """Regrouped and halved batches give the same predictions."""
    model = zoo.build(name, kind_name)
    kind, batch = kind_of(model), zoo.sample(model).batches[0]
    with torch.no_grad():
        whole = kind.read(call(model, batch), batch).values
        parts = [batch.rows(slice(row, row + 1)) for row in range(len(batch.example))]
        alone = [kind.read(call(model, part), part).values for part in parts]
    if kind_name == "question answering":  # rows are as wide as the longest input
        alone = [torch.nn.functional.pad(part, (0, whole.shape[1] - part.shape[1]), value=-torch.inf) for part in alone]
    torch.testing.assert_close(torch.cat(alone), whole, rtol=1e-3, atol=1e-4)
