"""scripts/launch and scripts/slurm/train.sbatch: environment, exit codes, signals, ranks that hang.

The program they start is a shell script here, which behaves by rank.
"""

import os
import re
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LAUNCH = ROOT / "scripts" / "launch"
SBATCH = ROOT / "scripts" / "slurm" / "train.sbatch"
STOPPED = 75


def write_script(path: Path, body: str) -> Path:
    path.write_text(f"#!/usr/bin/env bash\n{body}\n")
    path.chmod(0o755)
    return path


def clean_environment(**more: str) -> dict[str, str]:
    own = ("MASTER_PORT", "OMP_NUM_THREADS")
    return {name: value for name, value in os.environ.items() if name not in own} | more


def start(tmp_path: Path, ranks: int, body: str, *options: str, **environment: str) -> subprocess.Popen:
    program = write_script(tmp_path / "program", body)
    return subprocess.Popen(
        [LAUNCH, str(ranks), "--program", program, *options, "--", "train", "a config.yaml"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env=clean_environment(**environment),
    )


def launch(tmp_path: Path, ranks: int, body: str, *options: str, **environment: str):
    process = start(tmp_path, ranks, body, *options, **environment)
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def wait_for_files(folder: Path, pattern: str, count: int) -> None:
    deadline = time.monotonic() + 30
    while len(list(folder.glob(pattern))) < count:
        assert time.monotonic() < deadline, f"no {count} files {pattern}"
        time.sleep(0.02)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_each_process_learns_who_it_is(tmp_path):
    body = 'echo "$RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $MASTER_ADDR $MASTER_PORT|$#|$1|$2"'
    code, out, err = launch(tmp_path, 3, body)
    assert (code, err) == (0, "")
    lines = sorted(out.splitlines())
    ports = {line.split("|")[0].split()[-1] for line in lines}
    assert len(ports) == 1 and 20000 <= int(ports.pop()) < 30000
    for rank, line in enumerate(lines):
        assert re.fullmatch(rf"{rank} {rank} 3 3 127\.0\.0\.1 \d+\|2\|train\|a config\.yaml", line)


def test_each_launch_names_its_own_run(tmp_path):
    """Of a launcher around it nothing is passed on, or two runs at one port could mix."""
    body = 'echo "$TORCHELASTIC_RUN_ID $TORCHELASTIC_RESTART_COUNT"'
    names = [
        launch(tmp_path, 2, body, TORCHELASTIC_RUN_ID="outer", TORCHELASTIC_RESTART_COUNT="3")[
            1
        ].splitlines()
        for _ in range(2)
    ]
    assert len(set(names[0])) == len(set(names[1])) == 1
    assert len({names[0][0], names[1][0], "outer"}) == 3


def test_threads_share_the_cores_unless_set(tmp_path):
    body = 'echo "$OMP_NUM_THREADS"'
    cores = len(os.sched_getaffinity(0))
    assert launch(tmp_path, 2, body)[1].split() == [str(max(1, cores // 2))] * 2
    assert launch(tmp_path, 2, body, OMP_NUM_THREADS="7")[1].split() == ["7", "7"]


def test_the_port_is_free_or_the_one_that_is_set(tmp_path):
    body = 'echo "$MASTER_PORT"'
    assert launch(tmp_path, 1, body, MASTER_PORT="4321")[1] == "4321\n"
    with socket.socket() as listener:
        port = int(launch(tmp_path, 1, body)[1])
        listener.bind(("127.0.0.1", port))  # nobody has it


@pytest.mark.parametrize(
    "codes, expected",
    [
        ((0, 0, 0), 0),
        ((75, 75, 75), STOPPED),
        ((0, 4, 0), 4),
        ((6, 6, 5), 5),  # the peers' words come first, the cause last
        ((5, 6, 6), 5),
        ((6, 0, 6), 6),
        ((75, 3, 75), 3),
        ((75, 6, 75), 6),
        ((0, 75, 0), STOPPED),
    ],
)
def test_the_exit_code_is_that_of_the_cause(tmp_path, codes, expected):
    body = f'codes=({" ".join(map(str, codes))}); sleep 0.$((RANK * 2)); exit "${{codes[RANK]}}"'
    code, _, err = launch(tmp_path, 3, body)
    assert code == expected
    failed = [rank for rank, code in enumerate(codes) if code not in (0, STOPPED)]
    assert sorted(re.findall(r"rank (\d) \(process \d+\) ended with exit code", err)) == list(
        map(str, failed)
    )


@pytest.mark.parametrize("first", [0, 1])
def test_of_two_causes_the_first_counts(tmp_path, first):
    body = f"""
echo $$ > pid.tmp.$RANK; mv pid.tmp.$RANK pid.$RANK
if [ $RANK != {first} ]; then
  until [ -e pid.{first} ]; do sleep 0.05; done
  while kill -0 "$(cat pid.{first})"; do sleep 0.05; done 2>/dev/null
  sleep 1  # longer than the launcher takes to see it
fi
exit $((3 + RANK))"""
    assert launch(tmp_path, 2, body)[0] == 3 + first


def test_a_killed_process_is_named_with_its_signal(tmp_path):
    code, _, err = launch(tmp_path, 2, "[ $RANK = 0 ] || kill -KILL $$")
    assert code == 128 + signal.SIGKILL
    assert re.fullmatch(r"scripts/launch: rank 1 \(process \d+\) ended with signal KILL\n", err)


def test_a_rank_that_hangs_is_ended_after_the_grace(tmp_path):
    """One heeds SIGTERM, one does not; neither is the cause."""
    body = """
echo $$ > pid.$RANK
case $RANK in
  0) trap '' TERM; while :; do sleep 0.1; done ;;
  1) sleep 60 & trap 'kill $!; exit 1' TERM; wait ;;
  2) sleep 0.5; exit 6 ;;
esac"""
    code, _, err = launch(tmp_path, 3, body, "--grace", "1")
    assert code == 6
    assert "2 processes still run" in err and "rank 0" in err
    for rank in (0, 1):
        assert not is_alive(int((tmp_path / f"pid.{rank}").read_text()))


SAVES = """
trap 'echo $RANK >> signals; sleep 0.3; exit 75' TERM INT
touch ready.$RANK
for ((i = 0; i < 600; ++i)); do sleep 0.1; done"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_reaches_each_process_once(tmp_path, number):
    process = start(tmp_path, 3, SAVES)
    wait_for_files(tmp_path, "ready.*", 3)
    process.send_signal(number)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (STOPPED, "")
    assert sorted((tmp_path / "signals").read_text().split()) == ["0", "1", "2"]
    assert f"{number.name}: told to 3 processes" in out


def test_a_terminals_interrupt_reaches_each_process_once(tmp_path):
    """Ctrl-C goes to the whole foreground group, which the processes are not in."""
    program = write_script(tmp_path / "program", SAVES)
    process = subprocess.Popen(
        [LAUNCH, "2", "--program", program, "--", "train"],
        cwd=tmp_path, start_new_session=True, stdout=subprocess.DEVNULL,
    )
    wait_for_files(tmp_path, "ready.*", 2)
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(timeout=60) == STOPPED
    assert sorted((tmp_path / "signals").read_text().split()) == ["0", "1"]


def test_when_the_launcher_is_killed_its_processes_stop_too(tmp_path):
    process = start(tmp_path, 2, SAVES)
    wait_for_files(tmp_path, "ready.*", 2)
    process.kill()
    process.wait()
    deadline = time.monotonic() + 30
    while not (tmp_path / "signals").is_file() or len((tmp_path / "signals").read_text().split()) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize(
    "arguments, expected",
    [
        ([], "expected the number of processes, from 1, found ''"),
        (["0", "--", "train"], "found '0'"),
        (["two", "--", "train"], "found 'two'"),
        (["2", "train", "x.yaml"], "unknown argument 'train'"),
        (["2", "--"], "expected the arguments of cplm behind --"),
        (["2", "--grace"], "--grace needs a value"),
        (["2", "--grace", "-1", "--", "train"], "--grace: expected whole seconds"),
        (["2", "--program", "/absent/cplm", "--", "train"], "no program /absent/cplm"),
    ],
)
def test_wrong_arguments(arguments, expected):
    run = subprocess.run([LAUNCH, *arguments], capture_output=True, text=True, timeout=60)
    assert run.returncode == 2 and run.stdout == ""
    assert expected in run.stderr and len(run.stderr.splitlines()) == 1


# ---- Slurm


def sbatch(tmp_path: Path, code: int, **environment: str):
    """Runs the batch script with a made-up srun, which ends with `code`, and scontrol."""
    tools = tmp_path / "tools"
    tools.mkdir()
    write_script(tools / "srun", f'printf "%s\\n" "$@" > {tmp_path}/srun; exit {code}')
    write_script(tools / "scontrol", f'printf "%s\\n" "$*" > {tmp_path}/scontrol')
    run = subprocess.run(
        ["bash", SBATCH, "configs/debug.yaml", "--set", "run.name=a b"],
        capture_output=True,
        text=True,
        timeout=60,
        env=clean_environment(PATH=f"{tools}:{os.environ['PATH']}", SLURM_JOB_ID="17", **environment),
    )
    requeued = (tmp_path / "scontrol").read_text().strip() if (tmp_path / "scontrol").exists() else None
    return run, (tmp_path / "srun").read_text().splitlines(), requeued


def test_a_stopped_job_is_queued_again(tmp_path):
    run, arguments, requeued = sbatch(tmp_path, STOPPED)
    assert requeued == "requeue 17"
    assert run.returncode == STOPPED
    assert arguments[-4:] == ["train", "configs/debug.yaml", "--set", "run.name=a b"]


@pytest.mark.parametrize("code", [0, 1, 4, 6, 137])
def test_any_other_end_is_the_jobs_end(tmp_path, code):
    run, _, requeued = sbatch(tmp_path, code)
    assert requeued is None and run.returncode == code


def test_the_batch_script_asks_for_the_signal_in_time():
    text = SBATCH.read_text()
    for line in (
        "--requeue",
        "--signal=TERM@",
        "--ntasks-per-node=",
        "--gpus-per-node=",
        "--open-mode=append",
    ):
        assert re.search(rf"^#SBATCH {line}", text, re.MULTILINE), line
