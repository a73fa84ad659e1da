// What mouse, touch and keys do: one token is chosen by pointing or by the focus, or stays pinned.

class Page {
  static MOST_FOR_ALL_ARROWS = 400; // tokens of a text whose arrows can be drawn together
  static NARROW = 700; // pixels of width, up to which the legend is closed at first
  static ROOM = 24; // pixels between a tapped token and the panel
  static ANNOUNCE_AFTER_MS = 250; // so that moving on quickly is not read out token by token

  constructor(explanation) {
    this.text = new RunningText(byId("text"), explanation);
    this.arrows = new Arrows(byId("arrows"), this.text);
    this.panel = new Panel(explanation, this.text);
    this.chosen = null;
    this.isPinned = false;
    this.focused = null; // the one token that Tab reaches
    this.marked = [];
  }

  start() {
    this.text.renderUpTo(RunningText.FIRST);
    if (this.text.length > 0) this.moveTabStop(0);
    this.listen();
    this.text.renderRest();
  }

  listen() {
    const text = this.text.container;
    text.addEventListener("pointerover", (event) => {
      if (event.pointerType === "mouse") this.look(this.text.indexOf(event.target));
    });
    text.addEventListener("pointerleave", () => this.look(this.tokenWithFocus()));
    text.addEventListener("focusin", (event) => this.look(this.text.indexOf(event.target)));
    text.addEventListener("focusout", (event) => {
      if (!byId("panel").contains(event.relatedTarget)) this.look(null);
    });
    text.addEventListener("click", (event) => this.onClick(this.text.indexOf(event.target)));
    text.addEventListener("keydown", (event) => this.onKey(event));
    document.addEventListener("keydown", (event) => {
      if (event.key === "Escape") this.release();
    });
    byId("panel").addEventListener("click", (event) => this.onPanelClick(event.target));
    byId("all-arrows").addEventListener("change", () => this.draw());
  }

  tokenWithFocus() {
    return this.text.indexOf(document.activeElement);
  }

  // Shows a token, or nothing, unless one is pinned.
  look(index) {
    if (this.isPinned || index === this.chosen) return;
    this.choose(index, false);
  }

  choose(index, isPinned) {
    this.chosen = index;
    this.isPinned = isPinned;
    this.draw();
  }

  // Back to what has the focus; when nothing was pinned, to nothing.
  release() {
    this.choose(this.isPinned ? this.tokenWithFocus() : null, false);
  }

  onClick(index) {
    if (index === null || !document.getSelection().isCollapsed) return;
    const isPinnedAlready = this.isPinned && this.chosen === index;
    this.focus(index, { preventScroll: true });
    this.choose(isPinnedAlready ? null : index, !isPinnedAlready);
    this.keepAbovePanel(index);
  }

  // On a small screen the panel that a tap brings up may cover the token.
  keepAbovePanel(index) {
    const panel = byId("panel");
    if (getComputedStyle(panel).position !== "fixed") return;
    const hidden = this.text.rectangle(index).bottom + Page.ROOM - panel.getBoundingClientRect().top;
    if (hidden > 0) window.scrollBy({ top: hidden });
  }

  onPanelClick(target) {
    const source = target.closest("[data-goto]");
    if (source) this.reveal(Number(source.dataset.goto));
    if (!target.closest("#release")) return;
    this.focus(this.chosen, { preventScroll: true });
    this.choose(null, false);
  }

  onKey(event) {
    const index = this.text.indexOf(event.target);
    if (index === null || event.ctrlKey || event.altKey || event.metaKey) return;
    const last = this.text.length - 1;
    const moves = {
      ArrowLeft: () => Math.max(0, index - 1),
      ArrowRight: () => Math.min(last, index + 1),
      ArrowUp: () => this.text.inNextLine(index, -1),
      ArrowDown: () => this.text.inNextLine(index, 1),
      Home: () => 0,
      End: () => last,
    };
    if (Object.hasOwn(moves, event.key)) {
      this.focus(moves[event.key]());
    } else if (event.key === "Enter" || event.key === " ") {
      this.choose(index, !(this.isPinned && this.chosen === index));
    } else {
      return;
    }
    event.preventDefault();
  }

  moveTabStop(index) {
    if (this.focused !== null) this.text.span(this.focused).removeAttribute("tabindex");
    this.text.span(index).setAttribute("tabindex", "0");
    this.focused = index;
  }

  focus(index, options) {
    this.moveTabStop(index);
    this.text.span(index).focus(options);
  }

  reveal(index) {
    this.text.span(index).scrollIntoView({ block: "center" });
  }

  draw() {
    for (const span of this.marked) span.classList.remove("chosen", "pinned", "source");
    this.marked = [];
    clearTimeout(this.announcing);
    if (this.chosen === null) {
      if (byId("all-arrows").checked) this.arrows.showAll();
      else this.arrows.clear();
      this.panel.clear();
      byId("announcement").textContent = "";
      return;
    }
    this.mark(this.chosen, "chosen");
    if (this.isPinned) this.mark(this.chosen, "pinned");
    for (const [position] of this.text.predictionOf(this.chosen)?.sources ?? []) this.mark(position, "source");
    this.panel.show(this.chosen, this.isPinned);
    this.arrows.show(this.chosen);
    const sentence = this.panel.sentence(this.chosen, this.isPinned);
    this.announcing = setTimeout(() => (byId("announcement").textContent = sentence), Page.ANNOUNCE_AFTER_MS);
  }

  mark(index, name) {
    const span = this.text.span(index);
    span.classList.add(name);
    this.marked.push(span);
  }
}
