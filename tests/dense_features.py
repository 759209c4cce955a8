"""Pruners of tiny models of several families, and the features of their dense models by plain hooks."""

from functools import cache

import torch
import zoo

from kprune import Pruner
from kprune.models.sublayer import find
from kprune.pruning.budgets import budget_named
from kprune.pruning.run import Run

FAMILIES = ["llama", "gpt2", "opt", "bert"]


@cache
def pruner(family):
    model = zoo.build(family)
    return Pruner(model, zoo.batches(model, count=3), ridge=1e-2)


@cache
def dense_run(family):
    made = pruner(family)
    return Run(made.shared, made.config, budget_named("flops"))


@cache
def dense_features(family):
    """Features of all real tokens, (tokens, features), of every sublayer of the dense model, by plain hooks."""
    made = pruner(family)
    return features_of(made.model, find(made.model))


def features_of(model, sublayers):
    found = [[] for _ in sublayers]
    for inputs in zoo.batches(model, count=3):
        real = inputs["attention_mask"].bool().flatten()

        def hook(module, args, number, real=real):
            found[number].append(args[0].flatten(0, -2)[real].double())

        handles = [
            sublayer.consumer.register_forward_pre_hook(lambda module, args, n=n, hook=hook: hook(module, args, n))
            for n, sublayer in enumerate(sublayers)
        ]
        with torch.no_grad():
            model(**inputs)
        for handle in handles:
            handle.remove()
    return [torch.cat(each) for each in found]
