#!/usr/bin/env python3
"""Two hosts on one machine, as network namespaces joined by a veth pair: a run over both, a slow link, a link
that all but stops, one that goes down, and one that never was. All ranks end within a set time, with the
cause; a run that went through ends with the same bits as on one host.

    .venv/bin/python tests/stress/two_hosts.py [--ranks-a-host 1] [--patience 1]

Needs root, or user namespaces that anyone may make; iproute2; for the slow links the kernel's tbf. It works in
namespaces of its own, which end with it. Exit code 77, and why, where they cannot be made.
"""

import argparse
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SKIPPED = 77
HOST_B = "host-b"
ADDRESS = {"a": "10.77.0.1", "b": "10.77.0.2"}
STEPS, TIMEOUT_S = 60, 20
DOWN_WITHIN_S = 12  # of a link that is gone: 6 s of silence, and its notice


def skip(why):
    print(f"tests/stress/two_hosts.py: skipped: {why}", file=sys.stderr)
    raise SystemExit(SKIPPED)


def run(*command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")


def enter_namespaces():
    """Starts this script again in network and mount namespaces of its own."""
    for tool in ("unshare", "ip", "tc"):
        if shutil.which(tool) is None:
            skip(f"no program {tool}; it comes with util-linux or iproute2")
    ways = [["unshare", "--net", "--mount"], ["unshare", "--user", "--map-root-user", "--net", "--mount"]]
    refusals = []
    for way in ways:
        tried = subprocess.run([*way, "true"], capture_output=True, text=True)
        if tried.returncode == 0:
            os.execvp(way[0], [*way, sys.executable, __file__, "--inside", *sys.argv[1:]])
        refusals.append(tried.stderr.strip())
    skip("cannot make network namespaces: " + "; ".join(refusals) + " (needs root, or user namespaces)")


def make_hosts():
    """Host a is this process's own namespace."""
    try:
        run("mount", "-t", "tmpfs", "tmpfs", "/run")  # where ip keeps the names
        run("ip", "netns", "add", HOST_B)
        run("ip", "link", "add", "link-a", "type", "veth", "peer", "name", "link-b", "netns", HOST_B)
    except OSError as error:
        skip(str(error))
    for host, prefix in (("a", []), ("b", ["-n", HOST_B])):
        run("ip", *prefix, "link", "set", "lo", "up")
        run("ip", *prefix, "addr", "add", f"{ADDRESS[host]}/24", "dev", f"link-{host}")
        run("ip", *prefix, "link", "set", f"link-{host}", "up")


def set_link(state):
    run("ip", "-n", HOST_B, "link", "set", "link-b", state)


@contextlib.contextmanager
def slow_link(rate):
    ends = ((), ("ip", "netns", "exec", HOST_B))
    for end, device in zip(ends, ("link-a", "link-b")):
        run(
            *end,
            "tc",
            "qdisc",
            "add",
            "dev",
            device,
            "root",
            "tbf",
            "rate",
            rate,
            "burst",
            "16kb",
            "latency",
            "200ms",
        )
    try:
        yield
    finally:
        for end, device in zip(ends, ("link-a", "link-b")):
            run(*end, "tc", "qdisc", "del", "dev", device, "root")


class Hosts:
    def __init__(self, folder, ranks_a_host, patience):
        self.folder, self.ranks_a_host, self.patience = folder, ranks_a_host, patience
        self.size = 2 * ranks_a_host

    def start(self, name):
        on_b = ["ip", "netns", "exec", HOST_B]
        return Ranks(
            self.folder, write_config(self.folder, name, STEPS, TIMEOUT_S), self.size, address=ADDRESS["a"],
            local_size=self.ranks_a_host, prefix=lambda rank: on_b if rank >= self.ranks_a_host else [],
        )

    def to_its_end(self, name, seconds=300):
        ranks = self.start(name)
        if not ranks.wait(seconds) or any(ranks.codes()):
            ranks.end()
            fail(f"{name}: expected a run to its end", ranks)
        return end_state(self.folder / name, STEPS)

    def on_its_way(self, name):
        ranks = self.start(name)
        metrics = self.folder / name / "metrics.jsonl"
        deadline = time.monotonic() + 60 * self.patience
        while not metrics.exists() or metrics.read_text().count('"train"') < 4:
            if not ranks.running() or time.monotonic() > deadline:
                ranks.end()
                fail(f"{name}: never on its way", ranks)
            time.sleep(0.02)
        return ranks

    def all_end(self, name, ranks, seconds):
        seconds *= self.patience
        began = time.monotonic()
        in_time = ranks.wait(seconds)
        took = time.monotonic() - began
        ranks.end()
        if not in_time or any(code != PEER_LOST for code in ranks.codes()):
            fail(f"{name}: expected all ranks to end with code {PEER_LOST} within {seconds} s", ranks)
        print(f"{name}: all ranks ended after {took:.1f} s:\n{ranks.last_lines()}", flush=True)


def scenarios(hosts, expected):
    if hosts.to_its_end("joined") != expected:
        fail("joined: the run over two hosts differs from that on one")
    print("joined: equal to the run on one host", flush=True)
    with slow_link("8mbit"):
        if hosts.to_its_end("slow") != expected:
            fail("slow: the run over a slow link differs")
    print("slow link: equal to the run on one host", flush=True)

    ranks = hosts.on_its_way("crawling")
    with slow_link("4kbit"):
        hosts.all_end("crawling link", ranks, TIMEOUT_S + DOWN_WITHIN_S)
    ranks = hosts.on_its_way("dropped")
    set_link("down")
    hosts.all_end("dropped link", ranks, DOWN_WITHIN_S)
    hosts.all_end("no link", hosts.start("dropped"), TIMEOUT_S + DOWN_WITHIN_S)
    set_link("up")
    if hosts.to_its_end("dropped") != expected:
        fail("dropped: the run that went on after it differs")
    print("dropped link: the run went on, and ended equal", flush=True)

    ranks = hosts.on_its_way("stopped")
    ranks.signal(signal.SIGTERM, [hosts.size - 1])
    if not ranks.wait(60 * hosts.patience) or any(code != STOPPED for code in ranks.codes()):
        ranks.end()
        fail(f"stopped: expected all ranks to end with code {STOPPED}", ranks)
    print("a signal to a rank of the other host: all saved and stopped", flush=True)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks-a-host", type=int, default=1)
    parser.add_argument(
        "--patience",
        type=float,
        default=1,
        help="times as long for all that has a time, on busy machines",
    )
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if not arguments.inside:
        enter_namespaces()
    make_hosts()
    with tempfile.TemporaryDirectory() as name:
        hosts = Hosts(Path(name), arguments.ranks_a_host, arguments.patience)
        make_data(hosts.folder)
        alone = Ranks(hosts.folder, write_config(hosts.folder, "alone", STEPS), hosts.size)
        if not alone.wait(300) or any(alone.codes()):
            fail("the run on one host failed", alone)
        scenarios(hosts, end_state(hosts.folder / "alone", STEPS))


if __name__ == "__main__":
    from rank_runs import PEER_LOST, STOPPED, Ranks, end_state, fail, make_data, write_config
    main()
