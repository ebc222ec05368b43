// Head view: tokens that look on the left, tokens that are looked at on the right, a line for every
// weight that can be seen. Pointing at a token isolates it; a click keeps it so.

const LINE = 26; // height of a token

class HeadView {
  constructor(app, head) {
    this.app = app;
    this.head = head;
    this.map = head.map;
    const letters = (tokens) => Math.min(18, Math.max(4, ...tokens.map((t) => Array.from(t).length)));
    this.left = 24 + 8.2 * letters(this.map.rowTokens) + 34;
    this.right = this.left + 240;
    this.width = Math.round(this.right + 8.2 * letters(this.map.keyTokens) + 74);
    this.height = LINE * Math.max(this.map.rowTokens.length, this.map.keyTokens.length) + 34;
    this.rows = [];
    this.keys = [];
  }

  y(i) { return 30 + LINE * i + LINE / 2; }

  draw() {
    const {map} = this;
    this.lines = svg("g", {class: "lines", "aria-hidden": "true"});
    const name = map.name === "cross" ? ["written", "read"] : ["query", "key"];
    const titles = [svg("text", {class: "axis end", x: this.left - 12, y: 18}, name[0]),
                    svg("text", {class: "axis", x: this.right + 12, y: 18}, name[1])];
    map.rowTokens.forEach((token, i) => this.rows.push(this.token(token, i, "row")));
    map.keyTokens.forEach((token, j) => this.keys.push(this.token(token, j, "key")));
    const drawing = figure(this.width, this.height, `${map.name} attention as lines`, titles,
                           this.lines, svg("g", {}, this.rows), svg("g", {}, this.keys));
    drawing.addEventListener("pointerleave", () => this.point(null));
    this.side = el("aside", {class: "detail", "aria-label": "Weights of one token"});
    this.point(null);
    return el("div", {class: "split"}, el("div", {class: "scroll"}, drawing), this.side);
  }

  token(text, index, kind) {
    const isRow = kind === "row", x = isRow ? this.left : this.right;
    const box = isRow ? {x: 4, width: x - 4} : {x, width: this.width - x - 4};
    const select = () => this.point({kind, index});
    return svg("g", {
      class: `token ${kind}`, [`data-${kind}`]: index, role: "button",
      tabindex: index === 0 && isRow ? 0 : -1, "aria-label": `${kind} ${index}: ${text}`,
      onpointerenter: select, onfocus: select, onclick: () => this.pin({kind, index}),
      onkeydown: (event) => this.move(event, kind, index),
    },
    svg("rect", {...box, y: this.y(index) - LINE / 2 + 1, height: LINE - 2, rx: 6}),
    svg("text", {class: isRow ? "end" : "", x: isRow ? x - 12 : x + 12, y: this.y(index)},
        clip(text, 18)),
    svg("text", {class: `value ${isRow ? "" : "end"}`, x: isRow ? 12 : this.width - 12,
                 y: this.y(index)}));
  }

  move(event, kind, index) {
    const other = {row: this.keys, key: this.rows}[kind], own = {row: this.rows, key: this.keys}[kind];
    const next = {ArrowDown: own[index + 1], ArrowUp: own[index - 1], Home: own[0],
                  End: own[own.length - 1],
                  ArrowRight: kind === "row" && other[Math.min(index, other.length - 1)],
                  ArrowLeft: kind === "key" && other[Math.min(index, other.length - 1)]}[event.key];
    if (event.key === "Enter" || event.key === " ") this.pin({kind, index});
    else if (event.key === "Escape") this.pin(null);
    else if (next) next.focus();
    else return;
    event.preventDefault();
  }

  pin(token) {
    const same = token && this.pinned && token.kind === this.pinned.kind &&
        token.index === this.pinned.index;
    this.pinned = same ? null : token;
    if (token && token.kind === "row") this.app.remember({row: token.index});
    if (token && token.kind === "key") this.app.remember({key: token.index});
    this.point(same ? null : token);
  }

  // Shows one token, or all lines.
  point(token) {
    const shown = token || this.pinned;
    const pairs = !shown ? this.strongest() : shown.kind === "row" ? this.ofRow(shown.index)
                                                                   : this.ofKey(shown.index);
    this.lines.replaceChildren(...pairs.map(({row, key, weight}) => this.line(row, key, weight)));
    this.mark(shown, pairs);
    this.tell(shown, pairs);
  }

