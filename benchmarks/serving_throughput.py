"""Throughput and latency of servers under load: texts in, vectors out, over HTTP.

    python benchmarks/serving_throughput.py --model MODEL_DIRECTORY [--sides ours] [--seconds 5]

1, 8, 64 and 256 clients ask for the vector of one text after the other, for some seconds each:
short texts, long ones, and half of each. The sides serve the same sentence encoder:

- ours: `bert-tf serve`, `/v1/embeddings`;
- tensorflow_serving: the same server with TensorFlow Serving's rules for batches in place of ours,
  as that server is not on PyPI: whatever waits is joined in the order of its arrival and padded to
  the longest;
- onnx: ONNX Runtime and `tokenizers` behind Python's own threading HTTP server, each request alone,
  in the environment of the peers (benchmarks/peers.py).

Columns: requests a second; p50 and p99 of all requests, p99 of the short ones, in ms; processor
milliseconds of the server per request, and the share of them that its main thread takes: reading,
parsing, writing and HTTP. The clients share the machine.
"""

import asyncio
import contextlib
import json
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import turns  # benchmarks/turns.py
from peers import add_option, peer_python  # benchmarks/peers.py

HERE = Path(__file__).parent
SHORT_WORDS, LONG_WORDS = 8, 100
_WORDS = ["the", "old", "farm", "by", "sea", "was", "sold", "to", "a", "man", "who", "never"]
LOADS = {"short": (SHORT_WORDS,), "long": (LONG_WORDS,), "mixed": (SHORT_WORDS, LONG_WORDS)}
_SERVE = "import sys; from bert_tf.cli import main; sys.exit(main(sys.argv[1:]))"
# Requests of all lengths are one group.
_AS_TENSORFLOW_SERVING = f"""
import bert_tf.startup
bert_tf.startup.import_tensorflow()
from bert_tf.server import batching
batching._bytes = lambda inputs: 0
{_SERVE}
"""


@contextlib.contextmanager
def started(command: Sequence[str], ready: str) -> Iterator[tuple[subprocess.Popen, int]]:
    """A server's process and its port, once its standard error has a line that ends with it."""
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(command, stderr=errors, stdout=subprocess.DEVNULL)
        try:
            deadline = time.monotonic() + 300
            while True:
                errors.seek(0)
                if found := re.search(ready, text := errors.read()):
                    break
                if process.poll() is not None or time.monotonic() > deadline:
                    raise SystemExit(f"no server: {text}")
                time.sleep(0.1)
            yield process, int(found[1])
        finally:
            process.kill()
            process.wait()


def side(
    name: str, models: Path, model: str, peers: str | None
) -> contextlib.AbstractContextManager:
    if name == "onnx":
        command = [peer_python(peers), str(HERE / "plain_server.py"), model]
        return started(command, r"port (\d+)")
    return server(models, _SERVE if name == "ours" else _AS_TENSORFLOW_SERVING)


def server(
    models: Path, code: str = _SERVE
) -> contextlib.AbstractContextManager[tuple[subprocess.Popen, int]]:
    """The process and the REST port of a `bert-tf serve`."""
    command = [sys.executable, "-c", code, "serve", str(models), "--rest_port=0", "--grpc_port=0"]
    return started(command, r"REST: \S+:(\d+)/v1[\s\S]*Ctrl-C")


def processor_seconds(task: Path) -> float:
    fields = (task / "stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def ask(port: int, words: Sequence[int], seed: int, until: float, seen: list) -> None:
    """A client: asks until the moment `until`, and notes words, start and seconds of requests."""
    draw = random.Random(seed)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    while time.perf_counter() < until:
        size = draw.choice(words)
        text = " ".join(draw.choices(_WORDS, k=size))
        body = json.dumps({"input": text, "model": "encoder"}).encode()
        length = f"Content-Length: {len(body)}\r\n\r\n"
        head = f"POST /v1/embeddings HTTP/1.1\r\nHost: localhost\r\n{length}"
        start = time.perf_counter()
        writer.write(head.encode() + body)
        answer = await reader.readuntil(b"\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 200"), answer
        length = int(re.search(rb"(?i)content-length: (\d+)", answer)[1])
        await reader.readexactly(length)
        seen.append((size, start, time.perf_counter() - start))
    writer.close()


async def load(
    process: subprocess.Popen, port: int, words: Sequence[int], clients: int, seconds: float
) -> dict[str, float]:
    seen: list[tuple[int, float, float]] = []
    begin = time.perf_counter() + min(2, seconds / 4)  # caches fill before
    asking = [
        asyncio.create_task(ask(port, words, seed, begin + seconds, seen))
        for seed in range(clients)
    ]
    await asyncio.sleep(begin - time.perf_counter())
    whole, main = Path(f"/proc/{process.pid}"), Path(f"/proc/{process.pid}/task/{process.pid}")
    before = processor_seconds(whole), processor_seconds(main)
    await asyncio.sleep(seconds)
    after = processor_seconds(whole), processor_seconds(main)
    await asyncio.gather(*asking)
    counted = [
        (size, spent) for size, start, spent in seen if begin <= start + spent <= begin + seconds
    ]
    latencies = [spent for _, spent in counted]
    short = [spent for size, spent in counted if size == SHORT_WORDS]
    spent, own = (last - first for first, last in zip(before, after, strict=True))
    found = {
        "requests/s": len(counted) / seconds,
        "p50": 1e3 * statistics.median(latencies),
        "p99": 1e3 * quantile(latencies),
        "processor": 1e3 * spent / len(counted),
        "main thread": own / spent if spent else 0.0,
    }
    return found | ({"p99 short": 1e3 * quantile(short)} if short else {})


def quantile(values: list[float]) -> float:
    return sorted(values)[int(0.99 * (len(values) - 1))]


def main() -> None:
    parser = turns.parser(__doc__)
    add_option(parser)
    parser.add_argument("--model", required=True, help="directory of a sentence encoder")
    parser.add_argument("--sides", nargs="+", default=["ours", "tensorflow_serving", "onnx"])
    parser.add_argument("--clients", nargs="+", type=int, default=[1, 8, 64, 256])
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--models", help="folder with its export alone; else it is made")
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        models = Path(options.models or stack.enter_context(tempfile.TemporaryDirectory()))
        if not options.models:
            export = [sys.executable, "-m", "bert_tf.cli", "export", "--name", "encoder"]
            export += ["--model", options.model, "--output", str(models)]
            subprocess.run(export, check=True, stdout=subprocess.DEVNULL)
        rows: dict[str, dict[str, float]] = {}
        columns = ["requests/s", "p50", "p99", "p99 short", "processor", "main thread"]
        print(f"| side, texts, clients | {' | '.join(columns)} |\n{'|---' * 7}|")
        for name in options.sides:
            with side(name, models, options.model, options.peers) as (process, port):
                for texts, words in LOADS.items():
                    for clients in options.clients:
                        found = asyncio.run(load(process, port, words, clients, options.seconds))
                        rows[title := f"{name}, {texts}, {clients}"] = found
                        cells = (f"{found[c]:.3g}" if c in found else "" for c in columns)
                        print(f"| {title} | {' | '.join(cells)} |", flush=True)
    turns.write(rows, options.output)


if __name__ == "__main__":
    main()
