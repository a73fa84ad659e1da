"""A study's folder, and the steps that fill it. Each step leaves something whole behind, so that the same
command goes on after an interruption; other settings need another folder.

OUT/settings.json · OUT/data/ · OUT/runs/ARM/ · OUT/evaluations/ · OUT/log.txt · OUT/NAME.json, .png, .svg
"""

import fcntl
import hashlib
import json
import os
import re
import time
from pathlib import Path

from studies.errors import StudyError
from studies.program import Program


def write_whole(path: Path, text: str) -> None:
    aside = path.with_name(path.name + ".partial")
    aside.write_text(text, encoding="utf-8")
    os.replace(aside, path)


def check_config_file(path: Path) -> None:
    if not path.is_file():
        raise StudyError(f"--config {path}: no such file", 2)


def config_sha256(path: Path) -> str:
    """Of a config and all that it includes, in the order of reading."""
    digest = hashlib.sha256()
    text = path.read_text(encoding="utf-8")
    found = re.search(r"^include:([^#\n]*)", text, re.MULTILINE)
    for name in re.findall(r"[^][,\s\"']+", found[1]) if found else []:
        digest.update(config_sha256(path.parent / Path(name).expanduser()).encode())
    digest.update(text.encode())
    return digest.hexdigest()


class Study:
    def __init__(self, name: str, out: Path, settings: dict, program: Path, configs: tuple[Path, ...] = ()):
        """configs: what its arms are made of; another content is another setting, and another version of the
        program too."""
        self.name, self.out = name, out
        try:
            (out / "evaluations").mkdir(parents=True, exist_ok=True)
            self._lock = open(out / ".lock", "w", encoding="utf-8")
        except OSError as error:
            raise StudyError(f"--out {out}: {error.strerror}", 2) from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StudyError(f"--out {out}: another process works there") from None
        self._program = Program(program, out / "log.txt")
        made_of = {"program": self._program.version(), "configs": {str(path): config_sha256(path) for path in configs}}
        self._keep_settings({**settings, **made_of})
        self._begin = time.monotonic()

    def _keep_settings(self, settings: dict) -> None:
        path = self.out / "settings.json"
        settings = json.loads(json.dumps(settings))
        if not path.exists():
            write_whole(path, json.dumps(settings, indent=1) + "\n")
            return
        before = json.loads(path.read_text(encoding="utf-8"))
        changed = [
            f"{key}: {before.get(key)} -> {settings.get(key)}"
            for key in sorted(before.keys() | settings.keys())
            if before.get(key) != settings.get(key)
        ]
        if changed:
            raise StudyError(
                f"--out {self.out}: was made with other settings ({'; '.join(changed)}); give these, or "
                "another folder",
                2,
            )

    def say(self, text: str) -> None:
        print(f"[{self.name} {time.monotonic() - self._begin:.0f} s] {text}", flush=True)

    def run_dir(self, arm: str) -> Path:
        return self.out / "runs" / arm

    def cplm(self, *arguments: object) -> None:
        self._program.run(*arguments)

    def train(self, arm: str, config: Path, overrides: dict[str, object]) -> Path:
        """The arm's run, trained to its end. A run that is finished changes nothing."""
        folder = self.run_dir(arm)
        sets = {"run.name": arm, "run.dir": folder, **overrides}
        self.say(f"{arm}: training")
        self.cplm("train", config, *(word for key, value in sets.items() for word in ("--set", f"{key}={value}")))
        return folder

    def evaluate(self, task: str, name: str, *arguments: object) -> dict:
        """What `cplm eval TASK` finds, kept under `name`."""
        folder = self.out / "evaluations" / name
        file = folder / f"{task}.json"
        if not file.exists():
            self.cplm("eval", task, *arguments, "--out", folder)
        return json.loads(file.read_text(encoding="utf-8"))

    def compare(self, *arms: str) -> dict:
        """`cplm compare`; the first arm's runs are the baseline."""
        folder = self.out / "comparison"
        self.cplm("compare", *map(self.run_dir, arms), "--out", folder)
        return json.loads((folder / "compare.json").read_text(encoding="utf-8"))

    def finish(self, results: dict, table: str, draw) -> None:
        """Writes and prints the results; draw(results): a figure of scripts/pictures."""
        from pictures.style import save, use_own_style

        write_whole(self.out / f"{self.name}.json", json.dumps(results, indent=1) + "\n")
        use_own_style()
        figure = draw(results)
        save(figure, self.out, self.name, "png", dpi=200)
        save(figure, self.out, self.name, "svg", metadata={"Date": None})
        print(table)
        self.say(f"{self.out / self.name}.json, .png, .svg")
