"""The README of a folder in the hub layout: its graphs, and one snippet for each program that loads it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from kprune.checkpoints.card import SELF_CONTAINED, with_front_matter
from kprune.checkpoints.self_contained import is_self_contained
from kprune.deploy import hub_snippets as snippets
from kprune.deploy.exported import Graph
from kprune.deploy.graphs import SENTENCE_EMBEDDING
from kprune.deploy.hub_folder import Served
from kprune.models.pruned_shape import record_of

TASKS = {
    "ForSequenceClassification": "SequenceClassification",
    "ForTokenClassification": "TokenClassification",
    "ForQuestionAnswering": "QuestionAnswering",
    "ForMaskedLM": "MaskedLM",
}
"""The end of a class name, and the task by which optimum and transformers.js name their classes."""
SERVER_POOLINGS = ("mean", "cls", "lasttoken")
"""Poolings that Text Embeddings Inference reads from 1_Pooling."""


@dataclass(frozen=True)
class Section:
    """How one program loads the folder."""

    title: str
    language: str
    code: str


def hub_card(
    served: Served,
    folder: str,
    graphs: Sequence[Graph],
    texts: int,
    inputs: Sequence[str],
    outputs: Sequence[str],
    note: str = "",
) -> str:
    """Markdown for a folder's README; its snippets run in the folder that contains `folder`.

    `note` is a sentence on the int8 graph.
    """
    rows = [
        f"| `{'/'.join(graph.file.parts[-2:])}` | {'int8 weights' if graph.int8 else 'float32'} | "
        f"{graph.bytes / 1e6:.1f} | {graph.difference:.2g} |"
        for graph in graphs
    ]
    paragraphs = [
        f"# {served.source.title}, for servers and runtimes",
        f"""The graphs read {_code_list(inputs)}, for any batch and length.
They give {_code_list(outputs)}. The tokenizer truncates at {served.max_length} tokens.
The difference from torch is the largest on {texts} texts of mixed length.""",
        "\n".join(["| graph | weights | MB | difference |", "|---|---|---|---|", *rows]),
        note,
        _embedding_notes(served) if served.pooling else "",
        _weights_note(served),
        f"## Load\n\nRun these snippets in the folder that contains `{folder}`.",
        *(
            f"### {section.title}\n\n```{section.language}\n{section.code.strip()}\n```"
            for section in sections(served, folder)
        ),
    ]
    return with_front_matter(
        "\n\n".join(paragraph for paragraph in paragraphs if paragraph) + "\n",
        library_name="sentence-transformers" if served.sentence_class else "transformers",
        tags=["kprune", "onnx", "openvino"],
    )


def _code_list(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _embedding_notes(served: Served) -> str:
    """Sentences on the pooled output and on the default prompt."""
    pooled = f"""`{SENTENCE_EMBEDDING}` is the normalised embedding ({served.pooling} pooling). Programs that read it do
not pool themselves."""
    if not served.source.prompt:
        return pooled
    return f"""{pooled} sentence-transformers puts {served.source.prompt!r} before every text; with other programs,
