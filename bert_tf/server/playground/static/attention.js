// Word pieces, and the attention between them by layer and head.
import { codePoints, element, percent, pointing } from "./elements.js";
import { listed, truncation } from "./answers.js";

/** A longer text would make an answer of many megabytes, and a picture that none can read. */
export const LONGEST = 400;

/** The beginning of a text that the picture can show. */
export function beginning(text) {
  const points = codePoints(text);
  return points.length > LONGEST ? points.slice(0, LONGEST).join("") : text;
}

// Small probabilities stay visible.
const strength = (probability) => Math.sqrt(Math.max(0, Math.min(1, probability)) || 0);

function colours() {
  const style = getComputedStyle(document.documentElement);
  const named = (name) => style.getPropertyValue(name).trim();
  const hex = named("--accent");
  return {
    accent: [1, 3, 5].map((start) => parseInt(hex.slice(start, start + 2), 16)),
    ink: named("--ink"),
    quiet: named("--quiet"),
  };
}

/** Probabilities [T, T] as a picture, a pixel each. */
function picture(rows, size, [red, green, blue]) {
  const canvas = new OffscreenCanvas(size, size);
  const image = new ImageData(size, size);
  for (let row = 0; row < size; row += 1) {
    for (let column = 0; column < size; column += 1) {
      image.data.set([red, green, blue, 255 * strength(rows[row][column])], 4 * (row * size + column));
    }
  }
  canvas.getContext("2d").putImageData(image, 0, 0);
  return canvas;
}

/** Sizes a canvas for the screen's pixels. */
function drawingOn(canvas, width, height) {
  const scale = window.devicePixelRatio || 1;
  canvas.width = Math.round(width * scale);
  canvas.height = Math.round(height * scale);
  canvas.style.aspectRatio = `${width} / ${height}`;
  const context = canvas.getContext("2d");
  context.scale(scale, scale);
  return context;
}

// Layer and head stay chosen from one request to the next.
const chosen = { layer: 0, head: 0 };

/**
 * The attention of one text.
 * @param {object} answer of the signature `attention`
 * @returns {Node[]}
 */
