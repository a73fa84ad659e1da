// What is known of the chosen token, in numbers and small bars, and in one sentence.

function bar(share) {
  const filled = element("div");
  filled.style.width = `${(100 * Math.min(1, share)).toFixed(1)}%`;
  return element("div", { class: "bar", "aria-hidden": "true" }, filled);
}

function barRow(label, share, shown, tag = "div", attributes = {}) {
  const row = element(tag, attributes, label, bar(share), element("span", {}, shown));
  row.classList.add("bar-row");
  return row;
}

class Panel {
  static NO_COPY = 0.005; // of attention, below which no position is listed

  constructor(explanation, text) {
    this.text = text;
    this.vocabulary = explanation.vocabulary;
    this.panel = byId("facts");
  }

  clear() {
    this.panel.hidden = true;
    byId("keys").hidden = false;
  }

  show(index, isPinned) {
    const prediction = this.text.predictionOf(index);
    const parts = [...this.heading(index, isPinned)];
    if (prediction) {
      parts.push(...this.probability(prediction));
      if (prediction.copy_gate !== null) parts.push(...this.gates(prediction), ...this.sources(prediction));
      parts.push(this.distributions(index, prediction));
    } else {
      parts.push(element("p", {}, "The first token: nothing predicts it."));
    }
    this.panel.replaceChildren(...parts);
    this.panel.hidden = false;
    byId("keys").hidden = true;
  }

  tokenName(index) {
    return visible(this.text.tokens[index].text);
  }

  heading(index, isPinned) {
    const origin = index < this.text.numGiven ? "given" : "generated";
    const place = `token ${count(index)} of 0 to ${count(this.text.length - 1)}, id ` +
      `${this.text.tokens[index].id}, ${origin}${isPinned ? ", pinned" : ""}`;
    const title = element("h2", {}, this.tokenName(index));
    const release = element("button", { id: "release", type: "button", "aria-label": "Release" }, "\u00d7");
    return [...(isPinned ? [release] : []), title, element("p", { class: "place" }, place)];
  }

  probability(prediction) {
    const probability = probabilityOf(prediction);
    const facts = [`surprise ${surpriseOf(prediction)}`];
    if (prediction.copy_gate !== null) facts.push(`the pointer ${sinkWord(prediction.sink)}`);
    return [
      barRow(element("span", {}, "P(token)"), probability, percent(probability)),
      element("p", { class: "place" }, facts.join(", ")),
    ];
  }

  gates(prediction) {
    const row = (label, share) => barRow(element("span", {}, label), share, share.toFixed(3));
    return [
      row("copy gate c", prediction.copy_gate),
      row("sink s", prediction.sink),
      row("g = c(1 \u2212 s)", prediction.copy_weight),
    ];
  }

  sources(prediction) {
    const rows = prediction.sources.map(([position, share], place) => {
      const label = element("code", {}, `${place + 1} ${this.tokenName(position)} @${position}`);
      const go = { type: "button", class: "source-row", "data-goto": position };
      return barRow(label, share, share.toFixed(3), "button", go);
    });
    const none = element("p", { class: "place" }, `no position has ${Panel.NO_COPY} or more`);
    return [element("h3", {}, "Copied from (attention \u03b1)"), ...(rows.length ? rows : [none])];
  }

  distributions(index, prediction) {
    const columns = element("div", { class: "columns" });
    const mixture = prediction.copy_gate === null ? null : prediction.mixture; // else the LM head's
    const heads = [["LM head", prediction.lm], ["Copy-paste head", prediction.cp], ["Mixture", mixture]];
    for (const [title, ranked] of heads) {
      if (ranked === null) continue; // a head this model has not
      const rows = ranked.map(([id, probability]) => {
        const isToken = id === this.text.tokens[index].id;
        const label = element("code", { title: `id ${id}` }, visible(this.vocabulary[id] ?? `id ${id}`));
        const row = barRow(label, probability, percent(probability));
        if (isToken) row.classList.add("is-token");
        return row;
      });
      columns.append(element("section", {}, element("h3", {}, title), ...rows));
    }
    return columns;
  }

  sentence(index, isPinned) {
    const prediction = this.text.predictionOf(index);
    const start = `${isPinned ? "Pinned: " : ""}token ${index}, ${this.tokenName(index)}`;
    if (!prediction) return `${start}: the first.`;
    const odds = `${start}: probability ${percent(probabilityOf(prediction))}`;
    if (prediction.copy_gate === null) return `${odds}, surprise ${surpriseOf(prediction)}.`;
    const gates = `copy weight ${prediction.copy_weight.toFixed(2)}, gate ` +
      `${prediction.copy_gate.toFixed(2)}, sink ${prediction.sink.toFixed(2)}`;
    const from = prediction.sources.slice(0, 3)
      .map(([position, share]) => `${this.tokenName(position)} at ${position} (${share.toFixed(2)})`);
    return `${odds}; ${gates}${from.length ? `; copied from ${from.join(", ")}` : ""}.`;
  }
}
