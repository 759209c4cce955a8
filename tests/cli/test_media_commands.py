"""Images and sounds through the command line."""

import json
import shutil

import datasets
import pytest
import torch
import transformers
from command_line import kprune, write_checkpoint, write_text
from media_data import CLASSES, image_processor, write_images, write_model, write_sounds

pytest_plugins = ["command_fixtures"]

SIZE = ("--reduction", 0.5, "--align", 1, "--tokens", 500)


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return write_images(tmp_path_factory.mktemp("media") / "photos")


@pytest.fixture(scope="module")
def sounds(tmp_path_factory):
    return write_sounds(tmp_path_factory.mktemp("media") / "clips")


@pytest.fixture(scope="module")
def vit(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("media") / "vit", "vit", "image classification")


@pytest.fixture(scope="module")
def small_vit(vit, images, tmp_path_factory):
    out = tmp_path_factory.mktemp("media") / "small"
    result = kprune("prune", vit, out, "--images", images, *SIZE)
    assert result.exit_code == 0, result.output
    assert "510 tokens in 30 images of 17 tokens on average" in result.stdout
    return out


def test_a_classifier_of_images_is_pruned_and_loads_as_its_card_says(small_vit, vit):
    card = (small_vit / "README.md").read_text()
    assert "510 tokens of images" in card
    code = card.split("```python\n")[1].split("```")[0].replace(f'"{small_vit.name}"', f'"{small_vit}"')
    loaded: dict[str, object] = {}
    exec(code, loaded)
    assert type(loaded["model"]).__name__ == "ViTForImageClassification"
    assert loaded["processor"].to_dict() == transformers.AutoImageProcessor.from_pretrained(vit).to_dict()
    classify = transformers.pipeline("image-classification", model=str(small_vit))
    assert {each["label"] for each in classify(transformers.image_utils.PIL.Image.new("RGB", (9, 9)))} == set(CLASSES)


def test_images_are_compared_with_and_without_labels(small_vit, vit, images):
    against = ("evaluate", small_vit, "--against", vit, "--images", images, "--json")
    plain = json.loads(kprune(*against).stdout)
    assert (plain["examples"], plain["figures"], plain["fidelity"][0]["name"]) == (60, [], "agreement")
    labelled = json.loads(kprune(*against, "--folder-labels", "--limit", 30).stdout)
    assert (labelled["examples"], labelled["figures"][0]["name"]) == (30, "accuracy")
    alone = kprune("evaluate", small_vit, "--images", images, "--folder-labels", "--metric", "macro-f1")
    assert "macro-f1" in alone.stdout, alone.output


def test_the_accuracy_is_that_of_the_pipeline(vit, images):
    found = json.loads(kprune("evaluate", vit, "--images", images, "--folder-labels", "--json").stdout)
    classify = transformers.pipeline("image-classification", model=str(vit))
    paths = sorted(images.rglob("*.png"))
    right = [classify(str(path))[0]["label"] == path.parent.name for path in paths]
    assert found["figures"][0]["value"] == pytest.approx(100 * sum(right) / len(right))


def test_a_table_of_paths_is_a_sample_and_a_test(vit, images, tmp_path):
    rows = [f"{path.relative_to(images.parent)},{path.parent.name}" for path in sorted(images.rglob("*.png"))]
    table = images.parent / "table.csv"
    table.write_text("\n".join(["file,kind", *rows]))
    named = ("--data", table, "--column", "file", "--label-column", "kind")
    result = kprune("prune", vit, tmp_path / "small", *named, *SIZE, "--evaluate", "--json")
    assert result.exit_code == 0, result.output
    printed = json.loads(result.stdout)
    assert printed["evaluation"]["examples"] == 6
    assert printed["evaluation"]["figures"][0]["name"] == "accuracy"


@pytest.mark.parametrize("form", ["folder", "parquet"])
def test_a_data_set_of_images_is_a_test(form, small_vit, vit, images, tmp_path):
    source, split = images, ("--split", "train")
    if form == "parquet":
        source, split = tmp_path / "photos.parquet", ()
        datasets.load_dataset(str(images), split="train", cache_dir=str(tmp_path)).to_parquet(source)
    named = ("--data", source, "--column", "image", "--label-column", "label", *split, "--json")
    found = json.loads(kprune("evaluate", small_vit, "--against", vit, *named).stdout)
    by_folder = ("--images", images, "--folder-labels", "--json")
    expected = json.loads(kprune("evaluate", small_vit, "--against", vit, *by_folder).stdout)
    assert found["examples"] == expected["examples"] == 60
    assert found["figures"] == expected["figures"]


MODELS = [
    ("clip_vision_model", "embedding", "cosine"),
    ("siglip_vision_model", None, "cosine"),
    ("dinov2", "embedding", "cosine"),
    ("whisper", "encoder states", "cosine"),
    ("wav2vec2", "speech recognition", "agreement"),
    ("hubert", "sound classification", "agreement"),
    ("wav2vec2", "embedding", "cosine"),
]


