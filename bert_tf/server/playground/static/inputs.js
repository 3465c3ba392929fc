// Fields for the inputs of a signature, and examples to fill them with.
import { element } from "./elements.js";

export const NAMES = {
  text: "Text",
  text_pair: "Second text",
  question: "Question",
  context: "Context",
  choices: "Choices, one a line",
  words: "Words, separated by spaces",
  sentence: "Sentence",
  token_ids: "Token ids",
  segment_ids: "Segment ids",
  padding_mask: "Padding mask",
};
const ORDER = Object.keys(NAMES);
const MASK = "[MASK]";

const isText = ({ dtype }) => dtype === "DT_STRING";
const isNumbers = ({ dtype }) => /^DT_(U?INT|FLOAT|DOUBLE|HALF|BFLOAT16)/.test(dtype);
const isList = ({ shape }) => shape !== null && shape.length === 2;

/** Whether the page can fill a signature: texts, lists of texts, and lists of numbers. */
export function canFill({ method, inputs }) {
  const fields = Object.values(inputs);
  return method === "tensorflow/serving/predict" && fields.length > 0 && fields.every(
    (input) => isList(input) ? isText(input) || isNumbers(input)
      : isText(input) && input.shape?.length === 1,
  );
}

/** Names of inputs in the order in which a person fills them in. */
export function inOrder(inputs) {
  const rank = (name) => (ORDER.includes(name) ? ORDER.indexOf(name) : ORDER.length);
  return Object.keys(inputs).sort((a, b) => rank(a) - rank(b));
}

const takesMasks = ({ inputs, outputs }) => "text" in inputs && "masks_words" in outputs;

/**
 * The fields of a signature.
 * @param {object} signature
 * @param {Record<string, string>} typed text typed so far, by input name
 * @returns {{nodes: Node[], values: () => object, fill: (texts: object) => void}}
 */
export function fields(signature, typed) {
  const areas = {};
  const nodes = inOrder(signature.inputs).map((name) => {
    const input = signature.inputs[name];
    const hint = isNumbers(input) ? ", numbers separated by spaces" : "";
    const id = `input-${name}`;
    const rows = { question: 1, context: 6, choices: 4 }[name] ?? 3;
    const area = element("textarea", { id, name, rows, dir: "auto", spellcheck: "false" });
    area.value = typed[name] ?? "";
    area.addEventListener("input", () => { typed[name] = area.value; });
    areas[name] = area;
    const head = element("div", { class: "label" }, element("label", { for: id }, (NAMES[name] ?? name) + hint));
    if (takesMasks(signature)) {
      const insert = element("button", { type: "button", class: "quiet" }, `Insert ${MASK}`);
      insert.addEventListener("click", () => {
        area.setRangeText(MASK, area.selectionStart, area.selectionEnd, "end");
        area.dispatchEvent(new Event("input", { bubbles: true }));
        area.focus();
      });
      head.append(insert);
    }
    return element("div", { class: "field" }, head, area);
  });
  const value = (name) => {
    const input = signature.inputs[name];
    const text = areas[name].value;
    if (isNumbers(input)) return (text.match(/[^\s,]+/g) ?? []).map(Number);
    return isList(input) ? text.split("\n").filter((line) => line.trim()) : text;
  };
  return {
    nodes,
    values: () => Object.fromEntries(inOrder(signature.inputs).map((name) => [name, value(name)])),
    fill: (texts) => {
      for (const [name, text] of Object.entries(texts)) areas[name].value = typed[name] = text;
    },
  };
}

const ENTITIES = [
  { text: "Angela Merkel met Barack Obama in Berlin before the NATO summit." },
  { text: "Wolff joined Real Madrid in 1996 after a season with Partizan Belgrade." },
];
// The first whose inputs and outputs a signature has.
const EXAMPLES = [
  {
    inputs: ["question", "context"],
    texts: [
      {
        question: "Who designed the tower?",
        context: "The Eiffel Tower stands on the Champ de Mars in Paris. It is named after the engineer " +
          "Gustave Eiffel, whose company designed and built the tower from 1887 to 1889 for the " +
          "World's Fair. It is 330 metres tall and was the tallest building in the world until 1930.",
      },
      {
        question: "How long is the river?",
        context: "The Danube rises in the Black Forest and reaches the Black Sea after 2,850 kilometres. " +
          "It flows through ten countries and four capitals: Vienna, Bratislava, Budapest and Belgrade.",
      },
    ],
  },
  {
    inputs: ["context", "choices"],
    texts: [
      {
        context: "She puts the kettle on the stove.",
        choices: "She waits until the water boils.\nShe swims to the other side.\nThe stove sings a song.\nHe has never seen snow.",
      },
      {
        context: "The goalkeeper stretches to the left.",
        choices: "The ball goes past his hands.\nThe soup is too salty.\nThe book is returned to the library.",
      },
    ],
  },
  {
    inputs: ["text"],
    outputs: ["masks_words"],
    texts: [
      { text: "The capital of France is [MASK]." },
      { text: "The ship sailed over the deep [MASK] to the [MASK]." },
    ],
  },
  { inputs: ["text"], outputs: ["entities_text"], texts: ENTITIES },
  { inputs: ["words"], texts: ENTITIES.map(({ text }) => ({ words: text.replace(/[.,]/g, " $&") })) },
  {
    inputs: ["text", "text_pair"],
    texts: [
      { text: "A man is playing a guitar on stage.", text_pair: "Someone is making music." },
      { text: "The ferry leaves at noon.", text_pair: "The committee rejected the proposal." },
    ],
  },
  { inputs: ["sentence"], texts: [{ sentence: "The ship sailed over the deep sea." }] },
  {
    inputs: ["text"],
    texts: [
      { text: "A stirring, funny and finally moving film." },
      { text: "The plot makes no sense, and the jokes are worse." },
      { text: "The acting is fine; everything else is forgettable." },
    ],
  },
];

/** Examples for a signature, each a text for every input. */
export function examplesFor({ inputs, outputs }) {
  const found = EXAMPLES.find((each) =>
    each.inputs.length === Object.keys(inputs).length &&
    each.inputs.every((name) => name in inputs) &&
    (each.outputs ?? []).every((name) => name in outputs));
  return found?.texts ?? [];
}
