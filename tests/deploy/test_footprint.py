"""Load time and memory, measured in a new process."""

import tiny

from kprune.checkpoints.source import Source
from kprune.deploy.footprint import measure_footprint
from kprune.deploy.runtimes import RUNTIMES


def test_a_new_process_measures_load_time_and_memory(tmp_path):
    # Words enough for a growth of megabytes, which the smallest allocations of a process do not hide.
    tiny.tiny_model(vocab_size=100_000).save_pretrained(tmp_path)
    found = measure_footprint("tiny", Source(tmp_path), None, RUNTIMES["torch"], (4, 32), 1)
    assert (found.model, found.runtime) == ("tiny", "torch")
    assert found.load_seconds > 0
    assert found.peak_megabytes > 10
    assert found.disk_megabytes == (tmp_path / "model.safetensors").stat().st_size / 1e6