  line(row, key, weight) {
    const x0 = this.left, x1 = this.right, bend = (x1 - x0) * 0.42;
    return svg("path", {
      d: `M${x0},${this.y(row)}C${x0 + bend},${this.y(row)} ${x1 - bend},${this.y(key)} ${x1},${this.y(key)}`,
      "data-row": row, "data-key": key, "data-weight": weight.toFixed(5),
      "stroke-opacity": (0.06 + 0.94 * lifted(weight)).toFixed(3),
      "stroke-width": (0.6 + 5.4 * weight).toFixed(2),
    });
  }

  // What is worth a line when nothing is pointed at: a few of each row, none below 2%.
  strongest() {
    const pairs = [], each = this.head.rows > 80 ? 3 : 8;
    for (let row = 0; row < this.head.rows; ++row) {
      for (const {key, weight} of this.head.top(row, each)) {
        if (weight >= 0.02) pairs.push({row, key, weight});
      }
    }
    return pairs.sort((a, b) => a.weight - b.weight);
  }
  ofRow(row) {
    return Array.from(this.head.row(row), (weight, key) => ({row, key, weight}))
        .filter((pair) => pair.weight > 0);
  }
  ofKey(key) {
    const table = this.head.table, pairs = [];
    for (let row = 0; row < this.head.rows; ++row) {
      const weight = table[row * this.head.keys + key] / WEIGHT;
      if (weight > 0) pairs.push({row, key, weight});
    }
    return pairs;
  }

  mark(shown, pairs) {
    const weights = {row: new Map(), key: new Map()};
    if (shown) for (const {row, key, weight} of pairs) {
      weights[shown.kind === "row" ? "key" : "row"].set(shown.kind === "row" ? key : row, weight);
    }
    for (const [kind, list] of [["row", this.rows], ["key", this.keys]]) {
      list.forEach((node, i) => {
        const isShown = Boolean(shown && shown.kind === kind && shown.index === i);
        const weight = weights[kind].get(i);
        node.classList.toggle("chosen", isShown);
        node.classList.toggle("faded", Boolean(shown && shown.kind === kind && !isShown));
        node.setAttribute("aria-pressed", String(isShown));
        const [box, text, value] = node.children;
        const filled = weight !== undefined && weight >= 0.005;
        box.style.fill = filled ? weightColor(weight) : "";
        text.style.fill = filled ? inkOn(lifted(weight)) : "";
        value.style.fill = filled ? inkOn(lifted(weight)) : "";
        value.textContent = filled ? percent(weight) : "";
        if (weight === undefined) node.removeAttribute("data-weight");
        else node.setAttribute("data-weight", weight.toFixed(5));
      });
    }
  }

  tell(shown, pairs) {
    if (!shown) {
      this.side.replaceChildren(el("p", {class: "muted"},
          "Point at a token to see only its lines; click to keep it. Arrow keys move, Enter keeps, " +
          "Escape lets go."), ...headFacts(this.head));
      return;
    }
    const isRow = shown.kind === "row";
    const name = (isRow ? this.map.rowTokens : this.map.keyTokens)[shown.index];
    const others = isRow ? this.map.keyTokens : this.map.rowTokens;
    const list = pairs.map((pair) => ({index: isRow ? pair.key : pair.row, weight: pair.weight}))
        .sort((a, b) => b.weight - a.weight || a.index - b.index).slice(0, 12);
    const verb = isRow ? "looks at" : "is looked at by";
    this.side.replaceChildren(
        el("h2", {}, el("b", {}, clip(name, 24)), el("span", {class: "muted"}, ` ${verb}`)),
        bars(list.map(({index, weight}) => ({label: others[index], value: weight, note: index}))));
    say(`${name} ${verb} ` + list.slice(0, 3)
        .map(({index, weight}) => `${others[index]} ${percent(weight)}`).join(", "));
  }
}

// Names, bars and percentages below one another.
const bars = (items) => el("ol", {class: "bars"}, ...items.map(({label, value, note, on}) =>
    el("li", {class: on ? "on" : "", "data-value": value.toFixed(5)},
       el("span", {class: "name", title: label}, label,
          note === undefined ? null : el("small", {}, String(note))),
       el("span", {class: "track"}, el("i", {style: `width:${(value * 100).toFixed(2)}%`})),
       el("span", {class: "number"}, percent(value)))));

// The statistics of a head in words.
const headFacts = (head) => {
  if (head.index < 0) return [];
  const {entropy, entropy_relative: share, max_logit: most, variance, saturation} = head.statistics;
  const facts = [["largest score", digits(most, 2)], ["variance of scores", digits(variance, 2)],
                 ["entropy", `${digits(entropy, 2)} nats, ${percent(share)} of the most`],
                 ["saturated rows", percent(saturation)]];
  return [el("dl", {class: "facts"}, ...facts.flatMap(([name, value]) =>
      [el("dt", {}, name), el("dd", {}, value)]))];
};
