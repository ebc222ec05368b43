// Curves against the step: a few series with a mark of their own each, values under the pointer.

// Round numbers between two bounds.
const ticks = (low, high, count) => {
  const raw = (high - low) / count || 1, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].find((m) => m * power >= raw) * power;
  const list = [];
  for (let x = Math.ceil(low / step) * step; x <= high + step * 1e-9; x += step) list.push(x);
  return list;
};
const shortNumber = (x) => x === 0 ? "0" : Math.abs(x) >= 1e5 || Math.abs(x) < 1e-3
    ? x.toExponential(1) : String(Number(x.toPrecision(4)));

// series: [{name, style, points: [[x, y]]}]
const curve = ({title, series, log}) => {
  const width = 400, height = 210, left = 52, right = 10, top = 12, bottom = 28;
  const finite = series.map((one) => ({...one,
    points: one.points.filter(([x, y]) => Number.isFinite(x) && Number.isFinite(y) && (!log || y > 0))}));
  const all = finite.flatMap(({points}) => points);
  if (!all.length) return null;
  const value = log ? Math.log10 : (y) => y;
  const xs = all.map(([x]) => x), ys = all.map(([, y]) => value(y));
  const x0 = Math.min(...xs), x1 = Math.max(...xs, x0 + 1);
  let y0 = Math.min(...ys), y1 = Math.max(...ys);
  const pad = (y1 - y0) * 0.06 || Math.abs(y1) * 0.1 || 1;
  y0 -= pad;
  y1 += pad;
  const x = (v) => left + (v - x0) / (x1 - x0) * (width - left - right);
  const y = (v) => top + (y1 - value(v)) / (y1 - y0) * (height - top - bottom);
  // Of a logarithmic axis: powers of ten, or round numbers where it is shorter than that.
  const marks = !log ? ticks(y0, y1, 4) : y1 - y0 < 1.5 ? ticks(10 ** y0, 10 ** y1, 4)
      : ticks(y0, y1, 4).filter(Number.isInteger).map((v) => 10 ** v);
  const lines = marks.map((v) => svg("g", {},
      svg("line", {class: "rule", x1: left, x2: width - right, y1: y(v), y2: y(v)}),
      svg("text", {class: "axis end", x: left - 8, y: y(v)}, shortNumber(v))));
  const below = ticks(x0, x1, 4).map((v) => svg("text", {class: "axis middle", x: x(v),
                                                         y: height - 12}, shortNumber(v)));
  const drawn = finite.map(({name, style, points}) => svg("g", {class: `series ${style}`,
                                                                "data-series": name},
      svg("path", {d: points.map(([a, b], i) => `${i ? "L" : "M"}${x(a).toFixed(1)},${y(b).toFixed(1)}`)
          .join("")}),
      points.length <= 60 ? points.map(([a, b]) => svg("circle", {cx: x(a), cy: y(b), r: 2.6,
                                                                  "data-x": a, "data-y": b})) : null));
  const cursor = svg("line", {class: "zero", y1: top, y2: height - bottom, visibility: "hidden"});
  const last = finite.map(({name, points}) => points.length
      ? `${name} ${shortNumber(points[points.length - 1][1])}` : "").filter(Boolean).join(", ");
  const drawing = svg("svg", {class: "curve", viewBox: `0 0 ${width} ${height}`, role: "img",
                              "aria-label": `${title}: last ${last}`, "data-title": title},
                      lines, below, drawn, cursor);
  drawing.addEventListener("pointermove", (event) => {
    const box = drawing.getBoundingClientRect();
    const at = x0 + ((event.clientX - box.left) / box.width * width - left) /
        (width - left - right) * (x1 - x0);
    const near = finite.filter(({points}) => points.length).map(({name, points}) => ({name,
      point: points.reduce((a, b) => Math.abs(b[0] - at) < Math.abs(a[0] - at) ? b : a)}));
    if (!near.length) return;
    cursor.setAttribute("x1", x(near[0].point[0]));
    cursor.setAttribute("x2", x(near[0].point[0]));
    cursor.setAttribute("visibility", "visible");
    tip.show(event, el("b", {}, `step ${near[0].point[0]}`),
             ...near.map(({name, point}) => `${name} ${shortNumber(point[1])}`));
  });
  drawing.addEventListener("pointerleave", () => {
    cursor.setAttribute("visibility", "hidden");
    tip.hide();
  });
  const legend = series.length > 1 ? el("span", {class: "keys"}, series.map(({name, style}) =>
      el("span", {class: `key ${style}`}, name))) : null;
  return el("figure", {class: "card"}, el("figcaption", {}, el("b", {}, title), legend), drawing);
};
