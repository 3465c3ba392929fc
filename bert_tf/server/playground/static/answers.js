// What a model answered, shown by the names of the outputs.
import { bars, element, folded, marked, number, passage, percent, pointing, table } from "./elements.js";

/** The padded lists NAME_* of an answer, cut to NAME_count, as a list of objects. */
export function listed(answer, name) {
  const keys = Object.keys(answer).filter((key) => key.startsWith(`${name}_`) && key !== `${name}_count`);
  return Array.from({ length: answer[`${name}_count`] }, (_, place) =>
    Object.fromEntries(keys.map((key) => [key.slice(name.length + 1), answer[key][place]])));
}

const headline = (text, aside) =>
  element("p", { class: "headline" }, element("span", { dir: "auto" }, text), " ", element("span", { class: "aside" }, aside));

function classes({ labels, probabilities, predicted_label = labels, predicted_count = 1 }) {
  const chosen = predicted_label.slice(0, predicted_count);
  return [bars(labels.map((name, place) => ({ name, probability: probabilities[place], chosen: chosen.includes(name) })))];
}

function choices({ choice, probabilities }, inputs) {
  return [bars(probabilities.map((probability, place) => ({
    name: inputs.choices[place], probability, chosen: place === choice,
  })))];
}

const score = (answer) => [headline(number(answer.score), "score")];

// Types get their colours in the order in which they are first seen.
const COLOURS = 6;
const seen = [];

function colour(type) {
  if (!seen.includes(type)) seen.push(type);
  return `mark-${seen.indexOf(type) % COLOURS}`;
}

const highlighted = (inner, type) =>
  element("mark", { class: colour(type) }, inner, element("span", { class: "type" }, type));

function entities(answer, inputs) {
  const found = listed(answer, "entities");
  const rows = found.map(({ text, type, score, start, end }) => [text, type, percent(score), `${start}–${end}`]);
  return [
    passage(...marked(inputs.text ?? inputs.words, found, (inner, { type }) => highlighted(inner, type))),
    found.length ? table(["entity", "type", "score", "characters"], rows) : element("p", {}, "No entity."),
  ];
}

function tags(answer, inputs) {
  const highlight = (inner, { label }) => highlighted(inner, label);
  return [passage(...marked(inputs.text ?? inputs.words, listed(answer, "words"), highlight))];
}

function span(answer, inputs) {
  const found = listed(answer, "answers").map(({ text, probability, start, end }) => ({
    name: text || "No answer", probability, start, end,
  }));
  const context = element("div");
  const show = ({ start, end }) => context.replaceChildren(
    passage(...marked(inputs.context, [{ start, end }], (inner) => element("mark", {}, inner))));
  show(answer);
  const sureness = answer.answer ? answer.score : answer.no_answer_probability;
  const best = bars(found.map((each) => ({ ...each, chosen: each.name === answer.answer })));
  pointing(best, [...best.querySelectorAll("li")], (place) => show(found[place]));
  return [
    headline(answer.answer || "No answer", percent(sureness)),
    context,
    element("h3", {}, "Best answers"),
    best,
  ];
}

function masks(answer, inputs) {
  const found = listed(answer, "masks");
  if (!found.length) return [element("p", {}, "The text has no [MASK].")];
  const guess = (inner, { words }) => element("mark", { title: inner }, words[0]);
  return [
    passage(...marked(inputs.text, found, guess)),
    ...found.flatMap(({ words, probabilities }, place) => [
      ...(found.length > 1 ? [element("h3", {}, `Mask ${place + 1}`)] : []),
      bars(words.map((name, rank) => ({ name, probability: probabilities[rank], chosen: rank === 0 }))),
    ]),
  ];
}

const STRONGEST = 8;

/** What each piece adds to the label, or takes from it: the stronger, the darker. */
function explanation(answer) {
  const found = listed(answer, "pieces");
  const most = Math.max(1e-9, ...found.map(({ attribution }) => Math.abs(attribution)));
  const nodes = found.flatMap(({ text, attribution }, place) => {
    const isRest = text.startsWith("##");
    const mark = element(
      "mark", { class: attribution < 0 ? "against" : "for", title: number(attribution) }, isRest ? text.slice(2) : text,
    );
    mark.style.setProperty("--weight", `${((100 * Math.abs(attribution)) / most).toFixed(1)}%`);
    return place && !isRest ? [" ", mark] : [mark];
  });
  const strongest = [...found].sort((a, b) => Math.abs(b.attribution) - Math.abs(a.attribution)).slice(0, STRONGEST);
  return [
    headline(answer.label, percent(answer.probability)),
    passage(...nodes),
    table(["piece", "adds to the logit"], strongest.map(({ text, attribution }) => [text, attribution])),
  ];
}

