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
    note: str = "",
) -> str:
    """Markdown with code that runs the graph; `folder` is the subfolder of the graph, `note` a sentence on it."""
    file, tokenizer = (f"{folder}/{name}" if folder else name for name in (target.file, "tokenizer.json"))
    weights = "int8 weights" if int8 else "float32"
    reads_text = "input_ids" in inputs
    items, sizes = ("texts of mixed length", "batch and length") if reads_text else ("random inputs", "batch")
    usage = _text_usage(tokenizer, inputs) if reads_text else _processor_usage(inputs[0], folder or ".")
    body = f"""# {source}, for {target.title}

`{file}` holds the graph of `{source}` ({weights}), for any {sizes}. On {texts} {items}
its outputs ({", ".join(outputs)}) differ from torch's by at most {difference:.2g}. {note}

```python
{target.usage.format(file=file)}
{usage}
print(run(feed)[0])
```
"""
    return with_front_matter(body, tags=["kprune", target.name])


def _text_usage(tokenizer: str, inputs: list[str]) -> str:
    """Code that tokenises two texts into `feed`."""
    return f"""import numpy
from tokenizers import Tokenizer
tokenizer = Tokenizer.from_file("{tokenizer}")
tokenizer.enable_padding()
encoded = tokenizer.encode_batch(["A text.", "Another text, which is longer."])
fields = {{"input_ids": "ids", "attention_mask": "attention_mask", "token_type_ids": "type_ids"}}
feed = {{name: numpy.array([getattr(each, fields[name]) for each in encoded]) for name in {inputs}}}"""


def _processor_usage(name: str, folder: str) -> str:
    """Code that prepares an image or a sound as `feed`."""
    if name == "pixel_values":
        return f"""from PIL import Image
from transformers import AutoImageProcessor
processor = AutoImageProcessor.from_pretrained("{folder}")
image = Image.new("RGB", (640, 480))  # your image
feed = {{"pixel_values": processor(images=[image], return_tensors="np")["pixel_values"]}}"""
    return f"""import numpy
from transformers import AutoFeatureExtractor
processor = AutoFeatureExtractor.from_pretrained("{folder}")
sound = numpy.zeros(processor.sampling_rate, dtype=numpy.float32)  # your sound, one second here
feed = {{"{name}": processor([sound], sampling_rate=processor.sampling_rate, return_tensors="np")["{name}"]}}"""