add it to the texts."""


def _weights_note(served: Served) -> str:
    """What torch needs to read the weights."""
    if record_of(served.model.config) is None:
        return "`model.safetensors` has the weights of an ordinary model. No program needs kprune."
    note = "`model.safetensors` has the weights, which torch reads after `import kprune`. Graphs need no kprune."
    return f"{note} {SELF_CONTAINED}" if is_self_contained(served.source) else note


def sections(served: Served, folder: str) -> list[Section]:
    """A section for each program that can load the folder."""
    found = _embedder_sections(served) if served.pooling else _task_sections(served)
    return [replace(each, code=_loading(each.code, served).replace("FOLDER", folder)) for each in found]


def _loading(code: str, served: Served) -> str:
    """A snippet that computes in float32, and imports kprune only where torch cannot load the weights without it."""
    is_alone = is_self_contained(served.source)
    if is_alone or record_of(served.model.config) is None:
        code = code.replace("import kprune\n", "")
    options = ", trust_remote_code=True" if is_alone else ""
    if served.stored_dtype != "float32":  # slow on a CPU, and less exact than the graphs
        options += ", dtype=torch.float32" if "import torch\n" in code else ', model_kwargs={"dtype": "float32"}'
    return code.replace("OPTIONS", options)


def _embedder_sections(served: Served) -> Iterator[Section]:
    if served.sentence_class is not None:
        yield Section("sentence-transformers, torch", "python", snippets.SENTENCE_TRANSFORMER)
        yield Section("sentence-transformers, onnx", "python", snippets.SENTENCE_TRANSFORMER_ONNX)
        yield Section("sentence-transformers, openvino", "python", snippets.SENTENCE_TRANSFORMER_OPENVINO)
    yield from _graph_sections(SENTENCE_EMBEDDING, snippets.TEXTS)
    code = snippets.OPTIMUM.replace("TASK", "FeatureExtraction").replace("OUTPUT", "last_hidden_state")
    yield Section("optimum", "python", code.replace("ENCODED", snippets.ENCODED_TEXTS))
    code = snippets.JAVASCRIPT.replace("CLASS", "AutoModel").replace("OUTPUT", SENTENCE_EMBEDDING)
    yield Section("transformers.js", "javascript", code.replace("TEXTS", snippets.SCRIPT_TEXTS))
    if served.sentence_class is not None:
        width = str(served.model.config.hidden_size)
        yield Section("fastembed", "python", snippets.FASTEMBED.replace("WIDTH", width))
    # The graph pools; the option only replaces a pooling that the server does not know.
    option = "" if served.pooling in SERVER_POOLINGS else " --pooling mean"
    yield Section("Text Embeddings Inference", "bash", snippets.SERVER + option)


def _task_sections(served: Served) -> Iterator[Section]:
    name = type(served.model).__name__
    task = next((task for end, task in TASKS.items() if name.endswith(end)), "FeatureExtraction")
    reads_pairs = served.sentence_class == "CrossEncoder" or task == "QuestionAnswering"
    texts, encoded, script_texts = (
        (snippets.ZIPPED_PAIRS, snippets.ENCODED_PAIRS, snippets.SCRIPT_PAIRS)
        if reads_pairs
        else (snippets.TEXTS, snippets.ENCODED_TEXTS, snippets.SCRIPT_TEXTS)
    )
    output = "start_logits" if task == "QuestionAnswering" else "logits"
    if served.sentence_class == "CrossEncoder":
        yield Section("sentence-transformers, torch", "python", snippets.CROSS_ENCODER)
        yield Section("sentence-transformers, onnx", "python", snippets.CROSS_ENCODER_ONNX)
    auto = "AutoModel" if task == "FeatureExtraction" else f"AutoModelFor{task}"
    loader = auto if is_self_contained(served.source) else name
    code = snippets.TRANSFORMERS.replace("CLASS", loader).replace("OUTPUT", output)
    found = [Section("transformers, torch", "python", code.replace("ENCODED", encoded))]
    found += _graph_sections(output, texts)
    code = snippets.OPTIMUM.replace("TASK", task).replace("OUTPUT", output)
    found.append(Section("optimum", "python", code.replace("ENCODED", encoded)))
    code = snippets.JAVASCRIPT.replace("CLASS", auto).replace("OUTPUT", output)
    found.append(Section("transformers.js", "javascript", code.replace("TEXTS", script_texts)))
    yield from (_with_activation(each, served.activation) for each in found)
    if task == "SequenceClassification":
        yield Section("Text Embeddings Inference", "bash", snippets.SERVER)


def _with_activation(section: Section, name: str) -> Section:
    """A snippet of logits that gives the scores of CrossEncoder, or says that it does not."""
    code = section.code
    if name == "Identity":
        return section
    if name != "Sigmoid":
        mark = "//" if section.language == "javascript" else "#"
        return replace(section, code=f"{code.rstrip()}  {mark} logits, to which CrossEncoder applies {name}")
    if ".logits" in code:  # a tensor of torch or transformers.js
        return replace(section, code=code.replace(".logits", ".logits.sigmoid()"))
    return replace(section, code=code.replace("print(outputs)", snippets.SIGMOID))


def _graph_sections(output: str, texts: str) -> Iterator[Section]:
    for title, code in (("ONNX Runtime", snippets.ONNX_RUNTIME), ("OpenVINO", snippets.OPENVINO)):
        yield Section(title, "python", code.replace("OUTPUT", output).replace("TEXTS", texts))
