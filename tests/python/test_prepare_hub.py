"""scripts/prepare_data.py: --hf-dataset, with a client that stands in for the hub's."""

import huggingface_hub
import httpx2 as httpx
import pytest
from huggingface_hub import errors
from prepare_support import all_documents, file_bytes, prepare_data, sample_texts, write_jsonl

ARGUMENTS, FAILED = 2, 1
COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """Records what is asked for; raises `failure` or answers with a cached snapshot."""

    class Hub:
        asked: list = []
        failure = None

        def snapshot_download(self, name, **options):
            self.asked.append((name, options))
            if self.failure is not None:
                raise self.failure
            return str(folder)

    # As the client's cache lays it out: links into a folder of blobs.
    folder = tmp_path / "cache" / "snapshots" / COMMIT
    (folder / "data").mkdir(parents=True)
    blob = write_jsonl(tmp_path / "cache" / "blob", [{"text": text} for text in sample_texts(5)])
    (folder / "data" / "a.jsonl").symlink_to(blob)
    # Of earlier downloads of the same commit.
    write_jsonl(folder / "other.jsonl", [{"text": "not asked for"}])
    (folder / "data" / "README.txt").write_text("notes")
    stand_in = Hub()
    stand_in.asked = []
    monkeypatch.setattr(huggingface_hub, "snapshot_download", stand_in.snapshot_download)
    return stand_in


def run(output, capsys, *arguments):
    line = ["--output", str(output), "--train-tokenizer", "257", *arguments]
    try:
        code = prepare_data.main(line)
    except SystemExit as end:
        code = end.code
    return code, capsys.readouterr()


def test_a_dataset_is_prepared_from_the_clients_folder(tmp_path, hub, capsys):
    arguments = ("--hf-dataset", "owner/set@v1.0", "--hf-files", "data/*.jsonl")
    code, printed = run(tmp_path / "out", capsys, *arguments)
    assert code == 0, printed.err
    assert all_documents(tmp_path / "out") == sorted(sample_texts(5))
    name, options = hub.asked[0]
    assert name == "owner/set" and options["repo_type"] == "dataset"
    assert options["revision"] == "v1.0" and options["allow_patterns"] == ["data/*.jsonl"]
    manifest = (tmp_path / "out" / "manifest.json").read_text()
    assert COMMIT in manifest and "owner/set" in manifest
    before = file_bytes(tmp_path / "out")
    code, printed = run(tmp_path / "out", capsys, *arguments)
    assert code == 0 and "nothing to do" in printed.out and file_bytes(tmp_path / "out") == before


def test_without_a_pattern_all_known_files_but_notes(tmp_path, hub, capsys):
    assert run(tmp_path / "out", capsys, "--hf-dataset", "set")[0] == 0
    assert len(all_documents(tmp_path / "out")) == 6
    options = hub.asked[0][1]
    assert options["revision"] is None
    assert options["allow_patterns"] == ["*.parquet", "*.jsonl", "*.jsonl.gz", "*.jsonl.zst"]


def response(status):
    return httpx.Response(status, request=httpx.Request("GET", "https://hub.example"))


@pytest.mark.parametrize(
    "failure, code, expected",
    [
        (httpx.ConnectError("Name or service not known"), FAILED, "(offline?): Name or service"),
        (errors.LocalEntryNotFoundError("no snapshot"), FAILED, "cannot be downloaded (offline?)"),
        (OSError(28, "No space left on device"), FAILED, "No space left"),
        (errors.RepositoryNotFoundError("x", response=response(404)), ARGUMENTS, "no such dataset"),
        (errors.GatedRepoError("x", response=response(403)), ARGUMENTS, "has to be asked for"),
        (errors.RevisionNotFoundError("x", response=response(404)), ARGUMENTS, "no revision 'r'"),
        (errors.HFValidationError("bad name"), ARGUMENTS, "bad name"),
    ],
)
def test_what_cannot_be_downloaded_is_one_line(tmp_path, hub, capsys, failure, code, expected):
    hub.failure = failure
    found, printed = run(tmp_path / "out", capsys, "--hf-dataset", "owner/set@r")
    assert found == code
    assert printed.err.startswith("prepare_data: --hf-dataset owner/set: ")
    assert expected in printed.err and printed.err.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["", "@v1", "owner/set@", "a/b/c", "/set"])
def test_wrong_names(tmp_path, hub, capsys, name):
    code, printed = run(tmp_path / "out", capsys, "--hf-dataset", name)
    assert code == ARGUMENTS and "prepare_data: " in printed.err and not hub.asked


def test_files_of_no_dataset(tmp_path, hub, capsys):
    code, printed = run(tmp_path / "out", capsys, "--input", "x", "--hf-files", "*.parquet")
    assert code == ARGUMENTS and "--hf-files selects files of --hf-dataset" in printed.err


def test_a_pattern_that_no_file_matches(tmp_path, hub, capsys):
    arguments = ("--hf-dataset", "owner/set", "--hf-files", "none/*.parquet")
    code, printed = run(tmp_path / "out", capsys, *arguments)
    assert code == ARGUMENTS and "no file of it matches none/*.parquet" in printed.err