export function attention(answer) {
  const pieces = listed(answer, "pieces");
  const heads = answer.probabilities; // [layers][heads][pieces][pieces]
  const layers = heads.length;
  const width = heads[0].length;
  const size = pieces.length;
  chosen.layer = Math.min(chosen.layer, layers - 1);
  chosen.head = Math.min(chosen.head, width - 1);
  let current = 0;

  const chooser = (name, count) => {
    const options = Array.from({ length: count }, (_, place) => element("option", { value: place }, String(place + 1)));
    const select = element("select", { id: `attention-${name}` }, ...options);
    select.value = chosen[name];
    select.addEventListener("change", () => choose({ ...chosen, [name]: Number(select.value) }));
    return select;
  };
  const selects = { layer: chooser("layer", layers), head: chooser("head", width) };

  const where = ({ start, end }) => (end > start ? `${start}–${end}` : "·");
  const items = pieces.map((piece) => element(
    "button", { type: "button" },
    element("span", { class: "piece" }, piece.text),
    ...(piece.id === undefined ? [] : [element("span", { class: "place" }, String(piece.id))]),
    element("span", { class: "place" }, where(piece)),
  ));
  const list = element("ol", { class: "pieces", "aria-label": "Word pieces" }, ...items.map((item) => element("li", {}, item)));
  const point = pointing(list, items, show);

  const summary = element("p", { class: "note attends", "aria-live": "polite" });
  const overview = element("canvas", { class: "overview", role: "img" });
  const matrix = element("canvas", { class: "matrix", role: "img" });
  const cell = 60; // units of the drawings; the style sheet scales them

  function drawOverview() {
    const { accent, ink, quiet } = colours();
    const context = drawingOn(overview, width * cell, layers * cell);
    for (let layer = 0; layer < layers; layer += 1) {
      for (let head = 0; head < width; head += 1) {
        const [x, y] = [head * cell + 4, layer * cell + 4];
        context.imageSmoothingEnabled = size > cell;
        context.drawImage(picture(heads[layer][head], size, accent), x, y, cell - 8, cell - 8);
        const isChosen = layer === chosen.layer && head === chosen.head;
        context.strokeStyle = isChosen ? ink : quiet;
        context.lineWidth = isChosen ? 2.5 : 0.5;
        context.strokeRect(x - 1, y - 1, cell - 6, cell - 6);
      }
    }
    overview.setAttribute("aria-label", `Attention of ${layers} layers (rows) with ${width} heads (columns); layer ${chosen.layer + 1}, head ${chosen.head + 1} is chosen`);
  }

  const side = 360;
  const margin = size <= 32 ? 72 : 0; // where the pieces' texts still can be read
  const step = (side - margin) / size;

  function drawMatrix() {
    const { accent, ink, quiet } = colours();
    const context = drawingOn(matrix, side, side);
    context.imageSmoothingEnabled = false;
    context.drawImage(picture(heads[chosen.layer][chosen.head], size, accent), margin, margin, side - margin, side - margin);
    context.strokeStyle = quiet;
    context.lineWidth = 0.5;
    context.strokeRect(margin, margin, side - margin, side - margin);
    context.strokeStyle = ink;
    context.lineWidth = 1.5;
    context.strokeRect(margin, margin + current * step, side - margin, step);
    if (!margin) return;
    const font = getComputedStyle(document.body).fontFamily;
    const letters = Math.min(11, step * 0.85);
    context.textBaseline = "middle";
    pieces.forEach(({ text }, place) => {
      const middle = margin + (place + 0.5) * step;
      context.font = `${place === current ? "bold " : ""}${letters}px ${font}`;
      context.fillStyle = place === current ? ink : quiet;
      context.textAlign = "right";
      context.fillText(text, margin - 6, middle, margin - 8);
      context.fillStyle = quiet;
      context.save();
      context.translate(middle, margin - 6);
      context.rotate(-Math.PI / 2);
      context.textAlign = "left";
      context.fillText(text, 0, 0, margin - 8);
      context.restore();
    });
  }

  function show(place) {
    current = place;
    const row = heads[chosen.layer][chosen.head][place];
    items.forEach((item, other) => item.style.setProperty("--weight", `${(100 * strength(row[other])).toFixed(1)}%`));
    const best = pieces.map(({ text }, other) => ({ text, weight: row[other] }))
      .sort((a, b) => b.weight - a.weight).slice(0, 5);
    const parts = best.map(({ text, weight }) => `${text} ${percent(weight)}`);
    const { text, id, start, end } = pieces[place];
    const facts = [...(id === undefined ? [] : [`id ${id}`]), ...(end > start ? [`characters ${start}–${end}`] : [])];
    summary.replaceChildren(
      element("b", {}, text), facts.length ? ` (${facts.join(", ")})` : "", ` attends to ${parts.join(" · ")}`,
    );
    matrix.setAttribute("aria-label", `Attention from each piece (rows) to each piece (columns). ${summary.textContent}`);
    drawMatrix();
  }

  function choose({ layer, head }) {
    Object.assign(chosen, { layer, head });
    selects.layer.value = layer;
    selects.head.value = head;
    drawOverview();
    point(current);
  }

  overview.addEventListener("click", (event) => {
    const box = overview.getBoundingClientRect();
    const place = (position, length, count) => Math.max(0, Math.min(count - 1, Math.floor((position / length) * count)));
    choose({
      layer: place(event.clientY - box.top, box.height, layers),
      head: place(event.clientX - box.left, box.width, width),
    });
  });
  matrix.addEventListener("pointermove", (event) => {
    const box = matrix.getBoundingClientRect();
    const row = Math.floor(((event.clientY - box.top) / box.height * side - margin) / step);
    if (row >= 0 && row < size && row !== current) point(row);
  });
  const redraw = () => {
    if (matrix.isConnected) choose(chosen);
    else scheme.removeEventListener("change", redraw);
  };
  const scheme = window.matchMedia("(prefers-color-scheme: dark)");
  scheme.addEventListener("change", redraw);
  choose(chosen);

  const settings = element(
    "div", { class: "settings" },
    element("label", {}, "Layer ", selects.layer), element("label", {}, "Head ", selects.head),
  );
  const figure = (caption, ...nodes) => element("figure", {}, ...nodes, element("figcaption", {}, caption));
  const pictures = element(
    "div", { class: "pictures" },
    figure("Layers down, heads across: click one.", settings, overview),
    figure("From each piece, down, to each piece, across.", matrix),
  );
  return [...truncation(answer), list, summary, pictures];
}
