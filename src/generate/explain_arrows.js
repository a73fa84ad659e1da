// Curves from the tokens that were copied to the token they predict.

const SVG = "http://www.w3.org/2000/svg";

function svgElement(name, attributes) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

// Green for a sink of 0 to red for 1, in a lightness that stands out from the page.
function sinkColour(sink) {
  const hue = Math.round(140 * (1 - sink));
  return `light-dark(hsl(${hue} 80% 32%), hsl(${hue} 75% 58%))`;
}

// The same told without colour: solid, dashed, dotted.
function sinkDashes(sink, width) {
  if (sink < 1 / 3) return "none";
  return sink < 2 / 3 ? `${6 + 1.5 * width} ${4 + 1.5 * width}` : `0.1 ${2 + 1.7 * width}`;
}

const sinkWord = (sink) =>
  sink < 1 / 3 ? "committed" : sink < 2 / 3 ? "undecided" : "deferred";

function curve(path, sink, width) {
  const drawn = svgElement("path", {
    d: path,
    "stroke-width": width.toFixed(2),
    "stroke-dasharray": sinkDashes(sink, width),
  });
  drawn.style.stroke = sinkColour(sink);
  return drawn;
}

class Arrows {
  static LEAST_WIDTH = 1.5;
  static MOST_WIDTH = 9;
  static MOST_RISE = 44; // above the tokens, in pixels
  static LEAST_IN_OVERVIEW = 0.1; // c alpha, below which "all arrows" leaves one out

  constructor(svg, text) {
    this.svg = svg;
    this.text = text;
    this.redraw = () => {};
    new ResizeObserver(() => this.redraw()).observe(text.container);
  }

  clear() {
    this.redraw = () => {};
    this.svg.replaceChildren();
  }

  show(index) {
    this.svg.classList.remove("overview");
    this.redraw = () => this.svg.replaceChildren(...this.arrowsTo(index, 0, true));
    this.redraw();
  }

  showAll() {
    this.svg.classList.add("overview");
    this.redraw = () => {
      const indices = this.text.tokens.keys();
      const all = [...indices].flatMap((one) => this.arrowsTo(one, Arrows.LEAST_IN_OVERVIEW, false));
      this.svg.replaceChildren(...all);
    };
    this.redraw();
  }

  // The strongest is drawn last, above the others; numbers are the places in the panel's list.
  arrowsTo(index, leastStrength, withNumbers) {
    const prediction = this.text.predictionOf(index);
    if (!prediction || prediction.copy_gate === null) return [];
    const strong = prediction.sources
      .map(([position, share], place) => ({ position, place, strength: prediction.copy_gate * share }))
      .filter((one) => one.strength >= leastStrength);
    const corner = this.svg.getBoundingClientRect();
    const top = (position) => {
      const box = this.text.rectangle(position);
      return { x: box.left + box.width / 2 - corner.left, y: box.top - corner.top };
    };
    const end = strong.length > 0 ? top(index) : null;
    return strong.reverse().flatMap(({ position, place, strength }) => {
      const number = withNumbers ? place + 1 : null;
      return Arrows.one(top(position), end, prediction.sink, strength, number);
    });
  }

  static one(start, end, sink, strength, number) {
    const width = Arrows.LEAST_WIDTH + (Arrows.MOST_WIDTH - Arrows.LEAST_WIDTH) * strength;
    const head = 3 + width;
    const distance = Math.hypot(end.x - start.x, end.y - start.y);
    const rise = Math.min(Arrows.MOST_RISE, 14 + 0.12 * distance);
    const path =
      `M${start.x.toFixed(1)} ${start.y.toFixed(1)} ` +
      `C${start.x.toFixed(1)} ${(start.y - rise).toFixed(1)} ` +
      `${end.x.toFixed(1)} ${(end.y - rise - head).toFixed(1)} ` +
      `${end.x.toFixed(1)} ${(end.y - head).toFixed(1)}`;
    const half = head * 0.6;
    const points = [[end.x - half, end.y - head], [end.x + half, end.y - head], [end.x, end.y + 1]];
    const tip = svgElement("polygon", { points: points.map((one) => one.join(",")).join(" ") });
    tip.style.fill = sinkColour(sink);
    const drawn = [curve(path, sink, width), tip];
    if (number !== null) {
      const label = svgElement("text", { x: start.x.toFixed(1), y: (start.y + 3).toFixed(1) });
      label.textContent = number;
      drawn.push(label);
    }
    return drawn;
  }
}

function drawLegendArrows(svg) {
  [0, 0.5, 1].forEach((sink, place) => {
    svg.append(curve(`M${8 + 72 * place} 7 h52`, sink, 2 + 1.5 * place));
  });
}
