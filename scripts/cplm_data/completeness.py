"""Whether the output folder already holds what a job would make, byte for byte."""

from pathlib import Path

from cplm_data.durable import sha256_of_file
from cplm_data.errors import BadDataError, system_reason
from cplm_data.output import TOKENIZER, OutputFolder
from cplm_data.progress import Progress
from cplm_data.source_hashes import hash_of
from cplm_data.sources import Source


def _difference(path: Path, size_bytes: int, sha256: str) -> str | None:
    """How a file differs from what the manifest says of it."""
    try:
        found = path.stat().st_size
        if found != size_bytes:
            return f"expected {size_bytes:,} bytes, found {found:,}"
        return None if sha256_of_file(path) == sha256 else "its bytes are not those of the manifest"
    except OSError as error:
        return f"cannot be read: {system_reason(error)}"


def _check_shards(folder: Path, files: dict[str, dict], progress: Progress) -> None:
    for number, (name, entry) in enumerate(files.items(), start=1):
        difference = _difference(folder / name, entry["size_bytes"], entry["sha256"])
        if difference is not None:
            raise BadDataError(
                f"{folder / name}: {difference}, though the job is complete; take it from a copy, "
                "or give --overwrite to make the shards anew"
            )
        progress.update(number / len(files))


def _restore_tokenizer(
    output: OutputFolder, sha256: str, given: bytes | None, progress: Progress
) -> None:
    """Writes it again where a user's file has it."""
    path = output.folder / TOKENIZER
    if path.is_file() and sha256_of_file(path) == sha256:
        return
    state = "changed" if path.exists() else "missing"
    if given is None:
        raise BadDataError(
            f"{path}: {state}, though the job is complete; take it from a copy (it was trained by "
            "this job), or give --overwrite to make it and the shards anew"
        )
    output.write_tokenizer(given)
    progress.say(f"{path}: was {state}, written again")


def is_complete(
    output: OutputFolder,
    job: dict[str, object],
    sources: list[Source],
    given_tokenizer: bytes | None,
    progress: Progress,
) -> bool:
    """False when the folder holds another job's shards, or none. Damage is an error."""
    manifest = output.manifest_of_job(job, sources)
    if manifest is None:
        return False
    files = manifest["files"]
    progress.begin(f"comparing {len(sources)} files with the manifest")
    for number, (source, entry) in enumerate(zip(sources, manifest["sources"], strict=True)):
        if hash_of(source) != entry["sha256"]:
            return False
        progress.update((number + 1) / len(sources))
    progress.begin(f"comparing {len(files)} shards with the manifest")
    _check_shards(output.folder, files, progress)
    _restore_tokenizer(output, manifest["tokenizer"]["sha256"], given_tokenizer, progress)
    return True
