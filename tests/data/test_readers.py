import csv
import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from task_data import load_tokenizer

from kprune import KpruneError, draw, read_lines, read_rows, read_test
from kprune.data.readers import READERS, read_table


def test_lines_are_texts_and_blank_ones_are_not(tmp_path):
    (tmp_path / "a.txt").write_bytes("﻿one\r\n\n  two  \n\u2028three".encode())
    assert read_lines(tmp_path / "a.txt") == [("one",), ("two",), ("three",)]
    assert read_lines(str(tmp_path / "a.txt")) == [("one",), ("two",), ("three",)]


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"\xff\xfe\x00", "not UTF-8 text .byte 0 is 0xff"), (b"ab\x00c", "is not text .character 2 is null")],
)
def test_a_file_that_is_not_text_is_refused(content, message, tmp_path):
    (tmp_path / "a.txt").write_bytes(content)
    with pytest.raises(KpruneError, match=message):
        read_lines(tmp_path / "a.txt")


def test_halves_of_characters_are_replaced(tmp_path):
    (tmp_path / "a.jsonl").write_text(r'{"text": "a \ud83d smile"}' + "\n" + r'{"text": "\ud83d\ude00"}')
    rows = read_rows(str(tmp_path / "a.jsonl"))
    assert rows == [("a \ufffd smile",), ("\U0001f600",)]
    assert draw(rows, load_tokenizer(), tokens=3, max_length=16)


def test_a_line_of_megabytes_is_one_text(tmp_path):
    (tmp_path / "a.txt").write_text("word " * 400_000 + "\n\n \nshort\n")
    rows = read_lines(tmp_path / "a.txt")
    assert [len(text) for (text,) in rows] == [1_999_999, 5]
    batches = draw(rows, load_tokenizer(), tokens=1000, max_length=32)
    assert sum(int(batch["attention_mask"].sum()) for batch in batches) == 32 + 3


def test_rows_without_text_are_left_out(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": ""}\n\n{"text": null}\n{"text": " \\t"}\n{"text": "word"}\n')
    assert read_rows(str(tmp_path / "a.jsonl"), ["text"]) == [("word",)]


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(KpruneError, match=r"cannot read .*missing.txt: No such file"):
        read_lines(tmp_path / "missing.txt")


def write_table(folder: Path, ending: str) -> Path:
    rows = [{"id": 1, "q": 'What, "is" it?', "a": "An apple"}, {"id": 2, "q": "Where?", "a": "here, there"}]
    path = folder / f"table{ending}"
    if ending == ".jsonl":
        path.write_text("\n".join(map(json.dumps, rows)))
    elif ending == ".csv":
        path.write_text('id,q,a\n1,"What, ""is"" it?",An apple\n2,Where?,"here, there"\n')
    elif ending == ".tsv":
        path.write_text('id\tq\ta\n1\tWhat, "is" it?\tAn apple\n2\tWhere?\there, there\n')
    else:
        import datasets

        datasets.Dataset.from_list(rows).to_parquet(path)
    return path


@pytest.mark.parametrize("ending", [".jsonl", ".csv", ".tsv", ".parquet"])
def test_every_kind_of_table_gives_the_same_rows(ending, tmp_path):
    path = write_table(tmp_path, ending)
    assert read_rows(str(path), ["q", "a"]) == [('What, "is" it?', "An apple"), ("Where?", "here, there")]
    assert read_rows(str(path), ["a"]) == [("An apple",), ("here, there",)]
    with pytest.raises(KpruneError, match=r"has no column 'text'; it has id, q, a"):
        read_rows(str(path), ["text"])
    with pytest.raises(KpruneError, match=r"has \d text columns .*; name one or two"):
        read_rows(str(path))


def test_a_quoted_cell_may_hold_line_breaks(tmp_path):
    (tmp_path / "a.csv").write_bytes(b'n,text\r\n1,"one\n\ntwo"\r\n2,three\r\n')
    assert read_rows(str(tmp_path / "a.csv"), ["text"]) == [("one\n\ntwo",), ("three",)]


def test_a_folder_in_the_hubs_layout_is_a_data_set(tmp_path):
    write_table(tmp_path, ".parquet").rename(tmp_path / "train-00000-of-00001.parquet")
    assert read_rows(str(tmp_path), ["a"]) == [("An apple",), ("here, there",)]
    with pytest.raises(KpruneError, match=r"cannot load the data set .*split 'nope'"):
        read_rows(str(tmp_path), ["a"], split="nope")


def test_the_only_text_column_need_not_be_named(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"n": 1, "text": "one"}\n\n{"n": 2, "text": " "}\n{"n": 3, "text": null}')
    assert read_rows(str(tmp_path / "a.jsonl")) == [("one",)]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", "{", "line 1, is not JSON"),
        ("a.jsonl", "[1]", "line 1, is not a JSON object"),
        ("a.jsonl", "[" * 100_000, "line 1, is not JSON .maximum recursion"),
        ("a.jsonl", '{"text": 4}', "holds 4, not text"),
        ("a.parquet", "no", "as Parquet"),
        ("a.doc", "x", "ends in none of .jsonl"),
    ],
)
def test_a_table_that_cannot_be_read_is_refused(name, content, message, tmp_path):
    (tmp_path / name).write_text(content)
    with pytest.raises(KpruneError, match=message):
        read_rows(str(tmp_path / name), ["text"])


