// The statistics of the picture; a click opens the head.

const headsView = (app, map) => {
  const statistic = app.state.statistic in STATISTICS ? app.state.statistic : "entropy_relative";
  const picker = el("div", {class: "segments", role: "radiogroup", "aria-label": "Statistic"});
  segments(picker, Object.entries(STATISTICS).map(([value, {label}]) => ({value, label})), statistic,
           (value) => app.go({statistic: value}));
  const values = map.layers.map((layer) => layer.json.statistics[statistic]);
  const drawing = heatMap({
    values, statistic, label: (l, short) => short ? l : `layer ${l}`,
    open: (layer, head) => app.go({view: "lines", layer, head}),
    chosen: (l, h) => l === app.state.layer && h === app.state.head,
  });
  return el("div", {}, picker, el("p", {class: "about"}, STATISTICS[statistic].about),
            el("div", {class: "scroll"}, drawing));
};
