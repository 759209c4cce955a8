"""Code that loads a folder in the hub layout, by program; words in capitals are replaced, and it sets `outputs`."""

TEXTS = '["A text.", "Another text, which is longer."]'
ENCODED_TEXTS = f'tokenizer({TEXTS}, padding=True, truncation=True, return_tensors="pt")'
ENCODED_PAIRS = """tokenizer(
    ["What is it?", "How long is it?"],
    ["It is a text.", "Another, longer text."],
    padding=True,
    truncation=True,
    return_tensors="pt",
)"""
ZIPPED_PAIRS = '[("What is it?", "It is a text."), ("How long is it?", "Another, longer text.")]'
SCRIPT_TEXTS = '["A text.", "Another text, which is longer."], { padding: true, truncation: true }'
SCRIPT_PAIRS = """["What is it?", "How long is it?"], {
  text_pair: ["It is a text.", "Another, longer text."],
  return_token_type_ids: true, // without it, some tokenizers leave them out, and scores differ
  padding: true,
  truncation: true,
}"""

SENTENCE_TRANSFORMER = """
import kprune
from sentence_transformers import SentenceTransformer

model = SentenceTransformer("FOLDER"OPTIONS)
outputs = model.encode(["A text.", "Another text, which is longer."], normalize_embeddings=True)
print(outputs)"""

SENTENCE_TRANSFORMER_ONNX = """
from sentence_transformers import SentenceTransformer

model = SentenceTransformer("FOLDER", backend="onnx", model_kwargs={"file_name": "onnx/model.onnx"})
outputs = model.encode(["A text.", "Another text, which is longer."], normalize_embeddings=True)
print(outputs)"""

SENTENCE_TRANSFORMER_OPENVINO = """
from sentence_transformers import SentenceTransformer

precision = {"INFERENCE_PRECISION_HINT": "f32"}  # without it, some CPUs compute in bfloat16
options = {"file_name": "openvino/openvino_model.xml", "ov_config": precision}
model = SentenceTransformer("FOLDER", backend="openvino", model_kwargs=options)
outputs = model.encode(["A text.", "Another text, which is longer."], normalize_embeddings=True)
print(outputs)"""

CROSS_ENCODER = f"""
import kprune
from sentence_transformers import CrossEncoder

model = CrossEncoder("FOLDER"OPTIONS)
outputs = model.predict({ZIPPED_PAIRS})
print(outputs)"""

CROSS_ENCODER_ONNX = f"""
from sentence_transformers import CrossEncoder

model = CrossEncoder("FOLDER", backend="onnx", model_kwargs={{"file_name": "onnx/model.onnx"}})
outputs = model.predict({ZIPPED_PAIRS})
print(outputs)"""

TRANSFORMERS = """
import kprune
import torch
from transformers import AutoTokenizer, CLASS

tokenizer = AutoTokenizer.from_pretrained("FOLDER")
model = CLASS.from_pretrained("FOLDER"OPTIONS)
inputs = ENCODED
with torch.no_grad():
    outputs = model(**inputs).OUTPUT
print(outputs)"""

ONNX_RUNTIME = """
import numpy
import onnxruntime
from tokenizers import Tokenizer

tokenizer = Tokenizer.from_file("FOLDER/tokenizer.json")  # it truncates and pads
session = onnxruntime.InferenceSession("FOLDER/onnx/model.onnx")  # or model_quantized.onnx
encoded = tokenizer.encode_batch(TEXTS)
fields = {"input_ids": "ids", "attention_mask": "attention_mask", "token_type_ids": "type_ids"}
names = [each.name for each in session.get_inputs()]
feed = {name: numpy.array([getattr(each, fields[name]) for each in encoded]) for name in names}
outputs = session.run(["OUTPUT"], feed)[0]
print(outputs)"""

OPENVINO = """
import numpy
import openvino
from tokenizers import Tokenizer

tokenizer = Tokenizer.from_file("FOLDER/tokenizer.json")  # it truncates and pads
precision = {"INFERENCE_PRECISION_HINT": "f32"}  # without it, some CPUs compute in bfloat16
model = openvino.Core().compile_model("FOLDER/openvino/openvino_model.xml", "CPU", precision)
encoded = tokenizer.encode_batch(TEXTS)
fields = {"input_ids": "ids", "attention_mask": "attention_mask", "token_type_ids": "type_ids"}
names = [each.get_any_name() for each in model.inputs]
feed = {name: numpy.array([getattr(each, fields[name]) for each in encoded]) for name in names}
outputs = model(feed)["OUTPUT"]
print(outputs)"""

OPTIMUM = """
from optimum.onnxruntime import ORTModelForTASK
from transformers import AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("FOLDER")
model = ORTModelForTASK.from_pretrained("FOLDER", subfolder="onnx", file_name="model.onnx")
inputs = ENCODED
outputs = model(**inputs).OUTPUT
print(outputs)"""

JAVASCRIPT = """
import { CLASS, AutoTokenizer, env } from "@huggingface/transformers";

env.localModelPath = "./";
env.allowRemoteModels = false;
const tokenizer = await AutoTokenizer.from_pretrained("FOLDER");
const model = await CLASS.from_pretrained("FOLDER", { dtype: "fp32" }); // "q8" for model_quantized.onnx
const inputs = tokenizer(TEXTS);
const outputs = (await model(inputs)).OUTPUT;
console.log(outputs.tolist());"""

FASTEMBED = """
from fastembed import TextEmbedding
from fastembed.common.model_description import ModelSource, PoolingType

TextEmbedding.add_custom_model(
    model="FOLDER",
    pooling=PoolingType.DISABLED,  # the graph pools and normalises
    normalization=False,
    sources=ModelSource(hf="FOLDER"),
    dim=WIDTH,
    model_file="onnx/model.onnx",
    output_name="sentence_embedding",
)
model = TextEmbedding("FOLDER", specific_model_path="FOLDER")
outputs = list(model.embed(["A text.", "Another text, which is longer."]))
print(outputs)"""

SIGMOID = """outputs = 1 / (1 + numpy.exp(-outputs))
print(outputs)"""

SERVER = """docker run -p 8080:80 -v "$PWD":/models ghcr.io/huggingface/text-embeddings-inference:cpu-latest \\
    --model-id /models/FOLDER"""