def test_a_parquet_file_whose_text_is_no_text_is_refused(tmp_path):
    import pyarrow
    from pyarrow import parquet

    path = tmp_path / "a.parquet"
    parquet.write_table(pyarrow.table({"text": ["word"] * 3}), path, compression="none", use_dictionary=False)
    path.write_bytes(path.read_bytes().replace(b"word", b"\xaford"))
    with pytest.raises(KpruneError, match="as Parquet: 'utf-8' codec can't decode byte 0xaf"):
        read_rows(str(path), ["text"])


def test_more_columns_than_a_pair_and_missing_files_are_refused(tmp_path):
    (tmp_path / "a.csv").write_text("a,b,c\nx,y,z\n")
    with pytest.raises(KpruneError, match="3 columns were named"):
        read_rows(str(tmp_path / "a.csv"), ["a", "b", "c"])
    with pytest.raises(KpruneError, match=r"there is no file .*nope.csv"):
        read_rows(str(tmp_path / "nope.csv"), ["a"])


def test_a_data_set_that_cannot_be_loaded_is_refused():
    with pytest.raises(KpruneError, match=r"cannot load the data set 'no/such-set'.*Pass a folder or a file"):
        read_rows("no/such-set")


def test_the_line_of_a_row_without_the_column_is_said(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "one", "y": 1}\n\n{"body": "two"}\n')
    with pytest.raises(KpruneError, match=r"^line 3 of .*a.jsonl has no column 'text'; it has body\.$"):
        read_rows(str(path), ["text"])
    with pytest.raises(KpruneError, match=r"^line 3 of .*a.jsonl has 2 text columns \(text, body\); name one or two"):
        read_rows(str(path))
    path.write_text('{"text": "one", "y": 1}\n\n{"text": "two", "y": null}\n')
    with pytest.raises(KpruneError, match=r"^line 3 of a has no 'y'; fill it in, or remove the row\.$"):
        read_test(read_table(path), ["text"], "y", name="a")


def test_a_path_may_be_a_text_or_a_path(tmp_path):
    (tmp_path / "a.csv").write_text("text\nword\n")
    assert read_rows(tmp_path / "a.csv") == read_rows(str(tmp_path / "a.csv")) == [("word",)]
    for reader in (read_lines, read_rows):
        with pytest.raises(KpruneError, match=r"there is no file 'a\\x00b.csv'; check the path"):
            reader("a\0b.csv")


@pytest.mark.parametrize(("name", "delimiter"), [("rows.csv", ","), ("rows.tsv", "\t")])
def test_a_row_with_more_cells_than_the_header_is_named(name, delimiter, tmp_path):
    path = tmp_path / name
    path.write_text(f"text{delimiter}y\nfine{delimiter}1\ngood{delimiter} but long{delimiter}1\n")
    with pytest.raises(KpruneError, match=r"line 3, has more cells than the header has columns; put texts that"):
        read_rows(str(path), ["text"])
    path.write_text(f"text{delimiter}y\nfine{delimiter}1\n")
    assert read_rows(str(path), ["text"]) == [("fine",)]


@pytest.mark.parametrize("name", ["rows.csv", "rows.tsv", "rows.jsonl", "rows.parquet"])
def test_a_table_is_not_read_as_lines(name, tmp_path):
    (tmp_path / name).write_text("text,y\nfine,1\n")
    with pytest.raises(KpruneError, match=f"{name} is a table by its ending, not a file of lines; read it with"):
        read_lines(tmp_path / name)


