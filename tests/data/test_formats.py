"""Rows of every kind of file: the same rows, the same ids, found again one by one; damaged files are named."""

from __future__ import annotations

import base64
import csv
import gzip
import io
import json
import math
import pickle
import tarfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy
import pytest

from evalharness.api.errors import ConfigError, EvalHarnessError, ImageError, MissingData
from evalharness.api.images import StoredBytes, image_size
from evalharness.data import RowCase, cases_from, read_rows

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

TEXTS = ["plain", "two\nlines", "a\u2028b\u2029c\x85d", 'quoted "words", and commas', "für 漢字 🙂", "", " \t spaces "]
ROWS: list[dict[str, Any]] = [{"q": text, "n": number, "deep": {"list": [1, number]}} for number, text in enumerate(TEXTS)]


def json_text(rows: Any, **options: Any) -> str:
    return json.dumps(rows, ensure_ascii=False, **options)


def write_jsonl(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    path.write_bytes(b"\xef\xbb\xbf" + "\r\n".join([*map(json_text, rows), "", ""]).encode())


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    with path.open("w", encoding="utf-8-sig", newline="") as file:
        writer = csv.writer(file, delimiter="\t" if path.suffix == ".tsv" else ",")
        writer.writerows([list(rows[0]), *(list(row.values()) for row in rows)])


def write_ipc(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    make = pa.ipc.new_file if path.name == "file.arrow" else pa.ipc.new_stream
    table = pa.Table.from_pylist(rows)
    with pa.OSFile(str(path), "wb") as sink, make(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=3)


def write_parquet(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=3)


def write_tar(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    files = [(f"data/{number:03}.json", json_text(row).encode()) for number, row in enumerate(rows)]
    path.write_bytes(tar_of(files))


def tar_of(files: Sequence[tuple[str, bytes]]) -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        for name, data in files:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return content.getvalue()


WRITERS: dict[str, Callable[[Path, Sequence[Mapping[str, Any]]], object]] = {
    "a.parquet": write_parquet,
    "file.arrow": write_ipc,
    "stream.arrow": write_ipc,
    "a.jsonl": write_jsonl,
    "a.json": lambda path, rows: path.write_text(json_text(rows, indent=1), "utf-8-sig"),
    "named.json": lambda path, rows: path.write_text(json_text({"version": 1, "notes": ["x"], "data": rows}), "utf-8"),
    "keyed.json": lambda path, rows: path.write_text(json_text({f"k{i}": row for i, row in enumerate(rows)}), "utf-8"),
    "lines.json": write_jsonl,
    "a.jsonl.gz": lambda path, rows: path.write_bytes(gzip.compress("\n".join(map(json_text, rows)).encode())),
    "a.jsonl.zst": lambda path, rows: path.write_bytes(pa.compress("\n".join(map(json_text, rows)).encode(), "zstd", asbytes=True)),
    "a.tar": write_tar,
    "a.csv": write_csv,
    "a.tsv": write_csv,
}


def written(folder: Path, name: str, rows: Sequence[Mapping[str, Any]] = ROWS) -> Path:
    WRITERS[name](folder / name, [{**row, "deep": None} for row in rows] if name in ("a.csv", "a.tsv") else rows)
    return folder / name


@pytest.mark.parametrize("name", WRITERS)
def test_rows_are_those_that_were_written_and_each_is_found_again(name: str, tmp_path: Path) -> None:
    written(tmp_path, name)
    cases = list(cases_from(name)(tmp_path))
    rows = list(read_rows(name, data_dir=tmp_path))
    assert [dict(case.row) for case in cases] == rows
    assert [dict(case.row) for case in reversed(cases)] == rows[::-1]
    assert {row["__file__"] for row in rows} == {name}
    if name == "a.tar":
        rows = [row["json"] for row in rows]
    wanted = [{**row, "n": str(row["n"]), "deep": ""} for row in ROWS] if name in ("a.csv", "a.tsv") else ROWS
    assert [{key: row[key] for key in ("q", "n", "deep")} for row in rows] == wanted


def test_ids_are_made_of_contents_whatever_the_format_and_the_order(tmp_path: Path) -> None:
    rows = [*ROWS, ROWS[2], {"n": 7.0, "q": "other", "deep": {"list": [1, 7]}, "absent": None}, ROWS[2]]
    ids = {}
    for name in ("a.parquet", "stream.arrow", "a.jsonl", "a.json", "a.jsonl.gz"):
        of_rows = written(tmp_path, name, rows), written(tmp_path, f"{name}", rows[::-1])
        ids[name] = {case.id for case in cases_from(name)(of_rows[0])}
    assert len({frozenset(each) for each in ids.values()}) == 1
    first = next(iter(ids.values()))
    assert len(first) == len(rows)
    assert {case_id.partition("-")[2] for case_id in first} == {"", "2", "3"}
    assert first == {case.id for case in cases_from(rows)(None)}


DAMAGED: dict[str, tuple[bytes | None, str]] = {
    "a.parquet": (None, "a.parquet cannot be read, it is damaged or cut off"),
    "file.arrow": (None, "file.arrow cannot be read"),
    "a.jsonl.gz": (None, "a.jsonl.gz cannot be read, it is damaged or cut off"),
    "a.jsonl.zst": (None, "a.jsonl.zst cannot be read, it is damaged or cut off: Truncated"),
    "a.tar": (None, "a.tar cannot be read, it is damaged or cut off"),
    "a.json": (None, "a.json is not JSON"),
    "a.jsonl": (b'{"q": 1}\n\n{"q": 2\n', "a.jsonl:3 is not JSON"),
    "b.jsonl": (b'{"q": 1}\n[1]\n', "b.jsonl:2 must be a JSON object, a row by column, got .1."),
    "c.jsonl": (b'{"q": "\xff"}\n', "c.jsonl:1 is not UTF-8 .*byte ff.*; save it as UTF-8"),
    "d.jsonl": (b"[" * 100_000, "d.jsonl:1 is not JSON"),
    "e.jsonl": (b'{"q": Infinity}', "e.jsonl:1 is not JSON: Infinity is not JSON"),
    "two.json": (
        b'{"a": [{"x": 1}], "b": [{"x": 1}]}',
        "two.json holds several lists of objects, a, b; say whose rows are meant with field=",
    ),
    "behind.json": (b'[{"x": 1}]\n[{"x": 2}]\n', "behind.json is not JSON: the file goes on behind its end at character 11, with '.{"),
    "text.json": (b'"x"', "text.json must hold a list of JSON objects"),
    "a.csv": (b"q,n\nx,1\n\ny\n", "a.csv:4 has 1 values and must have 2, as the first line has .q, n."),
    "b.csv": (b"q,q\nx,1\n", "b.csv: the first line must name each column once, got 'q' twice"),
    "c.csv": (b'q,n\n"never closed,1\nx,2\n', "c.csv:2 is not a row of a table: unexpected end of data"),
    "d.csv": (b"q,n\n\xff,2\n", "d.csv is not UTF-8"),
    "b.tar": (tar_of([("1.json", b"{")]), "b.tar: 1.json is not JSON"),
    "c.tar": (tar_of([("1.cls", b"x")]), "c.tar: 1.cls is not a whole number"),
    "lfs.csv": (
        b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n",
        "lfs.csv is a Git LFS pointer, not the file itself; run `git lfs",
    ),
    "a.xlsx": (b"", "a.xlsx has no end that says how it is read; known are .parquet, .arrow"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damage_is_named(name: str, tmp_path: Path) -> None:
    content, message = DAMAGED[name]
    path = tmp_path / name
    if content is None:
        whole = written(tmp_path, name).read_bytes()
        content = whole[: len(whole) * 2 // 3]
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        list(cases_from(name)(path))


PNG = base64.b64decode("iVBORw0KGgoAAAANSUhEUgAAAAgAAAAICAIAAABLbSncAAAAE0lEQVR4nGNkYPjPgA0wYRUdtBIAO/8BDxAYK9cAAAAASUVORK5CYII=")


def test_images_are_read_from_bytes_and_paths_and_urls_make_invalid_cases(tmp_path: Path) -> None:
    (tmp_path / "x.png").write_bytes(PNG)
    kind = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    inside, outside = {"bytes": PNG, "path": "no.png"}, {"bytes": None, "path": "x.png"}
    columns = {
        "mixed": [{"text": "cat", "parts": [b"x"]}] * 3,
        "one": pa.array([inside, outside, None], kind),
        "raw": pa.array([PNG, None, PNG], pa.binary()),
        "many": pa.array([[inside, outside], [], [inside]], pa.list_(kind)),
        "file": ["x.png", None, "https://example.com/x.png"],
    }
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    cases = list(cases_from("a.parquet", image=["one", "raw", "many", "file"])(tmp_path))
    assert [len(case.images) for case in cases[:2]] == [5, 1]
    assert {image_size(image) for case in cases[:2] for image in case.images} == {(8, 8)}
    assert str(cases[2].invalid).startswith("a.parquet: row 3, file is https://example.com/x.png: URLs are not fetched; save the images")
    assert (cases[0].row["mixed"]["text"], cases[0].row["mixed"]["parts"][0].read()) == ("cat", b"x")
    assert (cases[0].row["many"][1].path, cases[1].row["raw"], cases[2].row["one"]) == ("x.png", None, None)
    text = base64.b64encode(PNG * 3).decode()
    rows = [{"i": "x.png"}, {"i": f"data:image/png;base64,{text}"}, {"i": text}, {"i": ""}, {"i": PNG}, {"i": 7}]
    given = list(cases_from(rows, image="i")(tmp_path))
    assert [image_size(case.images[0]) for case in given[:5] if case.images] == [(8, 8)] * 4
    [empty] = cases_from([{"i": {"bytes": b""}}], image="i")(tmp_path)
    with pytest.raises(ImageError, match="i"):
        image_size(*empty.images)
    with pytest.raises(ConfigError, match=r"rows: row 1: map failed at test_formats\.py:\d+, .*row\[.*: KeyError: 'no'"):
        list(cases_from(rows, map=lambda row: row["no"])(tmp_path))
    assert given[5].invalid == "rows: row 6, i must be an image's bytes or path, got 7"


PACK: dict[str, Callable[[bytes], Any]] = {".gz": gzip.compress, ".zst": lambda content: pa.compress(content, "zstd", asbytes=True)}


def test_a_tar_of_images_is_read_in_place_and_no_pickle_is_loaded(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> Any:
            return (Path.touch, (tmp_path / "sprung",))

    files = [("a/1.jpg", PNG), ("a/1.cls", b" 3\n"), ("a/1.seg.png", PNG), ("a/2.txt", "für".encode()), ("a/2.pkl", pickle.dumps(Trap()))]
    for name, pack in (("s.tar", bytes), ("s.tar.gz", PACK[".gz"]), ("s.tgz", PACK[".gz"]), ("s.tar.zst", PACK[".zst"])):
        (tmp_path / name).write_bytes(pack(tar_of(files)))
        first, second = cases_from(name, id="__key__")(tmp_path)
        assert (first.id, second.id) == ("a/1", "a/2")
        assert (first.row["cls"], second.row["txt"], first.row["jpg"].read(), first.row["seg.png"].read()) == (3, "für", PNG, PNG)
        assert isinstance(second.row["pkl"], StoredBytes)
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize(
    ("name", "begins"), [("a.jsonl", b""), ("a.json", b"["), ("a.csv", b"q,n\n"), ("a.tar", tar_of([("1.json", b"1" * 10**6)])[:512])]
)
@pytest.mark.parametrize("packed", PACK)
def test_a_small_file_does_not_unpack_to_a_huge_one(
    name: str, begins: bytes, packed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / f"{name}{packed}").write_bytes(PACK[packed](begins + b" " * 2_000_000))
    monkeypatch.setattr("evalharness.data.unpacked._ALWAYS_ALLOWED", 500_000)
    with pytest.raises(
        ConfigError, match=rf"{name}\{packed} unpacks to more than 0 MB, which is over 200 times its size; if that is meant"
    ):
        list(read_rows(data_dir=tmp_path / f"{name}{packed}"))


def test_json_lines_are_read_whatever_the_name(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('\n {"q": 1, "a": [{"b": 2}]}\n\n  {"q": 2}\n')
    cases = list(cases_from("a.json")(tmp_path))
    assert [case.row["q"] for case in cases] == [1, 2]
    for other, message in (('{"q": 1}\n{"q": 2', "a.json:2 is not JSON"), ('{"q": 1}\n[]', "goes on behind its end at character 9")):
        (tmp_path / "a.json").write_text(other)
        with pytest.raises(ConfigError, match=message):
            list(cases_from("a.json")(tmp_path))


@pytest.mark.parametrize("at_once", [1, 5, 100])
def test_a_json_list_is_read_a_few_elements_at_a_time(at_once: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evalharness.data.text_files._AT_ONCE", at_once)
    path = written(tmp_path, "a.json")
    cases = list(cases_from("a.json")(tmp_path))
    assert [{**case.row, "__file__": None} for case in cases[::-1]] == [{**row, "__file__": None} for row in ROWS[::-1]]
    whole = path.read_text("utf-8-sig").rstrip()
    for damaged, message in ((whole[:-5], "a.json is not JSON: "), (f"{whole} {{", "the file goes on behind its end at character")):
        path.write_text(damaged, "utf-8")
        with pytest.raises(ConfigError, match=message):
            list(cases_from("a.json")(tmp_path))


@pytest.mark.parametrize("column", ["json", "jpg"])
def test_the_size_that_a_tars_header_claims_takes_no_memory(column: str, tmp_path: Path) -> None:
    member = tarfile.TarInfo(f"1.{column}")
    member.size = 1 << 40
    (tmp_path / "a.tar").write_bytes(member.tobuf(tarfile.GNU_FORMAT) + b"{}" * 300)
    with pytest.raises(ConfigError, match="a.tar cannot be read, it is damaged or cut off"):
        list(read_rows("a.tar", data_dir=tmp_path))


def test_objects_that_datasets_keeps_as_json_are_read(tmp_path: Path) -> None:
    kept = pa.array([['{"a": 1}', None], None], pa.list_(pa.string())).cast(pa.list_(pa.json_(pa.string())))
    pq.write_table(pa.table({"n": [1, 2], "kwargs": kept}), tmp_path / "a.parquet")
    assert [case.row["kwargs"] for case in cases_from("a.parquet", id="n")(tmp_path)] == [[{"a": 1}, None], None]


def test_a_file_of_images_alone_has_as_many_rows_as_images(tmp_path: Path) -> None:
    kept = pa.table({"image": [PNG] * 5})
    pq.write_table(kept, tmp_path / "a.parquet", row_group_size=2)
    with pa.OSFile(str(tmp_path / "a.arrow"), "wb") as file, pa.ipc.new_stream(file, kept.schema) as writer:
        writer.write_table(kept, max_chunksize=2)
    for name in ("a.parquet", "a.arrow"):
        assert [row["image"].read() for row in read_rows(name, data_dir=tmp_path)] == [PNG] * 5


@pytest.mark.parametrize("name", ["a.parquet", "file.arrow", "stream.arrow", "a.jsonl", "a.json"])
def test_a_file_without_rows_has_none(name: str, tmp_path: Path) -> None:
    written(tmp_path, name, [])
    assert list(cases_from(name)(tmp_path)) == []


@pytest.mark.parametrize("free_bytes", [1 << 40, 0])
def test_large_row_groups_are_read_some_rows_at_a_time(free_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from evalharness.data import arrow_files

    monkeypatch.setattr(arrow_files, "_free_bytes", lambda: free_bytes)
    monkeypatch.setattr(arrow_files, "_MAX_PART_BYTES", 400)
    monkeypatch.setattr(arrow_files, "_MAX_CACHED_BYTES", 100)
    rows = [{"n": number, "text": f"{number} " * 20, "raw": b"x" * number} for number in range(100)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet", row_group_size=70)
    cases = list(cases_from("a.parquet", id="n")(tmp_path))
    for order in (range(100), range(99, -1, -7), (3, 90, 4, 91, 5, 60, 2, 50, 1, 40)):  # some from a copy that is made for them
        assert [(cases[at].row["n"], len(cases[at].row["raw"].read())) for at in order] == [(at, at) for at in order]
    copies = cases[0].file._copies  # type: ignore[attr-defined]
    assert {columns for _, columns in copies} == ({("n", "text"), ("raw",)} if free_bytes else set())


class TestFolders:
    def test_a_saved_data_set_is_meant_itself_and_of_its_splits_the_one_that_is_named(self, tmp_path: Path) -> None:
        for folder in ("one", "all/train", "all/test"):
            (tmp_path / folder).mkdir(parents=True)
            write_ipc(tmp_path / folder / "data-00000-of-00001.arrow", [{"q": folder}])
            (tmp_path / folder / "state.json").write_text('{"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}')
            (tmp_path / folder / "dataset_info.json").write_text("{}")
        (tmp_path / "all" / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
        assert [row["q"] for row in read_rows("x.parquet", data_dir=tmp_path / "one")] == ["one"]
        assert [row["q"] for row in read_rows("main/test-*.parquet", data_dir=tmp_path / "all")] == ["all/test"]
        assert [row["q"] for row in read_rows("train", data_dir=tmp_path / "all")] == ["all/train"]
        with pytest.raises(ConfigError, match="holds the splits train, test; give the folder of one"):
            list(read_rows(data_dir=tmp_path / "all"))
        (tmp_path / "one" / "state.json").write_text('{"_data_files": [{"filename": "../x.arrow"}]}')
        with pytest.raises(ConfigError, match="names files outside of its folder"):
            list(read_rows(data_dir=tmp_path / "one"))

    def test_a_folder_of_the_hubs_cache_stands_for_its_snapshot(self, tmp_path: Path) -> None:
        hub = tmp_path / "datasets--org--name"
        for revision in ("aaa", "bbb"):
            (hub / "snapshots" / revision).mkdir(parents=True)
            write_jsonl(hub / "snapshots" / revision / "test.jsonl", [{"q": revision}])
        (hub / "blobs").mkdir()
        with pytest.raises(ConfigError, match="holds 2 revisions, and refs/main names none of them; give the folder of one"):
            list(read_rows("test.jsonl", data_dir=hub))
        (hub / "refs").mkdir()
        (hub / "refs" / "main").write_text("bbb")
        assert [row["q"] for row in read_rows("test.jsonl", data_dir=hub)] == ["bbb"]

    def test_the_hubs_whole_cache_stands_for_the_snapshots_of_its_data_sets(self, tmp_path: Path) -> None:
        for name, columns in (("org--one", {"q": "one"}), ("org--two", {"x": "two"}), ("us--one", {"q": "again"})):
            snapshot = tmp_path / f"datasets--{name}" / "snapshots" / "aaa"
            (snapshot / "main").mkdir(parents=True)
            (snapshot.parents[1] / "blobs").mkdir()
            write_jsonl(snapshot / "main" / "test.jsonl", [columns])
        assert [case.row["x"] for case in cases_from("main/test.jsonl", needs=("x",))(tmp_path)] == ["two"]
        with pytest.raises(ConfigError, match=r"such files in datasets--org--one/\S+/aaa, datasets--us--one/\S+/aaa; give one of these"):
            next(cases_from("main/test.jsonl", needs=("q",))(tmp_path))
        (tmp_path / "datasets--org--one" / "snapshots" / "bbb").mkdir()  # which is meant is not clear, nor asked
        own = [tmp_path / name for name in ("own.jsonl", "more.jsonl")]
        for path in own:
            write_jsonl(path, [{"x": path.stem}])
        names = (str(tmp_path / "datasets--org--two" / "**" / "test.jsonl"), str(own[0]), str(tmp_path / "*.jsonl"))
        assert [[row["x"] for row in read_rows(name, data_dir=tmp_path)] for name in names] == [["two"], ["own"], ["more", "own"]]

    def test_the_first_name_that_means_files_counts_in_the_order_of_numbers(self, tmp_path: Path) -> None:
        (tmp_path / "test").mkdir()
        for name in ("b10", "b9", "a"):
            (tmp_path / "test" / f"{name}_test.csv").write_text(f"is it {name}?,yes\n")
        rows = list(read_rows("none.parquet", "test/*_test.csv", "**/*.csv", data_dir=tmp_path, columns=["question", "answer"]))
        assert [row["question"] for row in rows] == ["is it a?", "is it b9?", "is it b10?"]
        assert rows[1] == {"question": "is it b9?", "answer": "yes", "__file__": "test/b9_test.csv"}
        assert [row["__file__"] for row in read_rows("test", data_dir=tmp_path, columns=["q", "a"])] == [row["__file__"] for row in rows]

    def test_files_of_another_data_set_are_passed_over(self, tmp_path: Path) -> None:
        for name, text in (("a.csv", "q,n\nx,1\n"), ("b.csv", "q,m\ny,2\n")):
            (tmp_path / name).write_text(text)
        for needs in (["m", "q"], lambda row: row["q"] == "y"):
            assert [case.row["q"] for case in cases_from("a.csv", "*.csv", needs=needs)(tmp_path)] == ["y"]
        for needs, lack in ((["z"], "not the columns z"), (lambda row: "z" in row, "the rows of another data set")):
            with pytest.raises(MissingData, match=rf"a.csv, a.csv, b.csv in .* has {lack}; give a.csv or \*.csv with --data"):
                list(cases_from("a.csv", "*.csv", needs=needs)(tmp_path))

    @pytest.mark.parametrize(
        ("folder", "message"),
        [
            (None, r"no data was given; give a file, or a folder that holds test.parquet or \*.csv, with --data"),
            ("nowhere", "nowhere does not exist; give a file, or a folder that holds test.parquet"),
            (".", r"holds no test.parquet or \*.csv; it has deep/, rows.jsonl"),
        ],
    )
    def test_missing_data_says_what_is_wanted_and_what_is_there(self, folder: str | None, message: str, tmp_path: Path) -> None:
        (tmp_path / "deep").mkdir()
        write_jsonl(tmp_path / "rows.jsonl", ROWS)
        with pytest.raises(MissingData, match=message):
            list(cases_from("test.parquet", "*.csv")(tmp_path / folder if folder is not None else None))


@pytest.mark.parametrize(
    ("name", "text", "lines"),
    [
        ("a.jsonl", '\ufeff{"a": 1}\n\n{"a": "\u2028"}\r\n{"a": 3}', [1, 3, 4]),
        ("a.json", '\ufeff{"about": 1,\n"rows": [{"a": "é"},\n\n{"a":\n2}, {"a": 3}\n]}', [2, 4, 5]),
        ("b.json", '{"x": {"a": 1},\n"y": {"a":\n2}}', [1, 2]),
        ("a.csv", 'a,b\n1,"x\ny"\n2,z\n', [2, 4]),
    ],
)
def test_a_row_is_named_by_its_line_without_reading_the_file(tmp_path: Path, name: str, text: str, lines: list[int]) -> None:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8", newline="")
    cases = list(cases_from(name)(tmp_path))
    path.unlink()
    assert [case.file.where(case.place) for case in cases] == [f"{name}:{line}" for line in lines]


class TestColumns:
    ROWS = (
        {"id": 7, "doc": "d", "meta": {"kind": True, "level": None}, "a": [1]},
        {"id": 8.0, "doc": None, "meta": {"kind": "x", "level": 2}, "a": None},
    )

    def test_ids_groups_tags_and_references_come_from_columns_and_functions(self) -> None:
        tags = {"kind": "meta.kind", "level": "meta.level"}
        make = cases_from(self.ROWS, id=["id", "doc"])
        with pytest.raises(ConfigError, match="rows: row 2: an id must be printable text without '::', got '8' and None"):
            list(make(None))
        make = cases_from(self.ROWS, id="id", group="doc", tags=tags, reference=lambda row: row["a"])
        first, second = make(None)
        assert (first.id, first.group, first.tags, first.reference) == ("7", "d", {"kind": "true"}, [1])
        assert (second.id, second.group, second.tags, second.reference) == ("8", None, {"kind": "x", "level": "2"}, None)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"id": "idd"}, "row 1 has no 'idd'; did you mean 'id'. it has: id, doc, meta, a"),
            ({"tags": "meta.size"}, "has no 'meta.size'; did you mean 'meta'. it has: id, doc"),
            ({"group": "a"}, "row 1: group must be a text or a number, got .1."),
            ({"id": lambda row: "a::b"}, "an id must be printable text without '::', got 'a::b'"),
            ({"map": lambda row: 5}, "map must return a row .a mapping., or None to leave it out, got 5"),
            ({"map": "a"}, "map must be a function of a row, got 'a'"),
            (
                {"tags": {"k": lambda row: row["idd"]}},
                "row 1: the function for its tag k failed at test_formats.py:.*: KeyError: .*has no 'idd'; did you mean 'id'",
            ),
            ({"reference": lambda row: 1 / 0}, "row 1: the function for its reference failed at .*: ZeroDivisionError: division by zero"),
            ({"group": ["id", "doc"]}, "cases_from.group must be a column's name or a function of the row, got .'id', 'doc'."),
            ({"tags": {"k": 5}}, "cases_from.tags.'k'. must be a column's name or a function of the row, got 5"),
            ({"image": 5}, "cases_from.image must be a sequence of columns' names, got 5"),
            ({"id": [5]}, "cases_from.id must be names of columns, got 5"),
            ({"columns": "ab"}, "rows in memory are the only source of their cases, and were given with columns="),
        ],
    )
    def test_what_makes_no_case_is_named(self, options: dict[str, Any], message: str) -> None:
        with pytest.raises(EvalHarnessError, match=message):
            list(cases_from(self.ROWS, **options)(None))

    @pytest.mark.parametrize(
        ("names", "message"),
        [
            (["a.csv", ROWS], "rows in memory are the only source of their cases, and were given beside other names"),
            ([["a.csv", "b.csv"]], r"names of files, one after the other, or rows .mappings., got 'a.csv'; write cases_from"),
            ([5], "names of files, one after the other, or rows .mappings., got 5"),
        ],
    )
    def test_names_are_files_or_one_list_of_rows(self, names: list[Any], message: str) -> None:
        with pytest.raises(EvalHarnessError, match=message):
            cases_from(*names)

    def test_a_data_frame_is_told_how_it_is_given(self) -> None:
        pandas = pytest.importorskip("pandas")
        with pytest.raises(EvalHarnessError, match=r"rows \(mappings\), got 'id'; write cases_from\(frame.to_dict\('records'\)\)"):
            cases_from(pandas.DataFrame(self.ROWS))

    def test_nan_is_null_as_pandas_writes_what_is_missing(self) -> None:
        first, second = cases_from([{"a": "x", "b": math.nan}, {"a": "x", "b": None}], tags="b")(None)
        assert (first.row["b"], first.tags, second.id) == (None, {}, f"{first.id}-2")

    def test_rows_of_a_data_frame_are_those_of_its_parquet_file(self, tmp_path: Path) -> None:
        pandas = pytest.importorskip("pandas")
        columns = {"t": ["a", "b"], "n": pandas.array([1, None], dtype="Int64"), "x": [0.5, math.nan], "l": [numpy.array([1, 2]), [3]]}
        frame = pandas.DataFrame({**columns, "d": pandas.to_datetime(["2030-01-02", None])})
        frame.to_parquet(tmp_path / "rows.parquet")
        given, read = (list(cases_from(rows)(tmp_path)) for rows in (frame.to_dict("records"), "rows.parquet"))
        assert [case.id for case in given] == [case.id for case in read]
        assert dict(given[0].row) == {"t": "a", "n": 1, "x": 0.5, "l": [1, 2], "d": "2030-01-02T00:00:00", "__file__": "rows"}
        assert [given[1].row[name] for name in ("n", "x", "d")] == [None] * 3

    def test_rows_of_a_generator_are_there_each_time(self) -> None:
        make = cases_from(row for row in self.ROWS)
        assert [len(list(make(None))) for _ in range(2)] == [2, 2]

    def test_map_changes_rows_and_leaves_some_out_and_ids_stay(self) -> None:
        def only_first(row: dict[str, Any]) -> dict[str, Any] | None:
            return {**row, "new": 1} if row["id"] == 7 else None

        (case,) = cases_from(self.ROWS, map=only_first)(None)
        assert isinstance(case, RowCase)
        assert case.row["new"] == 1
        assert case.id == next(cases_from(self.ROWS)(None)).id
        with pytest.raises(TypeError):
            case.row["new"] = 2  # type: ignore[index]

    def test_a_misspelt_column_of_a_row_is_told_what_was_meant(self) -> None:
        row = next(cases_from([{"question": "x", "answer": "y"}])(None)).row
        with pytest.raises(KeyError, match="rows has no 'Question'; did you mean 'question'. it has: question, answer"):
            row["Question"]
        assert (row.get("Question"), "Question" in row, row["answer"]) == (None, False, "y")

    def test_a_table_that_is_parted_by_semicolons_says_so(self, tmp_path: Path) -> None:
        (tmp_path / "a.csv").write_text("q;a\nx;1\n")
        with pytest.raises(
            ConfigError, match="a.csv:2 has no 'q'; it has: q;a; values are parted by commas .tabs in .tsv., not by ';': save it so"
        ):
            list(cases_from("a.csv", id="q")(tmp_path))

    def test_a_column_that_no_arrow_file_has_is_named(self, tmp_path: Path) -> None:
        write_parquet(tmp_path / "a.parquet", ROWS)
        with pytest.raises(ConfigError, match="a.parquet has no 'm'; it has: q, n, deep"):
            list(cases_from("a.parquet", id="n", group="m")(tmp_path))
        assert [case.group for case in cases_from("a.parquet", id="n", group=lambda row: "g")(tmp_path)] == ["g"] * len(ROWS)