// The first view all of whose outputs and inputs a request has shows it.
const VIEWS = [
  { outputs: ["answer", "start", "end", "answers_count"], inputs: ["context"], view: span,
    also: ["start_byte", "end_byte", "score", "no_answer_probability", "null_odds", "answers_*"] },
  { outputs: ["entities_count", "entities_type"], inputs: ["text"], view: entities, also: ["entities_*"] },
  { outputs: ["entities_count", "entities_type"], inputs: ["words"], view: entities, also: ["entities_*"] },
  { outputs: ["words_count", "words_label"], inputs: ["text"], view: tags, also: ["words_*"] },
  { outputs: ["words_count", "words_label"], inputs: ["words"], view: tags, also: ["words_*"] },
  { outputs: ["pieces_count", "pieces_attribution"], inputs: [], view: explanation,
    also: ["label", "probability", "logit", "masked_logit", "pieces_*"] },
  { outputs: ["masks_count", "masks_words", "masks_start"], inputs: ["text"], view: masks, also: ["masks_*"] },
  { outputs: ["choice", "probabilities"], inputs: ["choices"], view: choices, also: ["probability"] },
  { outputs: ["labels", "probabilities"], inputs: [], view: classes, also: ["label", "probability", "predicted_*"] },
  { outputs: ["score"], inputs: [], view: score, also: [] },
];

function brief(value) {
  if (!Array.isArray(value)) return number(value);
  const flat = value.flat(Infinity);
  const sizes = [];
  for (let part = value; Array.isArray(part); part = part[0]) sizes.push(part.length);
  const norm = typeof flat[0] === "number" && sizes.length === 1 ? `, norm ${number(Math.hypot(...flat))}` : "";
  const dots = flat.length > 8 ? ", …" : "";
  return `${sizes.join(" × ")}${norm}: ${flat.slice(0, 8).map(number).join(", ")}${dots}`;
}

/** Warns of what a model did not read. */
export function truncation(answer) {
  if (!(answer.truncated > 0)) return [];
  const pieces = answer.truncated === 1 ? "1 word piece was" : `${answer.truncated} word pieces were`;
  return [element("p", { class: "warning" }, `The text is too long: ${pieces} not read.`)];
}

/**
 * An answer as nodes.
 * @param {object} answer output name -> value, of one example
 * @param {object} inputs input name -> value of the request
 */
export function show(answer, inputs) {
  const found = VIEWS.find((each) =>
    each.outputs.every((name) => name in answer) && each.inputs.every((name) => name in inputs));
  const nodes = [...truncation(answer), ...(found ? found.view(answer, inputs) : [])];
  const used = [...(found?.outputs ?? []), ...(found?.also ?? []), "truncated"];
  const isUsed = (key) => used.some((name) => name.endsWith("*") ? key.startsWith(name.slice(0, -1)) : key === name);
  const rest = Object.keys(answer).filter((key) => !isUsed(key)).sort();

  const lists = rest.filter((key) => key.endsWith("_count") && typeof answer[key] === "number")
    .map((key) => key.slice(0, -"_count".length))
    .filter((name) => rest.some((key) => Array.isArray(answer[key]) && key.startsWith(`${name}_`)));
  for (const name of lists) {
    const rows = listed(answer, name);
    const keys = Object.keys(rows[0] ?? {});
    const cells = rows.map((row) => keys.map((key) => Array.isArray(row[key]) ? brief(row[key]) : row[key]));
    const title = `${name[0].toUpperCase()}${name.slice(1)}, ${rows.length}`;
    nodes.push(folded(title, table(keys, cells)));
  }
  const single = rest.filter((key) => !lists.some((name) => key.startsWith(`${name}_`)));
  if (single.length) {
    const pairs = single.flatMap((key) => [element("dt", {}, key), element("dd", { dir: "auto" }, brief(answer[key]))]);
    nodes.push(element("dl", {}, ...pairs));
  }
  return nodes;
}
