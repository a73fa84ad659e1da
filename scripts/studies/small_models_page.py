"""The page of the study of small models: its tables as Markdown, and where its pictures lie."""

from studies.small_models import INDUCTION_LENGTHS, LONG_LENGTH, QUARTERS, TRAINED_LENGTH


def _table(head: list[str], rows: list[list[str]]) -> str:
    return "\n".join("| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *rows])


def _loss(of: dict, seeds: int) -> str:
    return f"{of['mean']:.3f}" + (f" ± {of['sd']:.3f}" if seeds > 1 else "")


def _difference(of: dict) -> str:
    return f"{of['mean']:+.3f} [{of['low']:+.3f}, {of['high']:+.3f}]"


def _shares(shares: list[float | None]) -> str:
    """Of each seed's pair."""
    return ", ".join("not reached" if share is None else f"{100 * share:.0f} %" for share in shares)


def _pair_cells(row: dict) -> list[str]:
    return [
        _loss(row["vanilla"], row["seeds"]), _loss(row["cplm"], row["seeds"]), _difference(row["difference"]),
        _shares(row["before_cooldown"]), _shares(row["at_end"]),
    ]  # fmt: skip


PAIR_HEAD = ["vanilla", "CPLM", "difference (95 %)", "tokens to vanilla's loss before the cooldown", "at the end"]


def _pairs(results: dict) -> str:
    rows = [[row["backbone"], str(row["seeds"]), *_pair_cells(row)] for row in results["pairs"]]
    return _table(["backbone", "seeds", *PAIR_HEAD], rows) + (
        "\n\nLosses are means ± standard deviations over seeds. The interval of a difference is over validation "
        "windows; the spread between seeds is not in it."
    )


def _windows(results: dict) -> str:
    kib = lambda cache: f"{cache / 1024:,.0f}"  # noqa: E731
    rows = [
        [str(row["window"]), *_pair_cells(row), kib(row["cache_bytes"]["vanilla"]), kib(row["cache_bytes"]["cplm"])]
        for row in results["windows"]
    ]
    return _table(["window", *PAIR_HEAD, f"cache of {TRAINED_LENGTH} tokens, KiB: vanilla", "CPLM"], rows)


def _gates(results: dict) -> str:
    rows = []
    for backbone in dict.fromkeys(point["backbone"] for point in results["gates"]):
        points = [point for point in results["gates"] if point["backbone"] == backbone]
        for share in QUARTERS:
            point = points[max(round(share * len(points)) - 1, 0)]
            numbers = (f"{point[key]:.3f}" for key in ("loss", "loss_no_copy", "copy_gate", "sink_mass", "copy_weight"))
            rows.append([backbone, f"{point['tokens']:,.0f}", *numbers])
    head = ["backbone", "tokens", "loss", "of the LM head alone", "copy gate c", "sink s", "copied weight c (1 - s)"]
    return _table(head, rows)


def _stop_gradient(results: dict) -> str:
    rows = [
        [row["arm"].replace("_", " "), f"{row['loss']:.3f}", "" if row["kept"] is None else f"{100 * row['kept']:.0f} %"]
        for row in results["stop_gradient"]
    ]
    return _table(["arm (full attention)", "loss", "of the gain kept"], rows)


def _bytes(results: dict) -> str:
    rows = []
    for level in results["bytes"]:
        gain = f"{level['gain_bits_per_byte']:+.4f} [{level['gain_low']:+.4f}, {level['gain_high']:+.4f}]"
        bits = level["bits_per_byte"]
        rows.append([
            level["level"], f"{level['vocab_size']:,}", f"{bits['vanilla']:.4f}", f"{bits['cplm']:.4f}", gain,
            f"{level['copy_weight']:.3f}",
        ])  # fmt: skip
    return _table(["level", "V", "vanilla, bits a byte", "CPLM", "gain (95 %)", "copied weight"], rows)


def _long_context(results: dict) -> str:
    buckets = list(dict.fromkeys((row["begin"], row["end"]) for row in results["long_context"]))
    rows = []
    for model in dict.fromkeys(row["model"] for row in results["long_context"]):
        found = {(r["begin"], r["end"]): r for r in results["long_context"] if r["model"] == model}
        last = found[buckets[-1]]
        gate = [f"{last[key]:.3f}" if last.get(key) is not None else "" for key in ("copy_gate", "sink_mass")]
        distance = f"{last['copy_distance']:,.0f}" if last.get("copy_distance") is not None else ""
        rows.append([model, *(f"{found[bucket]['perplexity']:.1f}" for bucket in buckets), *gate, distance])
    head = ["model", *(f"{begin:,}-{end:,}" for begin, end in buckets), "c there", "s there", "copy distance there"]
    return _table(head, rows)


def _gradient(results: dict) -> str:
    rows = []
    for row in results["gradient"]:
        kept = ", ".join(f"{b['from']}-{b['to']}: {b['kept']['1e-12']:.2f} / {b['kept']['1e-3']:.2f}" for b in row["query"])
        rows.append([row["model"], f"{100 * row['lost']:.2f} %", f"{100 * row['isotropic_lost']:.2f} %", kept])
    head = ["model", "lost in the LM head", "without direction", "kept on the copy query path, rtol 1e-12 / 1e-3, by position"]
    return _table(head, rows)


def _induction(results: dict) -> str:
    told, rows = results["induction"], []
    for subject in told["subjects"]:
        by_length = {losses["length"]: losses["second_copy"]["natural"] for losses in subject["losses"]}
        scores = subject["scores"]
        copy_head = scores.get("copy_head")
        rows.append([
            subject["name"], *(f"{by_length[length]:.3f}" for length in INDUCTION_LENGTHS),
            f"{scores['heads_from']['0.5']} of {scores['heads']}", f"{scores['best']['score']:.2f}",
            f"{copy_head['score']:.2f}" if copy_head else "",
        ])  # fmt: skip
    head = ["model", *(f"loss, T {length}" for length in INDUCTION_LENGTHS), "heads from 0.5", "best head", "Copy-Paste head"]
    return _table(head, rows) + f"\n\nChance is {told['chance']:.3f}."


def _recall(results: dict) -> str:
    told = results["recall"]
    rows = [
        [subject["name"], *(f"{100 * x:.1f}" for x in subject["modes"]["natural"]["accuracy"])]
        for subject in told["subjects"]
    ]
    return _table(["right answers, %, at distance", *(f"{d:,}" for d in told["distances"])], rows)


def _needle(results: dict) -> str:
    told = results["needle"]
    rows = []
    for subject in told["subjects"]:
        by_length = []
        for length in told["lengths"]:
            cells = [cell for cell in subject["cells"] if cell["length"] == length]
            right, samples = sum(c["correct"] for c in cells), sum(c["samples"] for c in cells)
            by_length.append(f"{100 * right / samples:.0f}")
        rows.append([subject["name"], *by_length, f"{100 * subject['mean_accuracy']:.1f}"])
    return _table(["needles found, %, at length", *(f"{length:,}" for length in told["lengths"]), "all"], rows)


# Title, table, pictures.
SECTIONS = (
    ("Tokens to the vanilla model's loss", _pairs, ("losses", "sliding", "full")),
    ("Windows, and the memory they cost", _windows, ("memory",)),
    ("Gate and sink over training", _gates, ("gates",)),
    ("What is left when the copy head's gradient is cut", _stop_gradient, ()),
    ("Bytes", _bytes, ()),
    (f"Perplexity to {LONG_LENGTH:,} tokens, trained at {TRAINED_LENGTH}", _long_context,
     ("long-context-sliding", "long-context-full")),
    ("Gradient", _gradient, ("gradient",)),
    ("Induction", _induction, ("induction",)),
    ("Key-value recall", _recall, ("recall",)),
    ("Needles", _needle, ("needle",)),
)  # fmt: skip


def page(results: dict, pictures: dict[str, str]) -> str:
    """pictures: name -> path, as the page links it."""
    seconds = results["seconds"]
    parts = [
        "# What the study of small models found",
        f"Made by `scripts/study`; {seconds['processor_s'] / 60:.0f} minutes of processor in all.",
    ]
    for title, table, names in SECTIONS:
        parts += [f"## {title}", table(results), *(f"![{name}]({pictures[name]})" for name in names)]
    return "\n\n".join(parts) + "\n"
