"""A dataset's files from the Hugging Face hub, by its own client: downloads go on after an
interruption, and what is in the cache already is not fetched again."""

import fnmatch
import os
from pathlib import Path
from typing import NamedTuple

from cplm_data.errors import ArgumentError, PrepareError, one_line

# Not .txt: beside a dataset's files these are notes.
_FILES = ("*.parquet", "*.jsonl", "*.jsonl.gz", "*.jsonl.zst")


class HubDataset(NamedTuple):
    name: str
    revision: str | None
    patterns: tuple[str, ...]  # of files in it; none: all of the known kinds

    @classmethod
    def parse(cls, text: str, patterns: list[str]) -> "HubDataset":
        name, at, revision = text.partition("@")
        is_name = name and all(name.split("/")) and name.count("/") <= 1
        if not is_name or (at and not revision):
            raise ArgumentError(f"--hf-dataset {text}: expected NAME or NAME@REVISION")
        return cls(name, revision or None, tuple(patterns))

    def download(self) -> tuple[list[str], str]:
        """The files in the client's cache, and the commit they are of."""
        import huggingface_hub  # here, since only this needs it
        from huggingface_hub import errors

        place = f"--hf-dataset {self.name}"
        try:
            folder = huggingface_hub.snapshot_download(
                self.name,
                repo_type="dataset",
                revision=self.revision,
                allow_patterns=list(self.patterns or _FILES),
            )
        except errors.GatedRepoError:
            raise ArgumentError(
                f"{place}: access has to be asked for on its page, then give HF_TOKEN"
            ) from None
        except errors.RevisionNotFoundError:
            raise ArgumentError(f"{place}: no revision {self.revision!r}") from None
        except errors.RepositoryNotFoundError:
            raise ArgumentError(f"{place}: no such dataset, or it is private") from None
        except errors.HFValidationError as error:
            raise ArgumentError(f"{place}: {one_line(error)}") from None
        except Exception as error:  # network errors are of several libraries' classes
            raise PrepareError(
                f"{place}: cannot be downloaded (offline?): {one_line(error)}; run again to go "
                "on, or give the files by --input"
            ) from None
        files = self._files_in(folder)
        if not files:
            wanted = ", ".join(self.patterns or _FILES)
            raise ArgumentError(f"{place}: no file of it matches {wanted}; see --hf-files")
        return files, Path(os.path.realpath(folder)).name

    def _files_in(self, folder: str) -> list[str]:
        """Those asked for: the cache may hold other files of the same commit."""
        patterns = [f"{one}*" if one.endswith("/") else one for one in self.patterns or _FILES]
        found: list[str] = []
        for parent, _, names in os.walk(folder):
            for name in names:
                path = os.path.join(parent, name)
                relative = os.path.relpath(path, folder)
                if any(fnmatch.fnmatchcase(relative, pattern) for pattern in patterns):
                    found.append(path)
        return sorted(found)
