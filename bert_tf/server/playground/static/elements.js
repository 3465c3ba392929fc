// Elements from text. Nothing is ever parsed as markup: every string becomes a text node.

export function element(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

// The server counts Unicode code points, JavaScript's strings count UTF-16 units.
export const codePoints = (text) => Array.from(text);

/**
 * A text with highlighted spans.
 * @param {string} text
 * @param {{start: number, end: number}[]} spans in code points, in any order
 * @param {(inner: string, span: object) => Node} highlight makes the element of a span
 * @returns {(string | Node)[]}
 */
export function marked(text, spans, highlight) {
  const points = codePoints(text);
  const slice = (start, end) => points.slice(start, end).join("");
  const nodes = [];
  let done = 0;
  for (const span of [...spans].sort((a, b) => a.start - b.start)) {
    if (span.start < done || span.end <= span.start || span.end > points.length) continue;
    nodes.push(slice(done, span.start), highlight(slice(span.start, span.end), span));
    done = span.end;
  }
  return [...nodes, slice(done)];
}

export const passage = (...nodes) => element("p", { class: "passage", dir: "auto" }, ...nodes);

export const folded = (title, ...children) =>
  element("details", {}, element("summary", {}, title), ...children);

export function percent(probability) {
  if (typeof probability !== "number") return String(probability); // "NaN"
  const value = 100 * probability;
  if (value > 0 && value < 0.1) return "< 0.1%";
  return `${value.toFixed(1)}%`;
}

export function number(value) {
  if (typeof value !== "number" || Number.isInteger(value)) return String(value);
  return String(Number(value.toPrecision(4)));
}

/**
 * Items that are pointed at with the mouse or, Tab reaching them once, with the arrow keys.
 * @param {HTMLElement} list which holds the items
 * @param {HTMLElement[]} items
 * @param {(place: number) => void} point is called with the place of the item pointed at
 */
export function pointing(list, items, point) {
  const at = (place) => {
    for (const item of items) {
      item.tabIndex = -1;
      item.removeAttribute("aria-current");
    }
    items[place].tabIndex = 0;
    items[place].setAttribute("aria-current", "true");
    point(place);
  };
  items.forEach((item, place) => {
    item.tabIndex = place === 0 ? 0 : -1;
    for (const kind of ["pointerenter", "focus", "click"]) item.addEventListener(kind, () => at(place));
  });
  list.addEventListener("keydown", (event) => {
    const steps = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1, Home: -items.length, End: items.length };
    const place = items.indexOf(event.target);
    if (place < 0 || !(event.key in steps)) return;
    event.preventDefault();
    items[Math.max(0, Math.min(items.length - 1, place + steps[event.key]))].focus();
  });
  return at;
}

const SHOWN = 10;

/**
 * Bars of probabilities; those after the tenth are folded.
 * @param {{name: string, probability: number, chosen?: boolean}[]} rows
 */
export function bars(rows) {
  const list = (part) =>
    element("ol", { class: "bars" }, ...part.map(({ name, probability, chosen }) => {
      const fill = element("span", { class: "fill" });
      fill.style.width = `${100 * Math.min(1, Math.max(0, probability)) || 0}%`;
      return element(
        "li", chosen ? { class: "chosen" } : {},
        element("span", { class: "name", dir: "auto" }, name),
        element("span", { class: "track" }, fill),
        element("span", { class: "number" }, percent(probability)),
      );
    }));
  const rest = rows.slice(SHOWN);
  const more = rest.length ? [folded(`${rest.length} more`, list(rest))] : [];
  return element("div", {}, list(rows.slice(0, SHOWN)), ...more);
}

/** A table of rows, the first of them its head. */
export function table(head, rows) {
  const line = (cells, tag) => element("tr", {}, ...cells.map((cell) => {
    const kind = typeof cell === "number" ? { class: "number" } : { dir: "auto" };
    return element(tag, kind, typeof cell === "string" ? cell : number(cell));
  }));
  const first = element("thead", {}, line(head, "th"));
  const others = element("tbody", {}, ...rows.map((row) => line(row, "td")));
  return element("div", { class: "scroll" }, element("table", {}, first, others));
}
