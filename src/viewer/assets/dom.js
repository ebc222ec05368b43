// Small helpers: elements, tips, files, the theme.

const find = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";

const fillIn = (node, attributes, children) => {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  for (const child of children.flat()) {
    if (child !== null && child !== undefined) node.append(child);
  }
  return node;
};
const el = (name, attributes, ...children) =>
    fillIn(document.createElement(name), attributes, children);
const svg = (name, attributes, ...children) =>
    fillIn(document.createElementNS(SVG, name), attributes, children);

// The one figure of a view, which export finds: a drawing with its size and its name.
const figure = (width, height, label, ...children) =>
    svg("svg", {class: "figure", viewBox: `0 0 ${width} ${height}`, width, height, role: "group",
                "aria-label": label}, ...children);

const percent = (p) => p >= 0.0995 || p === 0 ? `${Math.round(p * 100)}%`
    : p >= 0.0005 ? `${(p * 100).toFixed(1)}%` : "<0.1%";
// The same for weights among thousands.
const finePercent = (p) => p >= 0.0005 || p === 0 ? percent(p) : `${(p * 100).toPrecision(1)}%`;
const count = (number, what) => `${number} ${what}${number === 1 ? "" : "s"}`;
const digits = (x, places = 3) => Number.isFinite(x)
    ? (Math.abs(x) >= 1000 ? x.toPrecision(4) : x.toFixed(places)).replace("-", "−") : "–";
const clip = (text, most) => {
  const letters = Array.from(text);
  return letters.length > most ? letters.slice(0, most - 1).join("") + "…" : text;
};

const say = (text) => { find("voice").textContent = text; };

// A tip near the pointer or the focused element.
const tip = {
  show(event, ...lines) {
    const node = find("tip");
    node.replaceChildren(...lines.map((line) => el("div", {}, line)));
    node.hidden = false;
    const box = event.target.getBoundingClientRect();
    const x = event.clientX || box.right, y = event.clientY || box.top;
    const own = node.getBoundingClientRect();
    node.style.left = `${Math.min(x + 14, innerWidth - own.width - 8)}px`;
    node.style.top = `${Math.min(y + 14, innerHeight - own.height - 8)}px`;
  },
  hide() { find("tip").hidden = true; },
};

// Buttons of which one is on; arrow keys move between them.
const segments = (node, items, chosen, choose, role = "radio") => {
  const mark = role === "tab" ? "aria-selected" : "aria-checked";
  node.replaceChildren(...items.map(({value, label, title, child}) => el("button", {
    type: "button", role, title, "data-value": value, [mark]: String(value === chosen),
    "aria-label": child ? label : undefined, tabindex: value === chosen ? 0 : -1,
    onclick: () => choose(value),
  }, child || label)));
  node.hidden = items.length < 2;
  node.onkeydown = (event) => {
    const step = {ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1}[event.key];
    if (!step) return;
    event.preventDefault();
    const at = items.findIndex((item) => item.value === chosen);
    const next = items[(at + step + items.length) % items.length].value;
    choose(next);
    const again = node.querySelector(`[data-value="${next}"]`);
    if (again) again.focus();
  };
};

const themeNow = () => document.documentElement.dataset.theme ||
    (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
const setUpTheme = (redraw) => {
  const button = find("theme");
  const show = () => {
    button.textContent = themeNow() === "dark" ? "☀" : "☾";
    redraw();
  };
  button.onclick = () => {
    document.documentElement.dataset.theme = themeNow() === "dark" ? "light" : "dark";
    show();
  };
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", show);
  show();
};
