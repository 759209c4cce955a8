"""Compressed files and standard input hold the same rows as plain files."""

import gzip
import io
import json
import sys

import pytest

from kprune import KpruneError, read_lines, read_rows
from kprune.data.file_text import ending_of, name_of
from kprune.data.readers import is_table_file
from kprune.jobs.data_options import DataOptions

ROWS = [{"text": "One, or “two”?"}, {"text": "three"}]
TABLES = {
    ".jsonl": "\n".join(map(json.dumps, ROWS)),
    ".csv": 'text\n"One, or “two”?"\nthree\n',
    ".tsv": "text\nOne, or “two”?\nthree\n",
}


class Pipe(io.TextIOWrapper):
    """Standard input of a command in a pipe."""

    def __init__(self, content: str) -> None:
        super().__init__(io.BytesIO(content.encode()))


@pytest.mark.parametrize("ending", TABLES)
def test_a_compressed_table_has_the_rows_of_the_plain_one(ending, tmp_path):
    plain, compressed = tmp_path / f"a{ending}", tmp_path / f"a{ending}.gz"
    plain.write_text(TABLES[ending], "utf-8")
    compressed.write_bytes(gzip.compress(plain.read_bytes()))
    assert read_rows(compressed) == read_rows(plain) == [(row["text"],) for row in ROWS]


def test_compressed_lines_are_the_plain_lines(tmp_path):
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(b"one\n\ntwo\n"))
    assert read_lines(tmp_path / "a.txt.gz") == [("one",), ("two",)]


def test_the_ending_below_the_compression_counts():
    assert [ending_of(name) for name in ("a.csv", "a.csv.gz", "b/c.txt.gz", "a.gz", "a")] == [
        ".csv",
        ".csv",
        ".txt",
        "",
        "",
    ]
    assert [is_table_file(name) for name in ("a.csv.gz", "a.txt.gz", "-")] == [True, False, True]
    assert [name_of(name) for name in ("a/b.csv.gz", "-")] == ["b.csv.gz", "standard input"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt.gz", b"plain", "cannot decompress .*a.txt.gz .Not a gzipped file.*; compress it again"),
        ("a.jsonl.gz", gzip.compress(b"x" * 999, mtime=0)[:-9], "cannot decompress"),
        ("a.parquet.gz", b"", "is Parquet, which is compressed inside; decompress the file with gunzip first"),
    ],
)
def test_a_file_that_is_not_compressed_as_named_is_refused(name, content, message, tmp_path):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(KpruneError, match=message):
        (read_lines if "txt" in name else read_rows)(tmp_path / name)


def test_standard_input_is_lines_or_json_lines(monkeypatch):
    monkeypatch.setattr(sys, "stdin", Pipe("one\ntwo\n"))
    assert read_lines("-") == [("one",), ("two",)]
    monkeypatch.setattr(sys, "stdin", Pipe(TABLES[".jsonl"]))
    sample, test = DataOptions(table=("-",)).sample_and_test(wants_test=False, seed=0)
    assert (sample.name, [text for (text,) in sample.rows], test) == (
        "standard input",
        [row["text"] for row in ROWS],
        None,
    )


def test_files_and_standard_input_are_read_in_order(monkeypatch, tmp_path):
    (tmp_path / "a.txt").write_text("one\n")
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(b"three\n"))
    monkeypatch.setattr(sys, "stdin", Pipe("two\n"))
    texts = [tmp_path / "a.txt", "-", tmp_path / "b.txt.gz"]
    sample, _ = DataOptions(text=texts).sample_and_test(wants_test=False, seed=0)
    assert [text for (text,) in sample.rows] == ["one", "two", "three"]


def test_standard_input_without_data_is_refused(monkeypatch):
    monkeypatch.setattr(sys, "stdin", Pipe(""))
    with pytest.raises(KpruneError, match="standard input is empty, or was read already"):
        read_lines("-")
    monkeypatch.setattr(sys, "stdin", Pipe("one\n"))
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(KpruneError, match="several processes cannot share standard input"):
        read_lines("-")
