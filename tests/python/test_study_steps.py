"""Steps of a study: each once, in order, several at once, going on after a stop; and that every step of the
study of small models is one that the program takes."""

import json
import os
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest
from studies.errors import StudyError
from studies.small_models import SEEDS, make_plan
from studies.steps import Step, StepRunner
from training_files import BINARY, ROOT


def runner(folder, at_once=2):
    return StepRunner(folder / "steps", Path("/nowhere/cplm"), at_once, lambda text: None)


def python_step(name, code, after=()):
    return Step(name, ("python", "-c", code), after)


def append(folder, word):
    return f"open({str(folder / 'order')!r}, 'a').write({word!r} + ' ')"


def order(folder):
    path = folder / "order"
    return path.read_text().split() if path.exists() else []


def test_each_step_once_and_after_those_it_needs(tmp_path):
    steps = [
        python_step("last", append(tmp_path, "last"), ("first", "second")),
        python_step("first", "import time; time.sleep(0.5); " + append(tmp_path, "first")),
        python_step("second", append(tmp_path, "second"), ("first",)),
    ]
    runner(tmp_path).run(steps)
    assert order(tmp_path) == ["first", "second", "last"]
    runner(tmp_path).run(steps)
    assert order(tmp_path) == ["first", "second", "last"], "nothing is done twice"


def test_several_at_once_but_no_more(tmp_path):
    code = (
        "import os, time, pathlib; f = pathlib.Path({0!r}); (f / 'now').mkdir(exist_ok=True); "
        "mine = f / 'now' / str(os.getpid()); mine.touch(); "
        "time.sleep(0.6); open(f / 'most', 'a').write(f'{{len(list((f / \"now\").iterdir()))}} '); mine.unlink()"
    ).format(str(tmp_path))
    runner(tmp_path, at_once=2).run([python_step(str(i), code) for i in range(4)])
    most = [int(word) for word in (tmp_path / "most").read_text().split()]
    assert max(most) == 2


def test_a_failure_stops_the_others_and_names_itself(tmp_path):
    steps = [
        python_step("bad", "import sys; print('error: no such thing', file=sys.stderr); sys.exit(3)"),
        python_step("long", "import time; time.sleep(60)"),
        python_step("never", append(tmp_path, "never"), ("long",)),
    ]
    begin = time.monotonic()
    with pytest.raises(StudyError, match=r"^bad: no such thing \(all of it: .*bad\.log\)$") as raised:
        runner(tmp_path).run(steps)
    assert raised.value.exit_code == 3
    assert time.monotonic() - begin < 30, "the long one was told to end"
    assert order(tmp_path) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_reaches_the_children_and_the_next_run_goes_on(tmp_path, number):
    work = (
        "import pathlib, signal, sys, time\n"
        f"f = pathlib.Path({str(tmp_path)!r})\n"
        "signal.signal(signal.SIGTERM, lambda *_: (f.joinpath('saved').touch(), sys.exit(75)))\n"
        "if f.joinpath('saved').exists(): sys.exit(0)\n"
        "while time.process_time() < 0.3: pass\n"
        "f.joinpath('began').touch()\n"
        "time.sleep(60)\n"
    )
    steps = [python_step("work", work)]

    def stop():
        while not (tmp_path / "began").exists():
            time.sleep(0.05)
        os.kill(os.getpid(), number)

    thread = threading.Thread(target=stop)
    thread.start()
    with pytest.raises(StudyError, match="stopped") as raised:
        runner(tmp_path).run(steps)
    thread.join()
    assert raised.value.exit_code == 75 and (tmp_path / "saved").exists()
    first = json.loads((tmp_path / "steps/work.json").read_text())
    assert not first["done"] and first["processor_s"] > 0.25
    after = runner(tmp_path)
    after.run(steps)
    second = json.loads((tmp_path / "steps/work.json").read_text())
    assert second["done"] and second["processor_s"] > first["processor_s"], "attempts add up"
    assert after.seconds(steps)["processor_s"] == second["processor_s"]


def test_another_command_under_the_same_name_is_refused(tmp_path):
    runner(tmp_path).run([python_step("one", "pass")])
    with pytest.raises(StudyError, match="made by another command"):
        runner(tmp_path).run([python_step("one", "1")])


def test_every_step_of_the_study_waits_for_steps_that_exist(tmp_path):
    steps = make_plan(tmp_path, tmp_path / "data", "cpu").steps
    names = [step.name for step in steps]
    assert len(set(names)) == len(names)
    for place, step in enumerate(steps):
        assert set(step.after) <= set(names), step.name
    seeds = [step for step in steps if step.name.startswith("train-sliding-cplm-")]
    assert len(seeds) == len(SEEDS)


@pytest.mark.skipif(not BINARY.exists(), reason="needs the program, built")
def test_every_training_of_the_study_has_a_config_that_loads(tmp_path):
    """`cplm check` without shards: a wrong key, or a value that another one forbids, fails."""
    trainings = [step for step in make_plan(tmp_path, tmp_path / "data", "cpu").steps if step.command[1:2] == ("train",)]
    assert len(trainings) > 20
    for step in trainings:
        checked = subprocess.run(
            [BINARY, "check", *step.command[2:]], capture_output=True, text=True, cwd=ROOT, timeout=60
        )  # fmt: skip
        assert checked.returncode == 0, f"{step.name}: {checked.stderr}"
        assert f'name: "{step.name.removeprefix("train-")}"' in checked.stdout
