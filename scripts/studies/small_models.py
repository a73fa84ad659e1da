"""The study of small models: which steps it has. What they found: small_models_results.py.

Every model is the quickstart's (1.9 million parameters, or the byte pair's), trained on one thread, so that
the numbers do not depend on how many run at once.
"""

from dataclasses import dataclass, field
from pathlib import Path

from studies.command import ROOT
from studies.steps import Step

HEADS = ("vanilla", "cplm")
SEEDS = (1234, 1235, 1236)
SEED = SEEDS[0]
WINDOW = 64  # of configs/quickstart.yaml
OTHER_WINDOWS = (32, 128, 256)
TRAINED_LENGTH = 512  # of configs/quickstart.yaml
LONG_LENGTH = 8 * TRAINED_LENGTH
BACKBONES = ("sliding", "full", "hybrid")
SEEDS_OF = {"sliding": SEEDS, "full": SEEDS, "hybrid": (SEED,)}
CUTS = ("scores", "scores_and_gate")
INDUCTION_LENGTHS = (8, 16, 32, 63)
QUARTERS = (0.05, 0.25, 0.5, 0.75, 1.0)  # of a run: where the page tells the gate


def config_files() -> tuple[Path, ...]:
    """Of all arms, those of scripts/retrieval too."""
    pairs = [f"{name}-{head}" for name in ("quickstart", "repeat", "recall", "needle") for head in HEADS]
    return tuple(ROOT / f"configs/{name}.yaml" for name in (*pairs, "study-bytes"))


def pair_name(backbone: str, head: str, seed: int = SEED) -> str:
    return f"{backbone}-{head}-{seed}"


def window_name(window: int, head: str) -> str:
    return pair_name("sliding", head) if window == WINDOW else f"window-{window}-{head}"


def cut_name(cut: str) -> str:
    return f"cut-{cut.replace('_', '-')}"


@dataclass
class Plan:
    """Steps in the order in which they begin. out: the study's folder; data: the quickstart's."""

    out: Path
    data: Path
    retrieval: Path = ROOT / "runs/retrieval"  # scripts/retrieval's
    steps: list[Step] = field(default_factory=list)

    def run_dir(self, name: str) -> Path:
        return self.out / "runs" / name

    def comparison(self, name: str) -> Path:
        return self.out / "comparisons" / name

    def evaluation(self, name: str) -> Path:
        return self.out / "evaluations" / name

    def add(self, name: str, *command: object, after: tuple[str, ...] = ()) -> None:
        self.steps.append(Step(name, tuple(map(str, command)), after))

    def train(self, name: str, config: str, after: tuple[str, ...] = (), **overrides: object) -> None:
        sets = {"run.name": name, "run.dir": self.run_dir(name), "train.threads": 1, **overrides}
        words = (word for key, value in sets.items() for word in ("--set", f"{key}={value}"))
        self.add(f"train-{name}", "cplm", "train", ROOT / "configs" / config, *words, after=after)

    def train_text(self, name: str, head: str, seed: int = SEED, **overrides: object) -> None:
        shards = {f"data.{split}": f"['{self.data}/{split}/*.h5']" for split in ("train", "validation")}
        self.train(name, f"quickstart-{head}.yaml", **shards, **{"run.seed": seed}, **overrides)

    def compare(self, name: str, *runs: str) -> None:
        self.add(
            f"compare-{name}", "cplm", "compare", *map(self.run_dir, runs), "--out", self.comparison(name),
            after=tuple(f"train-{run}" for run in runs),
        )  # fmt: skip

    def evaluate(self, name: str, task: str, runs: list[str], *arguments: object) -> None:
        self.add(
            f"evaluate-{name}", "cplm", "eval", task, *map(self.run_dir, runs), *arguments, "--threads", 1,
            "--out", self.evaluation(name), after=tuple(f"train-{run}" for run in runs),
        )  # fmt: skip


def _add_pairs(plan: Plan) -> None:
    for backbone in BACKBONES:
        for seed in SEEDS_OF[backbone]:
            for head in HEADS:
                plan.train_text(pair_name(backbone, head, seed), head, seed, **{"model.backbone": backbone})
        plan.compare(backbone, *(pair_name(backbone, head, seed) for head in HEADS for seed in SEEDS_OF[backbone]))
        for seed in SEEDS_OF[backbone]:
            plan.compare(f"{backbone}-{seed}", *(pair_name(backbone, head, seed) for head in HEADS))


def _add_windows(plan: Plan) -> None:
    for window in OTHER_WINDOWS:
        for head in HEADS:
            plan.train_text(window_name(window, head), head, **{"model.sliding_window": window})
        plan.compare(f"window-{window}", *(window_name(window, head) for head in HEADS))


def _add_cuts(plan: Plan) -> None:
    for cut in CUTS:
        plan.train_text(cut_name(cut), "cplm", **{"model.backbone": "full", "model.copy.stop_gradient": cut})
    plan.compare("cuts", *(pair_name("full", head) for head in HEADS), *map(cut_name, CUTS))


def _add_bytes(plan: Plan, text: str) -> None:
    plan.add(
        "bytes", "python", ROOT / "scripts/study_bytes.py", "--text", text, "--out", plan.out / "bytes",
        "--seed", SEED, "--set", "train.threads=1",
    )  # fmt: skip


def _add_induction(plan: Plan) -> None:
    data = plan.out / "data/repeat"
    plan.add(
        "data-repeat", "cplm", "data", "make", "repeat", "--output", data, "--vocab-size", 128, "--first-symbol", 1,
        "--sequence-length", 128, "--repeat-length", "8:63", "--samples", 60000,
    )  # fmt: skip
    for head in HEADS:
        plan.train(
            f"repeat-{head}", f"repeat-{head}.yaml", after=("data-repeat",),
            **{f"data.{split}": f"['{data}/{split}/*.h5']" for split in ("train", "validation")},
        )  # fmt: skip
    plan.evaluate(
        "induction", "induction", [f"repeat-{head}" for head in HEADS], "--first-symbol", 1,
        "--lengths", ",".join(map(str, INDUCTION_LENGTHS)),
    )  # fmt: skip


def _add_evaluations(plan: Plan) -> None:
    pair = lambda backbone: [pair_name(backbone, head) for head in HEADS]  # noqa: E731
    plan.evaluate("long-context-sliding", "long-context", pair("sliding"), "--length", LONG_LENGTH)
    plan.evaluate(
        "long-context-full", "long-context", pair("full") + pair("hybrid"), "--length", LONG_LENGTH,
        "--yarn", LONG_LENGTH // TRAINED_LENGTH,
    )  # fmt: skip
    windows = sorted({WINDOW, *OTHER_WINDOWS})
    runs = [window_name(window, head) for window in windows for head in HEADS] + pair("full")
    plan.evaluate("memory", "memory", runs, "--data", f"{plan.data}/validation/*.h5", "--context", TRAINED_LENGTH)
    plan.evaluate("gradient", "gradient", pair("full"))


def make_plan(out: Path, data: Path, device: str) -> Plan:
    plan = Plan(out, data)
    _add_pairs(plan)
    _add_bytes(plan, f"{data}/text/*.txt")
    _add_windows(plan)
    _add_cuts(plan)
    _add_induction(plan)
    plan.add("retrieval", ROOT / "scripts/retrieval", f"--{device}")
    _add_evaluations(plan)
    return plan
