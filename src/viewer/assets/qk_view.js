// q-k view: how one score comes about. The products of q and k, element by element; their sum, the
// scale, what else is added; and the softmax that makes a weight of it among all keys.

const picker = (label, tokens, chosen, choose) => el("label", {class: "pick"}, label,
    el("select", {"data-pick": label, onchange: (event) => choose(Number(event.target.value))},
       ...tokens.map((token, i) => el("option", {value: i, selected: i === chosen},
                                      `${i} ${clip(token, 24)}`))));

// One vector as a strip of signed colours.
const strip = (values, most, x, y, step, name) => [
  svg("text", {class: "axis end", x: x - 12, y: y + 10}, name),
  ...Array.from(values, (value, d) => svg("rect", {
    class: value < 0 ? "minus" : "plus", x: x + d * step, y, width: Math.max(step - 1, 0.8),
    height: 20, "data-value": value, "fill-opacity": Math.sqrt(Math.abs(value) / most).toFixed(3)})),
];

const products = (head, parts, tokens) => {
  const {q, k} = parts, size = q.length, x = 92, step = Math.min(18, 880 / size);
  const both = Float32Array.from(q, (value, d) => value * k[d]);
  const largest = Math.max(1e-9, ...q.map(Math.abs), ...k.map(Math.abs));
  const running = [];
  both.reduce((sum, value) => { running.push(sum + value); return sum + value; }, 0);
  const high = Math.max(0, ...both, ...running), low = Math.min(0, ...both, ...running);
  const top = 88, tall = 130, at = (value) => top + (high - value) / (high - low || 1) * tall;
  const base = at(0), bottom = top + tall;
  const columns = Array.from(both, (value, d) => svg("g", {
    class: "product", "data-d": d, "data-value": value,
    onpointermove: (event) => tip.show(event, el("b", {}, `element ${d}`),
        `${digits(q[d])} × ${digits(k[d])} = ${digits(value)}`, `sum so far ${digits(running[d])}`),
    onpointerleave: tip.hide},
  svg("rect", {class: "ground", x: x + d * step, y: 20, width: step, height: bottom - 20}),
  svg("rect", {class: value < 0 ? "minus" : "plus", x: x + d * step, width: Math.max(step - 1, 0.8),
               y: Math.min(at(value), base), height: Math.abs(at(value) - base)})));
  const path = running.map((value, d) => `${d ? "L" : "M"}${x + (d + 0.5) * step},${at(value)}`);
  const end = x + size * step;
  return figure(end + 120, bottom + 16, "Products of q and k",
      columns,
      strip(q, largest, x, 20, step, `q ${clip(tokens[0], 8)}`),
      strip(k, largest, x, 46, step, `k ${clip(tokens[1], 8)}`),
      svg("text", {class: "axis end", x: x - 12, y: base}, "q × k"),
      svg("line", {class: "zero", x1: x, x2: end, y1: base, y2: base}),
      svg("path", {class: "running", d: path.join("")}),
      svg("circle", {class: "running-end", cx: end - step / 2, cy: at(parts.dot), r: 4}),
      svg("text", {class: "sum", x: end + 8, y: at(parts.dot), "data-sum": parts.dot},
          `Σ ${digits(parts.dot, 2)}`));
};

