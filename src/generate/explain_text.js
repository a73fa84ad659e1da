"use strict";
// The data of the page, numbers and tokens in readable form, and the running text.

const byId = (id) => document.getElementById(id);

function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

function readExplanation() {
  let explanation;
  try {
    explanation = JSON.parse(byId("explain-data").textContent);
  } catch (error) {
    throw new Error(`the data of this page cannot be read (${error.message}): make it anew`);
  }
  if (explanation.format !== "cplm-explain-1") {
    throw new Error(`expected data of format cplm-explain-1, found ${explanation.format}`);
  }
  return explanation;
}

// Characters that would not show, or would turn the text around them.
const INVISIBLE =
  /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u200b\u200e\u200f\u2028-\u202e\u2060\u2066-\u2069\ufeff]/u;
const EACH_INVISIBLE = new RegExp(`(${INVISIBLE.source})`, "u");
const NAMED = { "\n": "\u23ce", "\t": "\u21e5", "\r": "\u240d", "\u007f": "\u2421" };

function shownFor(character) {
  const code = character.codePointAt(0);
  if (character in NAMED) return NAMED[character];
  if (code < 0x20) return String.fromCodePoint(0x2400 + code);
  return `<${code.toString(16).toUpperCase().padStart(4, "0")}>`;
}

// Token text in one line, for lists: every space and control character visible.
function visible(text) {
  if (text === "") return "\u2205";
  return text.split(EACH_INVISIBLE).map((part) => (INVISIBLE.test(part) ? shownFor(part) : part))
    .join("").replaceAll(" ", "\u2423");
}

function percent(probability) {
  if (probability === 0) return "0 %";
  if (probability < 0.0005) return probability.toExponential(1);
  return `${(100 * probability).toFixed(probability < 0.1 ? 2 : 1)} %`;
}

const count = (number) => number.toLocaleString("en");

// null stands for the logarithm of 0.
const probabilityOf = (prediction) =>
  prediction.log_prob === null ? 0 : Math.exp(prediction.log_prob);
const bitsOf = (prediction) =>
  prediction.log_prob === null ? Infinity : Math.max(0, -prediction.log_prob / Math.LN2);

function surpriseOf(prediction) {
  const bits = bitsOf(prediction);
  return bits === Infinity ? "infinite" : `${bits.toFixed(2)} bits`;
}

class RunningText {
  static FIRST = 1500; // tokens put on the page before it is first shown
  static LATER = 2000;
  static MOST_SHADE = 0.9;
  static MOST_BITS = 12; // a surprise that is shaded fully

  constructor(container, explanation) {
    this.container = container;
    this.tokens = explanation.tokens;
    this.predictions = explanation.predictions;
    this.numGiven = explanation.prompt_tokens;
    this.spans = [];
    this.shade = "none";
  }

  get length() {
    return this.tokens.length;
  }

  // What predicted a token; nothing predicts the first.
  predictionOf(index) {
    return index > 0 ? this.predictions[index - 1] : undefined;
  }

  span(index) {
    this.renderUpTo(index + 1);
    return this.spans[index];
  }

  indexOf(node) {
    const span = node instanceof Element ? node.closest(".token") : null;
    return span && this.container.contains(span) ? Number(span.dataset.index) : null;
  }

  renderUpTo(end) {
    const fragment = document.createDocumentFragment();
    for (let index = this.spans.length; index < Math.min(end, this.length); ++index) {
      const span = element("span", { class: index < this.numGiven ? "token given" : "token" });
      span.dataset.index = index;
      RunningText.fill(span, this.tokens[index].text);
      this.spans.push(span);
      this.shadeToken(index);
      fragment.append(span);
    }
    this.container.append(fragment);
  }

  // The rest in pieces, so that the page answers meanwhile.
  renderRest() {
    if (this.spans.length >= this.length) return;
    setTimeout(() => {
      this.renderUpTo(this.spans.length + RunningText.LATER);
      this.renderRest();
    });
  }

  static fill(span, text) {
    const mark = (shown) => span.append(element("i", { class: "mark", "data-shown": shown }));
    if (text === "") mark("\u2205");
    for (const part of text.split(EACH_INVISIBLE)) {
      if (!INVISIBLE.test(part)) {
        span.append(part);
      } else {
        mark(shownFor(part));
        if (part === "\n" || part === "\t") span.append(part);
      }
    }
  }

  shadeBy(shade) {
    this.shade = shade;
    this.spans.forEach((_, index) => this.shadeToken(index));
  }

  shadeToken(index) {
    const prediction = this.predictionOf(index);
    let weight = 0;
    if (prediction && this.shade === "copy") weight = prediction.copy_weight ?? 0;
    if (prediction && this.shade === "surprise") {
      weight = Math.min(1, bitsOf(prediction) / RunningText.MOST_BITS);
    }
    this.spans[index].style.setProperty("--w", (RunningText.MOST_SHADE * weight).toFixed(3));
  }

  // The rectangle of a token on the screen: the widest of those it is broken into.
  rectangle(index) {
    const rectangles = [...this.span(index).getClientRects()];
    return rectangles.reduce((widest, one) => (one.width > widest.width ? one : widest));
  }

  // The token nearest above or below: of the next line in that direction, by its middle.
  inNextLine(index, direction) {
    const from = this.rectangle(index);
    const middle = from.left + from.width / 2;
    let best = index, bestDistance = Infinity, line = null;
    for (let other = index + direction; other >= 0 && other < this.length; other += direction) {
      const to = this.rectangle(other);
      const isBeyond = direction > 0 ? to.top > from.bottom - 2 : to.bottom < from.top + 2;
      if (!isBeyond) continue;
      line ??= to;
      if (direction > 0 ? to.top > line.bottom - 2 : to.bottom < line.top + 2) break;
      const distance = Math.abs(to.left + to.width / 2 - middle);
      if (distance < bestDistance) [best, bestDistance] = [other, distance];
    }
    return best;
  }
}
