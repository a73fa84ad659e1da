#!/usr/bin/env python3
"""SIGKILLs a random rank of a small run of 2 to 4 ranks at random instants, looks whether all the others
end, starts the run again each time, and compares what it ends with to an undisturbed run of as many ranks:
every weight, moment and metrics line must be equal (times aside).

    .venv/bin/python tests/stress/kill_ranks.py --kills 200

Outside scripts/test: it takes minutes. --seed makes instants and ranks repeatable (as far as the machine's
speed lets them be). Sharded optimizer and asynchronous saves take turns with the plain ways. Exit code 1 when
a rank hangs, a restart finds no complete checkpoint where there was one, or anything differs at the end.
"""

import argparse
import random
import shutil
import signal
import tempfile
import time
from pathlib import Path

from rank_runs import PEER_LOST, STOPPED, Ranks, end_state, fail, make_data, newest_checkpoint, write_config

KILLED = -signal.SIGKILL
DOWN_WITHIN_S = 10  # of a killed peer, once the run is on its way


class Stress:
    def __init__(self, folder, steps, instants):
        self.folder, self.steps, self.instants = folder, steps, instants
        self.calm = {}  # (ranks, sharded) -> what an undisturbed run ends with
        self.kills = self.runs = self.met = 0
        self.slowest_s = 0.0
        self.whole_s = 0.0

    def settings(self, sharded, asynchronous):
        return [f"optimizer.shard={str(sharded).lower()}", f"checkpoint.async={str(asynchronous).lower()}"]

    def undisturbed(self, size, sharded):
        if (size, sharded) not in self.calm:
            name = f"calm-{size}-{sharded}"
            ranks = Ranks(
                self.folder,
                write_config(self.folder, name, self.steps),
                size,
                self.settings(sharded, False),
            )
            if not ranks.wait(600) or any(ranks.codes()):
                fail("the undisturbed run failed", ranks)
            self.whole_s = time.time() - ranks.began
            self.calm[size, sharded] = end_state(self.folder / name, self.steps)
        return self.calm[size, sharded]

    def one_run(self, most_kills):
        """A run from its start to its end, killed again and again on its way."""
        size, sharded = self.instants.randint(2, 4), self.instants.random() < 0.5
        expected = self.undisturbed(size, sharded)
        run = self.folder / "killed"
        config = write_config(self.folder, "killed", self.steps)
        while True:
            before = newest_checkpoint(run)
            ranks = Ranks(self.folder, config, size, self.settings(sharded, self.instants.random() < 0.5))
            delay = self.instants.uniform(0.1, self.whole_s)
            if self.kills >= most_kills:
                break
            if ranks.wait(delay):
                self.whole_s *= 0.85  # as fast as the machine is now
                break
            self.kill_one(ranks, run, size)
            self.check_resume(ranks, before)
        if not ranks.wait(600) or any(ranks.codes()):
            fail(f"a run failed after {self.kills} kills", ranks)
        self.check_resume(ranks, before)
        found = end_state(run, self.steps)
        if found != expected:
            parts = [name for name in expected[0] if expected[0][name] != found[0][name]]
            parts += ["metrics.jsonl"] if expected[1] != found[1] else []
            fail(
                f"after {self.kills} kills: {', '.join(parts)} differ from those of the undisturbed run of {size} ranks"
            )
        self.runs += 1
        shutil.rmtree(run)

    def kill_one(self, ranks, run, size):
        victim = self.instants.randrange(size)
        metrics = run / "metrics.jsonl"
        on_its_way = metrics.exists() and metrics.stat().st_mtime > ranks.began
        at = time.monotonic()
        ranks.signal(signal.SIGKILL, [victim])
        self.kills += 1
        if on_its_way:
            if not ranks.wait(DOWN_WITHIN_S):
                fail(
                    f"kill {self.kills} (rank {victim}): not all ranks ended within {DOWN_WITHIN_S} s",
                    ranks,
                )
            self.met += 1
            self.slowest_s = max(self.slowest_s, time.monotonic() - at)
        elif not ranks.wait(1):
            self.whole_s *= 1.1  # so that more of the kills meet a run on its way
            # Nobody can miss a rank that had not joined: a launcher ends the others then.
            ranks.signal(signal.SIGTERM, ranks.running())
            if not ranks.wait(5):
                fail(
                    f"kill {self.kills} (rank {victim}): ranks that were joining did not heed SIGTERM",
                    ranks,
                )
        # A process that has only just been started does not heed SIGTERM yet: it ends it.
        usual = (
            (0, KILLED, PEER_LOST, STOPPED)
            if on_its_way
            else (0, KILLED, PEER_LOST, STOPPED, -signal.SIGTERM)
        )
        if any(code not in usual for code in ranks.codes()):
            fail(f"kill {self.kills} (rank {victim}): an exit code is wrong", ranks)

    def check_resume(self, ranks, before):
        has_begun = "steps of" in ranks.log(0)  # the line that tells of model and run
        if has_begun and ranks.resumed_at() != before:
            fail(
                f"the newest complete checkpoint was of step {before}, but the run went on at {ranks.resumed_at()}",
                ranks,
            )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        stress = Stress(Path(name), arguments.steps, random.Random(arguments.seed))
        make_data(stress.folder)
        began = time.monotonic()
        while stress.kills < arguments.kills:
            stress.one_run(arguments.kills)
            print(f"{stress.kills} kills, {stress.runs} runs in {time.monotonic() - began:.0f} s", flush=True)
        print(
            f"{stress.kills} kills ({stress.met} after the first step) over {stress.runs} runs of {arguments.steps} steps: weights, moments and metrics "
            f"equal the undisturbed runs'; the slowest end of all ranks took {stress.slowest_s:.1f} s"
        )


if __name__ == "__main__":
    main()