@pytest.mark.parametrize(("suffix", "delimiter"), [("csv", ","), ("tsv", "\t")])
def test_two_columns_of_one_name_are_refused(suffix, delimiter, tmp_path):
    path = tmp_path / f"twice.{suffix}"
    path.write_text(delimiter.join(["text", "label", "text"]) + "\n" + delimiter.join(["one", "1", "two"]) + "\n")
    with pytest.raises(KpruneError, match="has two columns 'text'; rename one of them in the first line"):
        read_rows(path, ["text"])


@pytest.mark.parametrize(
    ("header", "is_suspicious"),
    [
        ("text,label", False),
        ("Review Text,Sentiment (0 to 4)", False),
        (",text,label", False),  # pandas writes its index without a name
        ("a good film with many good scenes,positive", True),
        ("fine,1", True),
    ],
)
def test_a_header_that_looks_like_data_gets_a_warning(header, is_suspicious, tmp_path, caplog):
    path = tmp_path / "table.csv"
    path.write_text(header + "\n" + ",".join(["word"] * len(header.split(","))) + "\n")
    list(read_table(path))
    assert ("is read as column names" in caplog.text) == is_suspicious


@pytest.mark.parametrize("suffix", ["csv", "tsv"])
def test_a_row_with_too_few_cells_is_refused_by_its_line(suffix, tmp_path):
    path = tmp_path / f"short.{suffix}"
    delimiter = "," if suffix == "csv" else "\t"
    path.write_text("\n".join([delimiter.join(["text", "label"]), delimiter.join(["one", "1"]), "two", ""]))
    with pytest.raises(KpruneError, match="line 3, has fewer cells than the header has columns"):
        read_rows(path, ["text"])


def test_quotes_of_a_tsv_writer_get_a_warning(tmp_path, caplog):
    texts = ["plain", 'he said "no"']
    for quoted in (False, True):
        cells = [f'"{text.replace(chr(34), chr(34) * 2)}"' if quoted else text for text in texts]
        (tmp_path / "table.tsv").write_text("\n".join(["text", *cells, ""]))
        assert [row for (row,) in read_rows(tmp_path / "table.tsv")] == cells
        assert ("are in quotes" in caplog.text) == quoted


def test_labelled_rows_without_text_are_counted(caplog):
    rows = [{"text": "a text", "y": 1}, {"text": " ", "y": 0}, {"text": None, "y": 0}]
    assert len(read_test(rows, ["text"], name="mine").rows) == 1
    assert not caplog.text
    assert len(read_test(rows, ["text"], "y", name="mine").rows) == 1
    assert "2 of 3 rows of mine have no text and are left out" in caplog.text


@pytest.mark.parametrize(("name", "delimiter"), [("a.csv", ";"), ("a.csv", "\t"), ("a.csv", "|"), ("a.tsv", ",")])
@pytest.mark.parametrize("columns", [(), ("text",)])
def test_a_table_with_another_delimiter_is_refused(name, delimiter, columns, tmp_path):
    path = tmp_path / name
    path.write_text(f"text{delimiter}label\na good film{delimiter}1\n")
    with pytest.raises(KpruneError, match=r"has the only column 'text.+label'; put '(,|.t)' between its cells"):
        read_rows(path, columns)


def write_rows(path: Path, texts: list[str]) -> None:
    rows = [{"number": number, "text": text} for number, text in enumerate(texts)]
    if path.suffix == ".jsonl":
        path.write_text("\n".join(map(json.dumps, rows)))
    elif path.suffix == ".parquet":
        import datasets

        datasets.Dataset.from_list(rows).to_parquet(path)
    else:
        quoting = csv.QUOTE_NONE if path.suffix == ".tsv" else csv.QUOTE_MINIMAL
        with path.open("w", newline="", encoding="utf-8") as file:
            delimiter = "\t" if path.suffix == ".tsv" else ","
            writer = csv.writer(file, delimiter=delimiter, quoting=quoting, quotechar=None if quoting else '"')
            writer.writerows([["number", "text"], *(row.values() for row in rows)])


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    texts=st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12), min_size=1, max_size=5),
    suffix=st.sampled_from(sorted(READERS)),
)
def test_texts_that_were_written_are_read(texts, suffix, tmp_path):
    if suffix == ".tsv":  # cells are not quoted
        texts = [text.translate(dict.fromkeys(map(ord, "\t\r\n"), " ")) for text in texts]
    write_rows(tmp_path / f"table{suffix}", texts)
    expected = [(text,) for text in texts if text.strip()]
    assert read_rows(tmp_path / f"table{suffix}", ["text"]) == expected
