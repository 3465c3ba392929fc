// The page: chooses a model, sends its request, shows the answer.
import { element } from "./elements.js";
import { curl, predictBody, predictUrl, send, urlOf } from "./requests.js";
import { canFill, examplesFor, fields, NAMES } from "./inputs.js";
import { show } from "./answers.js";
import { attention, beginning, LONGEST } from "./attention.js";

const at = (id) => document.getElementById(id);
const typed = {}; // by input name: kept from model to model
const NOTHING = { inputs: {}, outputs: {} }; // where no signature can be filled
let models = [];
let wantsToken = false;
let form = fields(NOTHING, typed);
let running = new AbortController();
let asked = null; // what the answer on the page was asked for

const model = () => models.find(({ name }) => name === at("model").value);
const version = () => model()?.versions.find((each) => String(each.version) === at("version").value) ?? model()?.versions[0];
const signature = () => version()?.signatures[at("signature").value];

function fillSelect(select, options, kept) {
  select.replaceChildren(...options.map(([value, text]) => element("option", { value }, text)));
  if (options.some(([value]) => value === kept)) select.value = kept;
}

function chooseModel(kept = {}) {
  const { versions } = model();
  const numbers = versions.map((each) => [String(each.version), String(each.version)]);
  fillSelect(at("version"), [["", `newest (${versions[0].version})`], ...numbers], kept.version);
  chooseVersion(kept);
}

function chooseVersion(kept = {}) {
  const { signatures } = version();
  const names = Object.keys(signatures)
    .filter((name) => name !== "attention" && canFill(signatures[name]))
    .sort((a, b) => (b === "serving_default") - (a === "serving_default") || a.localeCompare(b));
  fillSelect(at("signature"), names.map((name) => [name, name]), kept.signature);
  chooseSignature();
}

function chooseSignature() {
  const chosen = signature();
  form = fields(chosen ?? NOTHING, typed);
  at("inputs").replaceChildren(...form.nodes);
  if (!chosen) at("inputs").append(element("p", { class: "notice" }, "No signature of this model takes text."));
  at("form").querySelector(".run").disabled = !chosen;
  at("examples").replaceChildren(...examplesFor(chosen ?? NOTHING).map((texts) => {
    const button = element("button", { type: "button", class: "quiet" }, Object.values(texts)[0]);
    button.addEventListener("click", () => { form.fill(texts); showCurl(); run(); });
    return button;
  }));
  running.abort();
  asked = null;
  at("answer").replaceChildren();
  at("attention-body").replaceChildren();
  at("response").hidden = true;
  at("status").textContent = "";
  at("attention").hidden = !(version().signatures.attention && Object.values(chosen?.inputs ?? {}).some(isText));
  const hash = new URLSearchParams({ model: model().name, version: at("version").value, signature: at("signature").value });
  history.replaceState(null, "", `#${hash}`);
  showCurl();
}

const isText = ({ dtype, shape }) => dtype === "DT_STRING" && shape?.length === 1;

const request = () => ({
  url: predictUrl(model().name, at("version").value),
  body: predictBody(at("signature").value, form.values()),
});

function showCurl() {
  if (!signature()) return;
  const { url, body } = request();
  at("curl").textContent = curl(url, body, wantsToken);
  at("copied").textContent = "";
}

const duration = (ms) =>
  ms < 10 ? `${ms.toFixed(1)} ms` : ms < 1000 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(1)} s`;

const problem = ({ error, status }) =>
  element("p", { class: "error", role: "alert" }, status ? `${status}: ${error}` : error);

async function run() {
  const chosen = signature();
  if (!chosen) return;
  running.abort();
  running = new AbortController();
  const { signal } = running;
  const inputs = form.values();
  const { url, body } = request();
  at("answer").classList.add("waiting");
  at("status").textContent = "Running …";
  const [only, ...others] = Object.keys(chosen.outputs);
  const result = await send(url, body, { signal, only: others.length ? undefined : only });
  if (!result) return;
  at("status").textContent = result.error ? "" : `Answered in ${duration(result.ms)}`;
  at("answer").replaceChildren(...(result.error ? [problem(result)] : show(result.answer, inputs)));
  at("answer").classList.remove("waiting");
  at("response").hidden = !result.text;
  const most = 20_000;
  at("json").textContent = result.text.length > most ? `${result.text.slice(0, most)} …` : result.text;
  asked = result.error ? null : { inputs, signal };
  await showAttention();
}

// Attention is asked for while its part of the page is open.
async function showAttention() {
  const body = at("attention-body");
  if (!asked) return body.replaceChildren();
  if (!at("attention").open || at("attention").hidden || asked.isShown) return;
  asked.isShown = true;
  const { inputs, signal } = asked;
  const reads = version().signatures.attention;
  const own = Object.keys(reads.inputs);
  const texts = Object.entries(inputs).filter(([name]) => isText(signature().inputs[name]));
  const of = element("select", { id: "attention-of" }, ...texts.map(([name]) => element("option", { value: name }, NAMES[name] ?? name)));
  const place = element("div", { "aria-label": "Attention" });
  const isWhole = own.every((name) => name in inputs);
  const ask = async () => {
    const given = isWhole
      ? Object.fromEntries(own.map((name) => [name, inputs[name]]))
      : { [own[0]]: inputs[of.value] };
    const cut = Object.fromEntries(Object.entries(given).map(([name, text]) => [name, beginning(text)]));
    const url = predictUrl(model().name, at("version").value);
    const result = await send(url, predictBody("attention", cut), { signal });
    if (!result) return;
    if (result.error) return place.replaceChildren(problem(result));
    const isCut = own.some((name) => cut[name] !== given[name]);
    const note = isCut ? `The first ${LONGEST} characters, a` : "A";
    place.replaceChildren(
      ...attention(result.answer),
      element("p", { class: "note" }, `${note}nswered in ${duration(result.ms)} by the signature attention.`),
    );
  };
  of.addEventListener("change", ask);
  const choice = isWhole || texts.length < 2 ? [] : [element("div", { class: "settings" }, element("label", {}, "Text ", of))];
  body.replaceChildren(...choice, place);
  await ask();
}

async function load() {
  const kept = Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
  const response = await fetch(urlOf("playground/models"));
  if (!response.ok) {
    const { status } = response;
    return at("answer").replaceChildren(problem({ status, error: await response.text() }));
  }
  ({ models, token: wantsToken } = await response.json());
  at("form").hidden = at("request").hidden = !models.length;
  if (!models.length) {
    const notice = "The server has no model yet: reload this page when it has loaded one.";
    return at("answer").append(element("p", { class: "notice" }, notice));
  }
  fillSelect(at("model"), models.map(({ name }) => [name, name]), kept.model);
  chooseModel(kept);
}

async function copy() {
  try {
    await navigator.clipboard.writeText(at("curl").textContent);
    at("copied").textContent = "Copied";
  } catch { // only secure origins and loopback may write to the clipboard
    getSelection().selectAllChildren(at("curl"));
    at("copied").textContent = "Selected: copy it with Ctrl+C";
  }
}

at("model").addEventListener("change", () => chooseModel());
at("version").addEventListener("change", () => chooseVersion({ signature: at("signature").value }));
at("signature").addEventListener("change", chooseSignature);
at("form").addEventListener("input", showCurl);
at("form").addEventListener("submit", (event) => { event.preventDefault(); run(); });
document.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
  event.preventDefault();
  run();
});
at("attention").addEventListener("toggle", showAttention);
at("copy").addEventListener("click", copy);
load();
