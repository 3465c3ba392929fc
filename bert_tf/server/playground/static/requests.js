// Requests in TensorFlow Serving's REST, as any client sends them.

// Unlike the document's base URL, the location never holds a user's password.
export const urlOf = (path) => new URL(path, location.href).href;

/** The URL of a model's method; without a version the newest one answers. */
export function predictUrl(model, version) {
  const place = version ? `/versions/${version}` : "";
  return urlOf(`v1/models/${encodeURIComponent(model)}${place}:predict`);
}

/** The body for one example in the row format. */
export function predictBody(signature, inputs) {
  const name = signature === "serving_default" ? {} : { signature_name: signature };
  return JSON.stringify({ ...name, instances: [inputs] });
}

const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;

/** The same request for a shell, which keeps a token the server wants in TOKEN. */
export function curl(url, body, wantsToken) {
  const token = wantsToken ? ' \\\n  -H "Authorization: Bearer $TOKEN"' : "";
  return `curl ${quoted(url)}${token} \\\n  -d ${quoted(body)}`;
}

/** Parses JSON in which NaN, Infinity and -Infinity stand bare, as the server writes them. */
export function parse(text) {
  try {
    return JSON.parse(text);
  } catch {
    const bare = /"(?:[^"\\]|\\.)*"|-?Infinity|NaN/g;
    return JSON.parse(text.replace(bare, (part) => (part[0] === '"' ? part : `"${part}"`)));
  }
}

/**
 * Sends a request.
 * @param {string} only name of the output where there is one: it then stands bare
 * @returns {Promise<?{answer?: object, error?: string, status: number, text: string, ms: number}>}
 *   null if it was aborted, as another request took its place
 */
export async function send(url, body, { signal, only }) {
  const headers = { "Content-Type": "application/json" };
  const start = performance.now();
  let status = 0;
  let text = "";
  try {
    const response = await fetch(url, { method: "POST", body, headers, signal });
    status = response.status;
    text = await response.text();
    const ms = performance.now() - start;
    const parsed = parse(text);
    if (!response.ok) return { error: parsed.error ?? text, status, text, ms };
    const [answer] = parsed.predictions;
    return { answer: only ? { [only]: answer } : answer, status, text, ms };
  } catch (error) {
    if (error.name === "AbortError") return null;
    const cause = status ? text || "The answer is empty." : `The server did not answer: ${error.message}`;
    return { error: cause, status, text, ms: performance.now() - start };
  }
}