const equation = (head, parts, weight, lse) => {
  const rule = head.layer.json;
  const term = (value, name, key) => el("span", {class: "term"},
      el("b", {"data-term": key, "data-value": value}, digits(value)), el("small", {}, name));
  const sign = (text) => el("span", {class: "sign"}, text);
  const line = [term(parts.dot, "q · k", "dot"), sign("×"), term(rule.scale, "scale", "scale"),
                sign("="), term(parts.scaled, "scaled", "scaled")];
  if (rule.softcap > 0) line.push(sign("→"), term(parts.capped, `softcap ${rule.softcap}`, "capped"));
  if (rule.slopes || rule.distances) {
    line.push(sign(parts.bias < 0 ? "−" : "+"), term(Math.abs(parts.bias), "bias of distance", "bias"),
              sign("="), term(parts.score, "score", "score"));
  }
  line.push(sign("→"), el("span", {class: "term"}, el("b", {}, `e^(${digits(parts.score, 2)} − ${digits(lse, 2)})`),
                          el("small", {}, "softmax over keys")), sign("="),
            el("span", {class: "term weight"}, el("b", {"data-term": "weight", "data-value": weight},
                percent(weight)), el("small", {}, "weight")));
  return el("div", {class: "equation"}, line);
};

// Scores and weights of the keys that matter, and of the chosen one.
const softmaxTable = (app, head, row, chosen) => {
  const {map, layer} = head, all = [];
  for (let j = 0; j < head.keys; ++j) {
    if (layer.sees(row, j)) all.push({key: j, score: head.score(row, j).score});
  }
  for (const pair of all) pair.weight = Math.exp(pair.score - head.lse[row]);
  const shown = all.slice().sort((a, b) => b.weight - a.weight).slice(0, 14);
  if (!shown.some(({key}) => key === chosen)) {
    shown.push(...all.filter(({key}) => key === chosen));
  }
  const reach = Math.max(1e-9, ...shown.map(({score}) => Math.abs(score)));
  return el("table", {class: "softmax"},
      el("caption", {}, `Softmax of the row of “${clip(map.rowTokens[row], 20)}”: ` +
          `${all.length} keys, log-sum-exp ${digits(head.lse[row], 2)}`),
      el("thead", {}, el("tr", {}, ["key", "score", "", "weight", ""].map((name) =>
          el("th", {scope: "col"}, name)))),
      el("tbody", {}, shown.map(({key, score, weight}) => el("tr", {
        class: key === chosen ? "on" : "", "data-key": key, onclick: () => app.go({key})},
      el("th", {scope: "row"}, el("button", {type: "button"}, clip(map.keyTokens[key], 20)),
         el("small", {}, String(key))),
      el("td", {class: "number", "data-score": score}, digits(score, 2)),
      el("td", {class: "signed"}, el("i", {class: score < 0 ? "minus" : "plus",
        style: `width:${(50 * Math.abs(score) / reach).toFixed(1)}%`})),
      el("td", {class: "number", "data-weight": weight}, percent(weight)),
      el("td", {class: "track"}, el("i", {style: `width:${(100 * weight).toFixed(2)}%`}))))));
};

const qkView = (app, head) => {
  if (head.index < 0 || !head.queries) {
    const why = head.index < 0 ? "A mean of heads has no q and k: choose one head."
        : "The page has no room for the q and k of this head. qkv look --layer and --head put " +
          "those of one head in first; --page-limit makes more room.";
    return el("p", {class: "empty"}, why);
  }
  const {map, layer} = head;
  const row = Math.min(app.state.row ?? Math.min(2, head.rows - 1), head.rows - 1);
  let key = Math.min(app.state.key ?? head.top(row, 1)[0]?.key ?? 0, head.keys - 1);
  if (!layer.sees(row, key)) key = head.top(row, 1)[0]?.key ?? 0;
  const parts = head.score(row, key), weight = Math.exp(parts.score - head.lse[row]);
  const tokens = [map.rowTokens[row], map.keyTokens[key]];
  const pickers = head.rows <= 2000 && head.keys <= 2000
      ? [picker("query", map.rowTokens, row, (value) => app.go({row: value})),
         picker("key", map.keyTokens, key, (value) => app.go({key: value}))]
      : [];
  return el("div", {class: "qk"}, el("div", {class: "row"}, pickers),
            el("div", {class: "scroll"}, products(head, parts, tokens)),
            equation(head, parts, weight, head.lse[row]),
            softmaxTable(app, head, row, key));
};
