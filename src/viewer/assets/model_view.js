// Model view: every head of every layer as a thumbnail, rows looking at columns.

const modelView = (app, map) => {
  const heads = map.heads, layers = map.layers.length;
  const size = Math.max(28, Math.min(96, Math.floor((1060 - 60) / heads) - 8));
  const step = size + 8, left = 52, top = 28;
  const pooled = !map.picture.full;
  const cells = [];
  map.layers.forEach((layer, l) => layer.heads.forEach((head, h) => {
    const x = left + h * step, y = top + l * step;
    const name = `layer ${l}, head ${h}`;
    const open = () => app.go({view: "lines", layer: l, head: h});
    const tell = (event) => {
      const s = head.statistics;
      tip.show(event, el("b", {}, name), `entropy ${percent(s.entropy_relative)} of the most`,
               `largest score ${digits(s.max_logit, 2)}`);
    };
    cells.push(svg("g", {
      class: "thumb" + (l === app.state.layer && h === app.state.head ? " chosen" : ""),
      "data-layer": l, "data-head": h, role: "button", tabindex: l + h === 0 ? 0 : -1,
      "aria-label": name, onclick: open, onpointermove: tell, onpointerleave: tip.hide,
      onkeydown: (event) => {
        const to = {ArrowRight: [l, h + 1], ArrowLeft: [l, h - 1], ArrowDown: [l + 1, h],
                    ArrowUp: [l - 1, h]}[event.key];
        if (event.key === "Enter" || event.key === " ") open();
        else if (to) {
          const next = drawing.querySelector(`[data-layer="${to[0]}"][data-head="${to[1]}"]`);
          if (next) next.focus();
        } else return;
        event.preventDefault();
      },
    },
    svg("image", {x, y, width: size, height: size, preserveAspectRatio: "none",
                  href: pictureOf(head.blocks, pooled)}),
    svg("rect", {x: x - 1.5, y: y - 1.5, width: size + 3, height: size + 3, rx: 4})));
  }));
  const axes = [
    ...Array.from({length: heads}, (_, h) => svg("text", {
      class: "axis middle", x: left + h * step + size / 2, y: 16}, heads > 24 && h % 4 ? "" : h)),
    ...Array.from({length: layers}, (_, l) => svg("text", {
      class: "axis end", x: left - 12, y: top + l * step + size / 2}, l)),
    svg("text", {class: "axis", x: 0, y: 16}, "layer"),
  ];
  const drawing = figure(left + heads * step + 8, top + layers * step + 4,
                         `${map.name} attention of every head`, axes, cells);
  return el("div", {class: "scroll"}, drawing);
};
