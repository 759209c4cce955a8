import numpy as np
import pytest
import torch
import zoo
from media_data import RATE, image_processor, pixels, waveform_extractor, whisper_extractor
from PIL import Image
from task_data import load_tokenizer

from kprune import KpruneError, draw_audio, draw_images, evaluate, prune, read_audio, read_images

IMAGES = [pixels(20, 20, number) for number in range(40)]


def test_a_sample_of_tokens_counts_patches():
    model = zoo.build("vit")  # 16 patches and the class token
    batches = draw_images(IMAGES, image_processor(), tokens=100, model=model)
    assert [tuple(batch["pixel_values"].shape) for batch in batches] == [(1, 3, 16, 16)] * 6
    assert len(draw_images(IMAGES, image_processor(), images=11)) == 11


def test_images_are_what_the_processor_makes_of_them():
    batches = draw_images(IMAGES, image_processor(), images=40)
    expected = image_processor()(images=[Image.fromarray(image) for image in IMAGES], return_tensors="pt")
    ours = torch.cat([batch["pixel_values"] for batch in batches])
    assert {row.tobytes() for row in ours.numpy()} == {row.tobytes() for row in expected["pixel_values"].numpy()}
    again = draw_images(IMAGES, image_processor(), images=40, seed=1)
    assert not torch.equal(ours, torch.cat([batch["pixel_values"] for batch in again]))


def test_every_sound_gives_one_piece_before_any_gives_a_second():
    sounds = [np.full(RATE * seconds, seconds / 10) + np.linspace(0, 0.01, RATE * seconds) for seconds in (1, 4, 9)]
    batches = draw_audio(sounds, waveform_extractor(), pieces=100, seconds=1)
    assert {batch["input_values"].shape for batch in batches} == {(1, RATE)}
    assert len(batches) == 14
    found = waveform_extractor()(sounds[0], sampling_rate=RATE, return_tensors="pt")["input_values"]
    assert sum(torch.allclose(batch["input_values"], found, atol=1e-3) for batch in batches[:3]) >= 1


def test_a_short_sample_gets_a_warning(caplog):
    draw_images(IMAGES[:3], image_processor(), tokens=1000, model=zoo.build("vit"))
    assert "the data hold 51 tokens, fewer than the requested 1000" in caplog.text


def test_a_model_is_pruned_and_compared_in_python():
    model, processor = zoo.build("vit"), image_processor()
    batches = draw_images(IMAGES, processor, images=30)
    pruned = prune(model, batches, reduction=0.4, align=1)
    result = evaluate(pruned.model, processor, read_images(IMAGES[30:]), against=model)
    assert result.examples == 10
    with torch.no_grad():
        inputs = processor(images=[Image.fromarray(image) for image in IMAGES[30:]], return_tensors="pt")
        ours, theirs = (each(**inputs).logits.argmax(1) for each in (pruned.model, model))
    assert result.fidelity[0].value == pytest.approx(100 * float((ours == theirs).float().mean()))


def test_whisper_is_compared_by_its_states():
    model, other = zoo.build("whisper", "encoder states"), zoo.build("whisper", "encoder states")
    with torch.no_grad():
        other.get_encoder().layers[0].fc2.weight.mul_(0.5)
    sounds = [np.random.default_rng(seed).normal(size=9000) / 10 for seed in range(4)]
    result = evaluate(other, whisper_extractor(), read_audio(sounds), against=model)
    inputs = [
        whisper_extractor()(sound, sampling_rate=16000, return_tensors="pt")["input_features"] for sound in sounds
    ]
    with torch.no_grad():
        ours, theirs = (each.get_encoder()(torch.cat(inputs)).last_hidden_state for each in (other, model))
    expected = torch.nn.functional.cosine_similarity(ours, theirs, dim=-1).mean()
    assert [(each.name, each.value) for each in result.fidelity] == [("cosine", pytest.approx(100 * float(expected)))]
    assert result.fidelity[0].value < 99.9


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: draw_images(IMAGES, load_tokenizer(), images=3), "the model reads pixel_values, which a .* does not"),
        (lambda: draw_images(IMAGES, image_processor()), "either as images=… or as tokens=…"),
        (lambda: draw_images(IMAGES, image_processor(), tokens=5), "tokens=5 are counted by the model; pass model=…"),
        (lambda: draw_images(IMAGES, image_processor(), images=0), "the sample size is 0"),
        (lambda: draw_audio([np.zeros(999)], image_processor(), pieces=3), "pass the model's feature extractor"),
        (
            lambda: evaluate(zoo.build("vit"), image_processor(), read_images(IMAGES), max_length=9),
            "has no right answers|fixes the number of tokens",
        ),
    ],
)
def test_bad_requests_get_a_sentence(make, sentence):
    with pytest.raises(KpruneError, match=sentence):
        make()
