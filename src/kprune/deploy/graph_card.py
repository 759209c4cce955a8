"""The README of an exported folder: how to run its graph."""

from __future__ import annotations

from kprune.checkpoints.card import with_front_matter
from kprune.deploy.targets import Target


def graph_card(
    source: str,
    *,
    folder: str,
    target: Target,
    int8: bool,
    difference: float,
    texts: int,
    inputs: list[str],
    outputs: list[str],
) -> str:
    """Markdown with code that runs the graph; `folder` is the subfolder of the graph."""
    file, tokenizer = (f"{folder}/{name}" if folder else name for name in (target.file, "tokenizer.json"))
    weights = "int8 weights" if int8 else "float32"
    body = f"""# {source}, for {target.title}

`{file}` holds the graph of `{source}` ({weights}), for any batch and length. On {texts} texts of mixed length
its outputs ({", ".join(outputs)}) differ from torch's by at most {difference:.2g}.

```python
import numpy
from tokenizers import Tokenizer
{target.usage.format(file=file)}
tokenizer = Tokenizer.from_file("{tokenizer}")
tokenizer.enable_padding()
encoded = tokenizer.encode_batch(["A text.", "Another text, which is longer."])
fields = {{"input_ids": "ids", "attention_mask": "attention_mask", "token_type_ids": "type_ids"}}
feed = {{name: numpy.array([getattr(each, fields[name]) for each in encoded]) for name in {inputs}}}
print(run(feed)[0])
```
"""
    return with_front_matter(body, tags=["kprune", target.name])
