// Colours. Magnitude is lightness of one hue, from the card to full; signs are blue and orange,
// which people who see fewer colours can still tell apart.

const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const rgb = (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));

// 256 steps through the stops of the theme.
let rampKept = {};
const ramp = () => {
  const theme = themeNow();
  if (rampKept.theme === theme) return rampKept.steps;
  const stops = ["--ramp-0", "--ramp-1", "--ramp-2", "--ramp-3"].map((name) => rgb(color(name)));
  const steps = Array.from({length: 256}, (_, i) => {
    const at = i / 255 * (stops.length - 1), low = Math.min(Math.floor(at), stops.length - 2);
    return stops[low].map((c, n) => Math.round(c + (stops[low + 1][n] - c) * (at - low)));
  });
  rampKept = {theme, steps};
  return steps;
};
// Small weights matter: the square root lifts them.
const lifted = (p) => Math.sqrt(Math.min(Math.max(p, 0), 1));
const rampAt = (p) => `rgb(${ramp()[Math.round(Math.min(Math.max(p, 0), 1) * 255)].join(",")})`;
const weightColor = (p) => rampAt(lifted(p));
// Text that can be read on it.
const inkOn = (p) => {
  const [r, g, b] = ramp()[Math.round(Math.min(Math.max(p, 0), 1) * 255)];
  return 0.299 * r + 0.587 * g + 0.114 * b > 140 ? "#14161a" : "#ffffff";
};

// Blocks [rows, keys] of 16-bit weights as a picture; pooled ones are brightened by their largest.
const paint = (canvas, blocks, bright) => {
  const {rows, keys, values} = blocks;
  canvas.width = keys;
  canvas.height = rows;
  const context = canvas.getContext("2d"), image = context.createImageData(keys, rows);
  let most = WEIGHT;
  if (bright) most = values.reduce((a, b) => Math.max(a, b), 1);
  const steps = ramp();
  for (let i = 0; i < values.length; ++i) {
    const [r, g, b] = steps[Math.round(lifted(values[i] / most) * 255)];
    image.data.set([r, g, b, 255], 4 * i);
  }
  context.putImageData(image, 0, 0);
  return canvas;
};
const pictureOf = (blocks, bright) =>
    paint(document.createElement("canvas"), blocks, bright).toDataURL();
