"""Texts that are published name no folder of the machine."""

import pytest

from kprune.checkpoints.names import without_folders


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("--model sst2=/x/y/z --out results/a.jsonl", "--model sst2=z --out a.jsonl"),
        (
            "OSError: [Errno 28] No space left on device: '/a/b/file'",
            "OSError: [Errno 28] No space left on device: 'file'",
        ),
        ('relative "a/b.txt", and no path', 'relative "b.txt", and no path'),
    ],
)
def test_of_each_path_in_a_text_the_last_part_stays(text, expected):
    assert without_folders(text) == expected
