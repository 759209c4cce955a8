import pytest
import zoo
from media_data import image_processor, waveform_extractor, write_model
from task_data import load_tokenizer
from transformers import AutoImageProcessor, AutoModelForImageClassification

from kprune import KpruneError, prune, save
from kprune.checkpoints.processors import load_reader, medium_of
from kprune.checkpoints.source import Source


def test_a_folder_says_what_its_model_reads(tmp_path):
    vision = Source(write_model(tmp_path / "vit", "vit"))
    sound = Source(write_model(tmp_path / "wav2vec2", "wav2vec2"))
    assert (medium_of(vision).name, medium_of(sound).name) == ("images", "audio")
    assert load_reader(vision).processor.to_dict() == image_processor().to_dict()
    assert load_reader(sound).processor.to_dict() == waveform_extractor().to_dict()


def test_a_broken_processor_is_refused(tmp_path):
    source = Source(write_model(tmp_path / "vit", "vit"))
    (tmp_path / "vit" / "preprocessor_config.json").write_text("{")
    with pytest.raises(KpruneError, match=r"cannot load .*vit"):
        load_reader(source)


def test_save_writes_the_processor_or_finds_it(tmp_path, caplog):
    folder = write_model(tmp_path / "vit", "vit")
    batches = zoo.batches(zoo.build("vit"), count=4)
    found = prune(AutoModelForImageClassification.from_pretrained(folder), batches, reduction=0.3, align=1)
    save(found, tmp_path / "found")
    given = prune(zoo.build("vit"), batches, reduction=0.3, align=1)
    save(given, tmp_path / "given", processor=image_processor())
    for out in ("found", "given"):
        assert AutoImageProcessor.from_pretrained(tmp_path / out).to_dict() == image_processor().to_dict()
    assert caplog.text == ""
    save(given, tmp_path / "none")
    assert "no processor was found, so" in caplog.text
    assert not (tmp_path / "none" / "preprocessor_config.json").exists()


def test_speech_keeps_its_tokenizer_too(tmp_path):
    folder = write_model(tmp_path / "wav2vec2", "wav2vec2")
    load_tokenizer().save_pretrained(folder)
    pruned = prune(zoo.build("wav2vec2"), zoo.batches(zoo.build("wav2vec2"), count=4), reduction=0.3, align=1)
    save(pruned, tmp_path / "small", source=Source(folder))
    names = {path.name for path in (tmp_path / "small").iterdir()}
    assert {"preprocessor_config.json", "tokenizer.json", "config.json"} <= names