@pytest.mark.parametrize(("name", "kind", "measure"), MODELS, ids=[f"{name}, {kind}" for name, kind, _ in MODELS])
def test_every_kind_finds_its_likeness(name, kind, measure, images, sounds, tmp_path):
    dense = write_model(tmp_path / "dense", name, kind)
    data = ("--images", images) if "vision" in name or name == "dinov2" else ("--audio", sounds)
    result = kprune("prune", dense, tmp_path / "small", *data, *SIZE, "--evaluate", "--json")
    assert result.exit_code == 0, result.output
    printed = json.loads(result.stdout)
    assert printed["evaluation"]["fidelity"][0]["name"] == measure
    assert printed["flops"][1] < 0.51 * printed["flops"][0]
    assert (tmp_path / "small" / "preprocessor_config.json").is_file()
    same = json.loads(kprune("evaluate", dense, "--against", dense, *data, "--limit", 4, "--json").stdout)
    assert same["fidelity"][0]["value"] == pytest.approx(100, abs=1e-3)


def test_a_text_tower_reads_text(tmp_path, text):
    write_checkpoint(tmp_path / "clip")  # for its tokenizer
    config = transformers.CLIPTextConfig(
        hidden_size=32, num_attention_heads=4, num_hidden_layers=2, intermediate_size=48, projection_dim=16,
        vocab_size=40000, max_position_embeddings=66, eos_token_id=102,
    )  # fmt: skip
    torch.manual_seed(0)
    transformers.CLIPTextModelWithProjection(config).save_pretrained(tmp_path / "clip")
    result = kprune("prune", tmp_path / "clip", tmp_path / "small", "--text", text, *SIZE, "--evaluate", "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["evaluation"]["fidelity"][0]["name"] == "cosine"


def test_models_with_other_processors_are_not_compared(vit, images, tmp_path):
    shutil.copytree(vit, tmp_path / "other")
    image_processor(image_mean=[0.1, 0.2, 0.3]).save_pretrained(tmp_path / "other")
    result = kprune("evaluate", vit, "--against", tmp_path / "other", "--images", images)
    assert result.exit_code == 1
    assert "prepare their inputs differently (image_mean: " in result.stderr


def bad_input(vit, images, sounds, tmp_path):
    """Arguments after the output folder, exit code and sentence, by name."""
    bare, broken, mixed = tmp_path / "bare", tmp_path / "broken", tmp_path / "mixed"
    shutil.copytree(vit, bare, ignore=shutil.ignore_patterns("preprocessor*"))
    shutil.copytree(images, broken)
    for file in (broken / "cat").iterdir():
        file.write_bytes(b"")
    shutil.copytree(images, mixed)
    (mixed / "cat").rename(mixed / "lynx")
    text = write_text(tmp_path / "lines.txt", 50)
    bert = write_checkpoint(tmp_path / "bert")
    return {
        "no processor": (bare, ["--images", images], 1, "no preprocessor_config.json, so the model cannot read images"),
        "a broken image": (vit, ["--images", broken], 1, ".png is not an image that Pillow can read"),
        "no folder": (vit, ["--images", tmp_path / "nowhere"], 1, "there is no folder"),
        "no images": (vit, ["--images", sounds], 1, "has no images"),
        "sound for images": (vit, ["--audio", sounds], 2, "the model reads images, not what --audio names"),
        "text for images": (vit, ["--text", text], 2, "the model reads images, not what --text names"),
        "a task for images": (vit, ["--task", "sst2"], 2, "the model reads images, not what --task names"),
        "images for text": (bert, ["--images", images], 2, "the model reads text, not what --images names"),
        "two sources": (vit, ["--images", images, "--text", text], 2, "pass the data with one of"),
        "a column": (vit, ["--images", images, "--column", "a"], 2, "a folder of --images or --audio has no columns"),
        "labels of no folder": (vit, ["--text", text, "--folder-labels"], 2, "--folder-labels belongs to a folder"),
        "a max length": (vit, ["--images", images, "--max-length", 9], 1, "'vit' model fixes the number of tokens"),
        "a speed-up": (vit, ["--images", images, "--speedup", 2], 2, "--speedup times models of text"),
        "other classes": (
            vit, ["--images", mixed, "--folder-labels", "--evaluate"], 1, "has the label 'lynx'; use cat, dog, owl"
        ),
    }  # fmt: skip


def test_bad_input_gets_a_sentence_and_leaves_nothing_of_images(vit, images, sounds, tmp_path):
    for name, (model, arguments, code, sentence) in bad_input(vit, images, sounds, tmp_path).items():
        size = SIZE[2:] if "--speedup" in arguments else SIZE
        result = kprune("prune", model, tmp_path / "out", *arguments, *size)
        assert (result.exit_code, sentence in result.stderr) == (code, True), (name, result.output)
        assert "Traceback" not in result.output
        assert not (tmp_path / "out").exists()
