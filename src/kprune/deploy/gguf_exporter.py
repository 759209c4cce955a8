"""Write a folder with a GGUF file, checked against torch if llama.cpp is at hand."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from transformers import PreTrainedModel

from kprune.checkpoints.atomic import staged_folder
from kprune.checkpoints.card import with_front_matter
from kprune.checkpoints.source import Source
from kprune.deploy.exported import Exported, Graph
from kprune.deploy.gguf import DTYPES, require_writable_model, write_gguf
from kprune.deploy.gguf_check import gguf_difference, has_llama_cpp, require_near
from kprune.deploy.gguf_tokenizer import vocabulary_of
from kprune.deploy.graph_check import checked_texts
from kprune.deploy.targets import GGUF
from kprune.errors import KpruneError

CHECKED_TEXTS, CHECKED_TOKENS = 16, 128
"""How many texts are compared with torch, and how many tokens of each at most."""

log = logging.getLogger(__name__)


def export_gguf(
    source: Source,
    model: PreTrainedModel,
    folder: Path,
    *,
    dtype: str,
    texts: Sequence[str] | None,
    overwrite: bool,
) -> Exported:
    """Write a float32 model as a GGUF file; `dtype` is the type of its matrices."""
    if dtype not in DTYPES:
        raise KpruneError(f"a GGUF file cannot have weights in {dtype}; use one of {', '.join(DTYPES)}.")
    require_writable_model(model)
    tokenizer = source.load_tokenizer()
    vocabulary = vocabulary_of(tokenizer, model.config.vocab_size)
    with staged_folder(folder, overwrite=overwrite) as staging:
        path, largest = staging / GGUF.file, None
        write_gguf(model, vocabulary, path, dtype=dtype, title=source.title)
        checked = checked_texts(texts)[:CHECKED_TEXTS] if has_llama_cpp() else []
        if checked:
            longest = min(CHECKED_TOKENS, model.config.max_position_embeddings)
            largest = gguf_difference(path, model, tokenizer, checked, longest)
            require_near(dtype, largest)
        else:
            log.warning("the file is not compared with torch: llama.cpp's package llama-cpp-python is not installed")
        card = gguf_card(source.title, dtype, largest, len(checked))
        (staging / "README.md").write_text(card, encoding="utf-8")
        size = path.stat().st_size
    graph = Graph(folder / GGUF.file, GGUF.name, False, largest, size)
    return Exported.of(folder, (graph,), source, len(checked), ["logits"])


def gguf_card(title: str, dtype: str, difference: float | None, texts: int) -> str:
    """Markdown with code that runs the file."""
    checked = (
        "It was not compared with torch."
        if difference is None
        else f"On {texts} texts its logits differ from torch's by at most {difference:.2g}, relative to logits above 1."
    )
    body = f"""# {title}, for {GGUF.title}

`{GGUF.file}` holds `{title}` with its tokenizer ({dtype} weights), in the architecture `deci`, whose layers have their
own numbers of heads and neurons. {checked}

```python
{GGUF.usage.format(file=GGUF.file)}
```
"""
    return with_front_matter(body, tags=["kprune", GGUF.name])
