"""Prune a fine-tuned classifier on raw text, save it, and load it with plain transformers.

python examples/classifier.py MODEL TEXT_FILE OUT
"""

import sys

from transformers import AutoModelForSequenceClassification, AutoTokenizer

import kprune


def main(name: str, text: str, out: str) -> None:
    model = AutoModelForSequenceClassification.from_pretrained(name)
    tokenizer = AutoTokenizer.from_pretrained(name)
    batches = kprune.draw(kprune.read_lines(text), tokenizer, tokens=100_000, max_length=128)

    pruned = kprune.prune(model, batches, reduction=0.6)
    for step in pruned.steps:
        print(f"{step.name}: {len(step.kept)} of {step.units} kept, error {step.error_after:.4f}")

    pruned.model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    small = AutoModelForSequenceClassification.from_pretrained(out)
    print(f"{model.num_parameters():,} parameters before, {small.num_parameters():,} after")


if __name__ == "__main__":
    main(*sys.argv[1:])
