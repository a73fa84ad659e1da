"""scripts/to_tensorboard.py: what TensorBoard's own reader finds in the event files it writes."""

import json
import math
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("tensorboard")
from tensorboard.backend.event_processing.plugin_event_accumulator import EventAccumulator  # noqa: E402

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "to_tensorboard.py"
ARGUMENTS, BAD_DATA = 2, 3


def convert(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, SCRIPT, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def converted(*arguments: object) -> str:
    run = convert(*arguments)
    assert (run.returncode, run.stderr) == (0, "")
    return run.stdout


def failure(*arguments: object) -> tuple[int, str]:
    run = convert(*arguments)
    assert len(run.stderr.splitlines()) == 1, run.stderr
    assert run.stderr.startswith("to_tensorboard: ")
    return run.returncode, run.stderr


def train_line(step: int, loss: float | str) -> str:
    record = {"kind": "train", "step": step, "tokens": 1000 * step, "loss": loss, "mfu": None}
    return json.dumps(record) + "\n"


def train_lines(first: int, last: int, shift: float = 0.0) -> str:
    return "".join(train_line(step, shift + 1 / step) for step in range(first, last + 1))


def make_run(tmp_path: Path, text: str, name: str = "run") -> Path:
    folder = tmp_path / name
    folder.mkdir()
    (folder / "metrics.jsonl").write_text(text)
    return folder


def append(run: Path, text: str) -> None:
    with open(run / "metrics.jsonl", "a") as file:
        file.write(text)


def replace(run: Path, text: str) -> None:
    """As a resumed run does."""
    (run / "new").write_text(text)
    os.replace(run / "new", run / "metrics.jsonl")


def shown(folder: Path, tag: str = "train/loss") -> list[tuple[int, float]]:
    """(step, value) of a tag, as TensorBoard shows it."""
    if not folder.exists():
        return []
    accumulator = EventAccumulator(str(folder), size_guidance={"tensors": 0}).Reload()
    if tag not in accumulator.Tags()["tensors"]:
        return []
    return [(event.step, event.tensor_proto.float_val[0]) for event in accumulator.Tensors(tag)]


def expected(text: str) -> list[tuple[int, float]]:
    records = map(json.loads, text.splitlines())
    return [(r["step"], pytest.approx(r["loss"], rel=1e-6)) for r in records]


def test_every_number_of_a_line_is_a_scalar(tmp_path):
    run = make_run(
        tmp_path,
        train_line(10, 5.5)
        + '{"kind":"validation","step":10,"loss":5.0,"perplexity":"inf","sources":{"web":4.0}}\n'
        + '{"kind":"nonfinite","step":11,"windows":[3,1,2]}\n'
        + '{"kind":"note","text":"words","ok":true,"value":7}\n'
        + train_line(20, "nan"),
    )
    assert "5 lines, 0 were there" in converted(run)
    tags = EventAccumulator(str(run / "tensorboard")).Reload().Tags()["tensors"]
    assert sorted(tags) == sorted(
        ["train/tokens", "train/loss", "validation/loss", "validation/perplexity",
         "validation/sources/web", "nonfinite/windows", "note/value"]
    )  # fmt: skip
    (first, second) = shown(run / "tensorboard")
    assert first == (10, 5.5) and second[0] == 20 and math.isnan(second[1])
    assert shown(run / "tensorboard", "validation/perplexity") == [(10, math.inf)]
    assert shown(run / "tensorboard", "validation/sources/web") == [(10, 4.0)]
    assert shown(run / "tensorboard", "nonfinite/windows") == [(11, 3.0)]
    assert shown(run / "tensorboard", "note/value") == [(11, 7.0)]  # the step of the line before


def test_run_again_it_writes_only_what_is_missing(tmp_path):
    run = make_run(tmp_path, train_lines(1, 5) + train_line(6, "nan"))
    converted(run)
    files = {path: path.read_bytes() for path in (run / "tensorboard").iterdir()}
    assert "6 lines, 6 were there" in converted(run)
    assert {path: path.read_bytes() for path in (run / "tensorboard").iterdir()} == files
    append(run, train_lines(7, 9))
    converted(run)
    assert [step for step, _ in shown(run / "tensorboard")] == list(range(1, 10))


def test_a_torn_last_line_waits_for_its_rest(tmp_path):
    line = train_line(3, 0.5)
    run = make_run(tmp_path, train_lines(1, 2) + line[:20])
    result = convert(run)
    assert result.returncode == 0 and "the last line is torn" in result.stderr
    assert len(shown(run / "tensorboard")) == 2
    append(run, line[20:])
    converted(run)
    assert shown(run / "tensorboard")[2] == (3, 0.5)


def test_lines_taken_back_are_forgotten(tmp_path):
    """A run resumed at step 10: lines past it moved away, then written anew."""
    run = make_run(tmp_path, train_lines(1, 20))
    converted(run)
    text = train_lines(1, 10) + train_lines(11, 13, shift=1.0)
    replace(run, text)
    (run / "metrics.stale.jsonl").write_text(train_lines(11, 20))
    assert "20 were there, 10 of them taken back" in converted(run)
    assert shown(run / "tensorboard") == expected(text)
    replace(run, "")  # --overwrite
    converted(run)
    assert shown(run / "tensorboard") == []


def test_a_resume_with_other_settings(tmp_path):
    """Its line stands at the step of the resume, behind that step's other lines."""
    run = make_run(tmp_path, train_lines(1, 12))
    converted(run)
    change = {"key": "optimizer.lr", "before": "1.0e-06", "now": "0.001"}
    settings = {"kind": "settings", "step": 10, "tokens": 10_000, "changes": [change]}
    shifted = train_lines(11, 13, shift=1.0)
    replace(run, train_lines(1, 10) + json.dumps(settings) + "\n" + shifted)
    converted(run)
    assert shown(run / "tensorboard") == expected(train_lines(1, 10) + shifted)
    assert shown(run / "tensorboard", "settings/changes") == [(10, 1.0)]


def test_steps_that_go_back_within_the_file_stay_each_once(tmp_path):
    before = train_lines(1, 8) + train_lines(5, 9)
    run = make_run(tmp_path, before + train_line(7, 1.0))
    converted(run)
    text = before + train_line(6, 2.0)
    replace(run, text)
    converted(run)
    assert shown(run / "tensorboard") == expected(text)


def test_several_runs_go_to_folders_of_their_own(tmp_path):
    runs = [make_run(tmp_path, train_lines(1, size), f"run-{size}") for size in (2, 3)]
    converted(*runs, "--out", tmp_path / "board")
    assert len(shown(tmp_path / "board" / "run-2")) == 2
    assert len(shown(tmp_path / "board" / "run-3")) == 3
    assert not (runs[0] / "tensorboard").exists()


def test_after_a_torn_record_it_goes_on(tmp_path):
    """As a kill in the middle of a write leaves it."""
    run = make_run(tmp_path, train_lines(1, 20))
    converted(run)
    (file,) = (run / "tensorboard").iterdir()
    os.truncate(file, file.stat().st_size - 30)
    converted(run)
    assert shown(run / "tensorboard") == expected(train_lines(1, 20))


# ---- following


class Follower:
    def __init__(self, *runs: Path):
        command = [sys.executable, SCRIPT, *map(str, runs), "--follow", "--every", "0.05"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def __enter__(self) -> "Follower":
        return self

    def __exit__(self, *_) -> None:
        self.process.kill()
        self.process.communicate()

    def wait(self, holds: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 40
        while not holds():
            assert self.process.poll() is None, self.process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.1)

    def stop(self, number: int) -> tuple[int, str]:
        self.process.send_signal(number)
        _, err = self.process.communicate(timeout=40)
        return self.process.returncode, err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_follows_a_live_run(tmp_path, number):
    run = tmp_path / "run"  # not there yet
    with Follower(run) as follower:
        time.sleep(0.3)
        assert not run.exists()
        make_run(tmp_path, train_lines(1, 3))
        follower.wait(lambda: len(shown(run / "tensorboard")) == 3)
        line = train_line(4, 0.25)
        append(run, line[:9])
        append(run, line[9:] + train_lines(5, 6))
        follower.wait(lambda: len(shown(run / "tensorboard")) == 6)
        text = train_lines(1, 2) + train_lines(3, 4, shift=1.0)
        replace(run, text)
        follower.wait(lambda: shown(run / "tensorboard") == expected(text))
        assert follower.stop(number) == (0, "")


def test_killed_at_any_time_it_writes_nothing_twice(tmp_path):
    run, text = make_run(tmp_path, ""), ""
    delays = random.Random(7)
    for first in range(1, 1600, 400):
        lines = train_lines(first, first + 399)
        with Follower(run) as follower:
            follower.wait((run / "tensorboard").exists)
            append(run, lines)
            time.sleep(delays.uniform(0.0, 0.1))
            follower.process.kill()
        text += lines
    converted(run)
    assert shown(run / "tensorboard") == expected(text)


# ---- errors


def test_a_folder_without_metrics(tmp_path):
    code, line = failure(tmp_path)
    assert code == ARGUMENTS and "metrics.jsonl does not exist" in line
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "damaged",
    [
        "{broken\n",
        "[1]\n",
        '{"step":1}\n',
        '{"kind":"train","step":"x"}\n',
        '{"kind":"t","step":-1}\n',
        "\xff\n",
    ],
)
def test_a_damaged_line(tmp_path, damaged):
    code, line = failure(make_run(tmp_path, train_lines(1, 2) + damaged))
    assert code == BAD_DATA and "metrics.jsonl:3: expected a JSON object with a kind and a step" in line


def test_two_writers_of_one_folder(tmp_path):
    run = make_run(tmp_path, train_lines(1, 2))
    with Follower(run) as follower:
        follower.wait(lambda: len(shown(run / "tensorboard")) == 2)
        code, line = failure(run)
        assert code == 1 and "another to_tensorboard writes there" in line
    code, line = failure(run, tmp_path / "." / "run")
    assert code == ARGUMENTS and "would be written to one folder" in line


def test_an_event_file_from_the_future(tmp_path):
    run = make_run(tmp_path, train_lines(1, 2))
    (run / "tensorboard").mkdir()
    (run / "tensorboard" / "events.out.tfevents.9999999999.host.1.0").touch()
    code, line = failure(run)
    assert code == 1 and "a clock was wrong" in line


@pytest.mark.parametrize("arguments", [[], ["run", "--every", "0"], ["run", "--frobnicate"]])
def test_wrong_arguments(arguments):
    assert failure(*arguments)[0] == ARGUMENTS
