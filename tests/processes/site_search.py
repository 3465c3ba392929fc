"""Asks the search of the documentation's site, in the worker that browsers run it in."""

import json
import subprocess
from pathlib import Path

# A web worker's surroundings: messages in and out.
_WORKER = """
const fs = require("fs"), vm = require("vm");
const [worker, index, queries] = process.argv.slice(1);
let receive, answered;
const surroundings = {
  console, URL, setTimeout, importScripts: () => {},
  addEventListener: (kind, listener) => { receive = listener; },
  postMessage: (message) => answered(message),
};
surroundings.self = surroundings;
vm.runInNewContext(fs.readFileSync(worker, "utf8"), surroundings);
const ask = (data) => new Promise((resolve) => { answered = resolve; receive({ data }); });
(async () => {
  const { config, docs } = JSON.parse(fs.readFileSync(index, "utf8"));
  await ask({ type: 0, data: { config, docs, options: {} } });
  const pages = [];
  for (const query of JSON.parse(queries)) {
    const { data } = await ask({ type: 2, data: query });
    pages.push(data.items.map((sections) => sections[0].location.split("#")[0]));
  }
  console.log(JSON.stringify(pages));
})();
"""


def search_site(site: Path, queries: list[str]) -> list[list[str]]:
    """The pages that a built site lists for each query, the best first."""
    (worker,) = (site / "assets" / "javascripts" / "workers").glob("search.*.min.js")
    index = site / "search" / "search_index.json"
    command = ["node", "-e", _WORKER, str(worker), str(index), json.dumps(queries)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)
