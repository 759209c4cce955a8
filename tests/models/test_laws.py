"""Every law on every family and output kind: rows describe their models."""

import pytest
import torch
import zoo

from kprune.models.canonical import to_canonical
from kprune.models.laws import check_all
from kprune.models.outputs import kind_of
from kprune.models.passes import call


@pytest.mark.parametrize(("name", "kind_name"), zoo.CASES)
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
