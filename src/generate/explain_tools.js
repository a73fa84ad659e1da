// The tools above the text: search, shading, light or dark; the model's facts; the start.

class Search {
  constructor(page) {
    this.page = page;
    this.matches = []; // [first token, end] of each occurrence in the running text
    this.current = -1;
    this.found = [];
    const lowered = page.text.tokens.map((token) => token.text.toLowerCase());
    this.starts = [];
    this.length = 0;
    for (const text of lowered) {
      this.starts.push(this.length);
      this.length += text.length;
    }
    this.text = lowered.join("");
    byId("search").addEventListener("input", () => this.find());
    byId("search-next").addEventListener("click", () => this.go(1));
    byId("search-previous").addEventListener("click", () => this.go(-1));
    byId("search").addEventListener("keydown", (event) => {
      if (event.key === "Enter") this.go(event.shiftKey ? -1 : 1);
    });
    byId("tools").addEventListener("submit", (event) => event.preventDefault());
  }

  // The token that holds a character: the last that starts at it or before.
  tokenAt(offset) {
    let low = 0, high = this.starts.length;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (this.starts[middle] <= offset) low = middle;
      else high = middle;
    }
    return low;
  }

  find() {
    const wanted = byId("search").value.toLowerCase();
    this.matches = [];
    this.current = -1;
    for (let at = wanted ? this.text.indexOf(wanted) : -1; at >= 0; at = this.text.indexOf(wanted, at + 1)) {
      this.matches.push([this.tokenAt(at), this.tokenAt(at + wanted.length - 1) + 1]);
    }
    for (const span of this.found) span.classList.remove("found");
    this.found = this.matches.flatMap(([begin, end]) =>
      Array.from({ length: end - begin }, (_, place) => this.page.text.span(begin + place)));
    for (const span of this.found) span.classList.add("found");
    this.tell();
  }

  go(direction) {
    const number = this.matches.length;
    if (number === 0) return;
    this.current = this.current < 0 && direction < 0 ? number - 1 : (this.current + direction + number) % number;
    const [begin] = this.matches[this.current];
    this.page.choose(begin, false);
    this.page.moveTabStop(begin);
    this.page.reveal(begin);
    this.tell();
  }

  tell() {
    const number = count(this.matches.length);
    const place = this.current < 0 ? number : `${count(this.current + 1)} of ${number}`;
    byId("search-count").textContent = byId("search").value ? `${place} found` : "";
  }
}

function setUpShading(text, isVanilla) {
  const explain = {
    copy: "copied (weight g, 0 to 1)",
    surprise: `surprise (0 to ${RunningText.MOST_BITS} bits)`,
    none: "no shading",
  };
  const select = byId("shade");
  if (isVanilla) select.querySelector("[value=copy]").remove();
  const apply = () => {
    text.shadeBy(select.value);
    byId("scale-text").textContent = explain[select.value];
  };
  select.value = isVanilla ? "surprise" : "copy";
  select.addEventListener("change", apply);
  apply();
}

function setUpTheme() {
  byId("theme").addEventListener("click", () => {
    const root = document.documentElement;
    const chosen = root.style.colorScheme;
    const isDark = chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.style.colorScheme = isDark ? "light" : "dark";
  });
}

function setUpAllArrows(text) {
  const box = byId("all-arrows");
  if (text.length <= Page.MOST_FOR_ALL_ARROWS) return;
  box.disabled = true;
  box.parentElement.append(` (texts of up to ${Page.MOST_FOR_ALL_ARROWS} tokens)`);
}

function showFacts(explanation) {
  const { model, prompt_tokens: numGiven, tokens, predictions } = explanation;
  const generated = predictions.slice(Math.max(0, numGiven - 1));
  const counted = generated.length > 0 ? generated : predictions;
  const facts = [`${model.head} head`, `${model.backbone} backbone`];
  if (model.step !== null && model.step !== undefined) facts.push(`step ${count(model.step)}`);
  if (model.mode && model.head !== "vanilla") facts.push(`mode ${model.mode}`);
  facts.push(`${count(tokens.length)} tokens, ${count(numGiven)} given`);
  if (counted.length > 0) {
    const bits = counted.reduce((sum, one) => sum + bitsOf(one), 0) / counted.length;
    facts.push(`${bits.toFixed(2)} bits a token${generated.length > 0 ? " generated" : ""}`);
  }
  byId("model-name").textContent = model.name;
  byId("model-facts").textContent = facts.join(", ");
  document.title = `${model.name}: what it copied`;
}

function main() {
  const explanation = readExplanation();
  const isVanilla = !explanation.predictions.some((one) => one.copy_gate !== null);
  document.body.classList.toggle("vanilla", isVanilla);
  showFacts(explanation);
  for (const part of [byId("tools"), byId("legend"), document.querySelector("main")]) part.hidden = false;
  const page = new Page(explanation);
  page.start();
  drawLegendArrows(byId("legend-arrows"));
  byId("legend").open = window.innerWidth > Page.NARROW;
  setUpShading(page.text, isVanilla);
  setUpTheme();
  setUpAllArrows(page.text);
  new Search(page);
}

try {
  main();
} catch (error) {
  byId("failure").textContent = `This page cannot be shown: ${error.message}`;
  byId("failure").hidden = false;
}
