// The page: what is chosen, where it is remembered, and what is drawn.

const VIEWS = [{value: "lines", label: "Lines"}, {value: "model", label: "All heads"},
               {value: "qk", label: "q · k"}, {value: "statistics", label: "Statistics"}];
const MAPS = {encoder: "Encoder", decoder: "Decoder", cross: "Cross"};
const HINTS = {
  lines: "Lines lead from each token to those it attends to; wider and darker is more.",
  model: "Rows look at columns. A click opens the head.",
  qk: "The sum of the products, scaled, is the score; the softmax of the row makes it a weight.",
  statistics: "Computed by the attention kernels in the pass that is shown. A click opens the head.",
};

const app = {
  picture: null,
  live: null,
  state: {view: "lines", map: "", layer: 0, head: 0, row: null, key: null, statistic: ""},

  open(json, keep) {
    this.picture = new Picture(json);
    const {state, picture} = this;
    if (!keep) {
      state.map = picture.firstMap.name;
      state.layer = picture.layer ?? picture.firstMap.layers.length - 1;
      state.head = picture.head ?? (picture.full && this.map.heads > 1 ? -1 : 0);
      this.recall();
    }
    this.settle();
    this.render();
  },
  get map() { return this.picture.map(this.state.map); },
  get head() { return this.map.layers[this.state.layer].head(this.state.head); },

  // The choice must exist in the picture that is there now.
  settle() {
    const {state} = this;
    state.map = this.map.name;
    state.layer = Math.max(0, Math.min(state.layer, this.map.layers.length - 1));
    state.head = Math.max(this.picture.full ? -1 : 0, Math.min(state.head, this.map.heads - 1));
    const within = (at, count) => at === null ? null : Math.max(0, Math.min(at, count - 1));
    state.row = within(state.row, this.map.rowTokens.length);
    state.key = within(state.key, this.map.keyTokens.length);
  },
  remember(change) {
    Object.assign(this.state, change);
    const kept = Object.entries(this.state).filter(([, value]) => value !== null && value !== "");
    const hash = kept.map(([name, value]) => `${name}=${encodeURIComponent(value)}`).join("&");
    history.replaceState(null, "", `#${hash}`);
  },
  recall() {
    for (const [name, value] of new URLSearchParams(location.hash.slice(1))) {
      if (!(name in this.state)) continue;
      const number = Number(value);
      if (["layer", "head", "row", "key"].includes(name)) {
        if (Number.isInteger(number)) this.state[name] = number;
      } else this.state[name] = value;
    }
    if (!VIEWS.some(({value}) => value === this.state.view)) this.state.view = "lines";
  },
  go(change) {
    if ("map" in change && change.map !== this.state.map) change = {row: null, key: null, ...change};
    if ("row" in change && !("key" in change) && this.state.view === "qk") change.key = null;
    this.remember(change);
    this.settle();
    this.render();
  },

  // The whole row from the server, where the page has only its largest weights.
  async exactRow(head, row) {
    return this.live && !head.row(row) ? this.live.row(head, row) : null;
  },

  render() {
    tip.hide();
    this.renderTitle();
    this.renderControls();
    this.renderHeads();
    const {view} = this.state;
    const node = view === "model" ? modelView(this, this.map)
        : view === "statistics" ? headsView(this, this.map)
        : view === "qk" ? qkView(this, this.head)
        : this.picture.full ? new HeadView(this, this.head).draw()
        : new LongView(this, this.head).draw();
    find("stage").replaceChildren(node);
    find("stage").dataset.view = view;
    find("hint").textContent = HINTS[view];
  },
  renderTitle() {
    const {model, title} = this.picture;
    find("title").textContent = title || model.architecture;
    const rows = this.map.rowTokens.length, keys = this.map.keyTokens.length;
    find("facts").textContent = `${model.architecture} · ${count(this.map.layers.length, "layer")} × ` +
        `${count(this.map.heads, "head")} · ${this.map.isSelf ? `${rows} tokens` : `${rows} × ${keys} tokens`}`;
    const said = find("said"), parts = answersOf(this.picture);
    said.hidden = parts.length === 0;
    said.replaceChildren(...parts);
  },
  renderControls() {
    const {state, picture} = this;
    segments(find("maps"), picture.maps.map(({name}) => ({value: name, label: MAPS[name]})),
             state.map, (map) => this.go({map}));
    segments(find("views"), VIEWS, state.view, (view) => this.go({view}), "tab");
    const layers = this.map.layers.map((_, value) => ({value, label: String(value),
                                                       title: `Layer ${value}`}));
    segments(find("layers"), layers, state.layer, (layer) => this.go({layer}));
    find("layers").hidden = ["model", "statistics"].includes(state.view) || layers.length < 2;
  },
  renderHeads() {
    const {state, picture} = this, layer = this.map.layers[state.layer];
    const means = picture.full && this.map.heads > 1 && state.view === "lines" ? [-1] : [];
    const items = [...means, ...layer.heads.keys()].map((value) => ({
      value, label: value < 0 ? "Mean of all heads" : `Head ${value}`,
      child: el("span", {class: "chip"},
                paint(el("canvas", {"aria-hidden": "true"}), layer.head(value).blocks,
                      !picture.full),
                el("small", {}, value < 0 ? "mean" : String(value))),
    }));
    segments(find("heads"), items, state.head, (head) => this.go({head}));
    find("heads").hidden = ["model", "statistics"].includes(state.view) || items.length < 2;
  },
};

// What the model wrote, and what it would say next, in the gaps, or about the text.
const answersOf = (picture) => {
  const parts = [];
  if (picture.written) {
    parts.push(el("p", {class: "written"}, el("span", {class: "muted"}, "writes "),
                  el("b", {id: "written"}, picture.written)));
  }
  for (const {position, choices} of picture.answers.slice(0, 4)) {
    const name = position !== undefined ? `in the gap at ${position}`
        : picture.model.kind === "decoder" ? "next" : "says";
    parts.push(el("div", {class: "choices"}, el("span", {class: "muted"}, name),
        choices.slice(0, 6).map(({text, probability}) => el("span", {class: "choice",
          "data-probability": probability}, el("b", {}, text), ` ${percent(probability)}`,
        el("i", {style: `width:${(100 * probability).toFixed(1)}%`})))));
  }
  return parts;
};

{
  const json = JSON.parse(find("picture").textContent);
  setUpExport(() => `${app.picture.title || "attention"}-${app.state.map}-${app.state.view}` +
      (["lines", "qk"].includes(app.state.view) ? `-${app.state.layer}-${app.state.head}` : ""));
  if (json.live) app.live = new Live(app, json);
  else app.open(json);
  setUpTheme(() => app.picture && app.render());
}
