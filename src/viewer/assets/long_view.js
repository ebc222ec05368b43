// The head view of a long input: the whole as pooled blocks, a list of its tokens of which only
// those in sight are made, and the strongest keys of one row with the words around them.

const ITEM = 28; // height of a token in the list

class LongView {
  constructor(app, head) {
    this.app = app;
    this.head = head;
    this.map = head.map;
    this.row = Math.min(app.state.row ?? 0, head.rows - 1);
  }

  draw() {
    const {blocks} = this.head, side = 460;
    this.cross = svg("g", {class: "cross"});
    const area = svg("image", {x: 44, y: 24, width: side, height: side, preserveAspectRatio: "none",
                               href: pictureOf(blocks, true)});
    const drawing = figure(side + 56, side + 36, `${this.map.name} attention, pooled`, area,
        svg("rect", {class: "frame", x: 44, y: 24, width: side, height: side}),
        svg("text", {class: "axis", x: 44, y: 14}, "0"),
        svg("text", {class: "axis end", x: 44 + side, y: 14}, String(this.head.keys - 1)),
        svg("text", {class: "axis end", x: 36, y: 32}, "0"),
        svg("text", {class: "axis end", x: 36, y: 20 + side}, String(this.head.rows - 1)),
        this.cross);
    drawing.addEventListener("click", (event) => {
      const box = drawing.getBoundingClientRect(), scale = (side + 56) / box.width;
      const share = ((event.clientY - box.top) * scale - 24) / side;
      this.choose(Math.max(0, Math.min(this.head.rows - 1, Math.floor(share * this.head.rows))));
    });
    this.list = this.makeList();
    this.side = el("aside", {class: "detail wide", "aria-label": "Strongest keys of one token"});
    this.jump = el("input", {type: "number", min: 0, max: this.head.rows - 1, value: this.row,
                             onchange: () => this.choose(Number(this.jump.value) || 0)});
    const left = el("div", {class: "whole"}, drawing, el("p", {class: "muted"},
        `${this.head.rows} × ${this.head.keys} weights in ${blocks.rows} × ${blocks.keys} blocks: ` +
        "rows averaged, keys added up. Click to go there."));
    requestAnimationFrame(() => this.choose(this.row));
    return el("div", {class: "split long"}, left,
              el("div", {class: "tokens"}, el("label", {class: "pick"}, "row", this.jump),
                 this.list), this.side);
  }

  makeList() {
    const room = el("div", {class: "room", style: `height:${ITEM * this.head.rows}px`});
    const list = el("div", {class: "list", tabindex: 0, role: "listbox", "aria-label": "Tokens",
                            onscroll: () => this.fill(),
                            onkeydown: (event) => {
      const step = {ArrowDown: 1, ArrowUp: -1, PageDown: 15, PageUp: -15}[event.key];
      if (!step) return;
      event.preventDefault();
      this.choose(Math.max(0, Math.min(this.head.rows - 1, this.row + step)));
    }}, room);
    this.room = room;
    return list;
  }

  fill() {
    const first = Math.max(0, Math.floor(this.list.scrollTop / ITEM) - 4);
    const last = Math.min(this.head.rows, first + Math.ceil(this.list.clientHeight / ITEM) + 8);
    const items = [];
    for (let i = first; i < last; ++i) {
      items.push(el("div", {role: "option", class: i === this.row ? "on" : "", "data-row": i,
                            "aria-selected": String(i === this.row), style: `top:${i * ITEM}px`,
                            onclick: () => this.choose(i)},
                    el("small", {}, String(i)), clip(this.map.rowTokens[i], 20)));
    }
    this.room.replaceChildren(...items);
  }

  async choose(row) {
    this.row = row;
    this.jump.value = row;
    this.app.remember({row});
    const {scrollTop, clientHeight} = this.list;
    if (row * ITEM < scrollTop || (row + 1) * ITEM > scrollTop + clientHeight) {
      this.list.scrollTop = row * ITEM - clientHeight / 2;
    }
    this.fill();
    const y = 24 + 460 * (row + 0.5) / this.head.rows;
    this.cross.replaceChildren(svg("line", {x1: 44, x2: 504, y1: y, y2: y}));
    this.show(this.head.top(row, 24), !this.head.row(row));
    const exact = await this.app.exactRow(this.head, row);
    if (exact && this.row === row) this.show(largest(exact, 24), false);
  }

  show(top, partial) {
    const tokens = this.map.keyTokens;
    const around = (key) => el("q", {}, tokens.slice(Math.max(0, key - 3), key).join(" "), " ",
        el("mark", {}, tokens[key]), " ", tokens.slice(key + 1, key + 4).join(" "));
    const told = top.reduce((sum, {weight}) => sum + weight, 0);
    this.side.replaceChildren(
        el("h2", {}, el("b", {}, clip(this.map.rowTokens[this.row], 24)),
           el("span", {class: "muted"}, ` (row ${this.row}) looks at`)),
        el("ol", {class: "bars context"}, top.map(({key, weight}) => el("li", {
          "data-key": key, "data-value": weight.toFixed(5)},
        el("span", {class: "track"}, el("i", {
          style: `width:${(weight / top[0].weight * 100).toFixed(2)}%`})),
        el("span", {class: "number"}, finePercent(weight)), el("small", {}, String(key)),
        around(key)))),
        el("p", {class: "muted"}, partial
            ? `The page holds the ${top.length} largest weights of this row, together ${percent(told)}.`
            : `The ${top.length} largest, together ${percent(told)}.`));
    say(`Row ${this.row} looks at ` + top.slice(0, 3)
        .map(({key, weight}) => `${tokens[key]} ${percent(weight)}`).join(", "));
  }
}
