// Statistics of heads as a heat map: layers downwards, heads across.

const STATISTICS = {
  entropy_relative: {
    label: "Entropy", unit: percent, from: 0, to: 1,
    about: "How widely the rows of a head look, as a share of the most there could be: 0% is one " +
        "key, 100% an average over all. Heads that fall towards 0% have collapsed."},
  entropy: {
    label: "Entropy in nats", unit: (x) => digits(x, 2), from: 0,
    about: "The mean entropy of the rows; e to this power is how many keys a row looks at."},
  max_logit: {
    label: "Largest score", unit: (x) => digits(x, 1),
    about: "The largest scaled product of a query and a key. Scores that grow without end come " +
        "before training diverges."},
  variance: {
    label: "Variance", unit: (x) => digits(x, 2), from: 0,
    about: "The variance of the scores that go into the softmax: about 1 where q and k are random, " +
        "which is what the division by the root of the head size is for."},
  saturation: {
    label: "Saturation", unit: percent, from: 0, to: 1,
    about: "The share of rows with one weight above 0.99: there the softmax passes no gradient."},
};

// Values [layers][heads] with a colour each, a number where there is room, and a legend.
const heatMap = ({values, statistic, label, open, chosen}) => {
  const about = STATISTICS[statistic], all = values.flat().filter(Number.isFinite);
  const low = about.from ?? Math.min(...all), high = about.to ?? Math.max(...all);
  const share = (x) => high > low ? (x - low) / (high - low) : 0.5;
  const heads = Math.max(...values.map((row) => row.length));
  const width = Math.max(24, Math.min(72, Math.floor(1000 / heads))), height = 34;
  const longest = Math.max(...values.map((_, l) => String(label(l, true)).length));
  const left = 34 + 7 * Math.min(longest, 24), top = 28, numbers = width >= 38;
  const cells = values.flatMap((row, l) => row.map((value, h) => svg("g", {
    class: "cell" + (chosen && chosen(l, h) ? " chosen" : ""), "data-layer": l, "data-head": h,
    "data-value": value, role: open ? "button" : "img", tabindex: open && l + h === 0 ? 0 : -1,
    "aria-label": `${label(l)}, head ${h}: ${about.unit(value)}`,
    onclick: open && (() => open(l, h)),
    onpointermove: (event) => tip.show(event, el("b", {}, `${label(l)}, head ${h}`),
                                       `${about.label.toLowerCase()} ${about.unit(value)}`),
    onpointerleave: tip.hide,
    onkeydown: (event) => { if (open && event.key === "Enter") open(l, h); },
  },
  svg("rect", {x: left + h * width, y: top + l * height, width: width - 2, height: height - 2, rx: 4,
               fill: Number.isFinite(value) ? rampAt(share(value)) : "none"}),
  numbers ? svg("text", {class: "middle small", x: left + h * width + width / 2 - 1,
                         y: top + l * height + height / 2 - 1, style: `fill:${inkOn(share(value))}`},
                about.unit(value)) : null)));
  const bottom = top + values.length * height + 22;
  const legend = svg("g", {class: "legend"},
      Array.from({length: 64}, (_, i) => svg("rect", {
        x: left + i * 3, y: bottom, width: 3.2, height: 10, fill: rampAt(i / 63)})),
      svg("text", {class: "axis", x: left, y: bottom + 24}, about.unit(low)),
      svg("text", {class: "axis end", x: left + 192, y: bottom + 24}, about.unit(high)));
  const axes = [
    ...values.map((_, l) => svg("text", {class: "axis end", x: left - 12,
                                         y: top + l * height + height / 2}, label(l, true))),
    ...Array.from({length: heads}, (_, h) => svg("text", {
      class: "axis middle", x: left + h * width + width / 2 - 1, y: 16}, h)),
  ];
  return figure(Math.max(left + heads * width, left + 260) + 8, bottom + 36,
                `${about.label} of every head`, axes, cells, legend);
};
