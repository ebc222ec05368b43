// The figure of the view as a file. Colours come from the style sheet, so they are written into a
// copy before it leaves the page.

const STYLES = ["fill", "fill-opacity", "stroke", "stroke-width", "stroke-opacity", "opacity",
                "font-family", "font-size", "font-weight", "text-anchor", "dominant-baseline",
                "image-rendering", "stroke-linecap", "stroke-linejoin", "stroke-dasharray",
                "visibility", "display"];

const svgText = (drawing) => {
  const copy = drawing.cloneNode(true);
  const from = [drawing, ...drawing.querySelectorAll("*")];
  const to = [copy, ...copy.querySelectorAll("*")];
  from.forEach((node, i) => {
    const style = getComputedStyle(node);
    to[i].removeAttribute("class");
    to[i].removeAttribute("tabindex");
    to[i].setAttribute("style", STYLES.map((name) => `${name}:${style.getPropertyValue(name)}`)
        .join(";"));
  });
  const {width, height} = drawing.viewBox.baseVal;
  copy.setAttribute("xmlns", SVG);
  copy.setAttribute("width", width);
  copy.setAttribute("height", height);
  copy.prepend(svg("rect", {width, height, fill: color("--card")}));
  return new XMLSerializer().serializeToString(copy);
};

const save = (blob, name) => {
  const link = el("a", {href: URL.createObjectURL(blob), download: name});
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
};

const exportSvg = (drawing, name) =>
    save(new Blob([svgText(drawing)], {type: "image/svg+xml"}), `${name}.svg`);

const exportPng = (drawing, name) => {
  const {width, height} = drawing.viewBox.baseVal;
  const scale = Math.min(2, 8192 / Math.max(width, height)); // what browsers will draw
  const image = new Image();
  image.onload = () => {
    const canvas = el("canvas", {width: Math.round(width * scale),
                                 height: Math.round(height * scale)});
    canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
    canvas.toBlob((blob) => save(blob, `${name}.png`), "image/png");
  };
  image.src = "data:image/svg+xml;charset=utf-8," + encodeURIComponent(svgText(drawing));
};
const setUpExport = (name) => {
  const drawing = () => document.querySelector("svg.figure");
  find("save-svg").onclick = () => drawing() && exportSvg(drawing(), name());
  find("save-png").onclick = () => drawing() && exportPng(drawing(), name());
};
