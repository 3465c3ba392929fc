"""ONNX Runtime and `tokenizers` behind Python's own HTTP server: a side of serving_throughput.py.

PEERS_PYTHON benchmarks/plain_server.py MODEL_DIRECTORY
"""

import json
import sys
import tempfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import onnxruntime
import torch
from tokenizers import Tokenizer
from transformers import AutoModel


class Server(ThreadingHTTPServer):
    request_queue_size = 512
    daemon_threads = True


def main(directory: str) -> None:
    model = AutoModel.from_pretrained(directory, attn_implementation="eager").eval()
    names = ["input_ids", "attention_mask", "token_type_ids"]

    class States(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
            return self.model(**dict(zip(names, inputs, strict=True))).last_hidden_state

    example = tuple(torch.ones((2, 8), dtype=torch.int64) for _ in names)
    with tempfile.TemporaryDirectory() as folder:
        file = str(Path(folder) / "encoder.onnx")
        torch.onnx.export(
            States(),
            example,
            file,
            input_names=names,
            output_names=["states"],
            dynamo=False,
            dynamic_axes={name: {0: "rows", 1: "tokens"} for name in [*names, "states"]},
        )
        session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    tokenizer = Tokenizer.from_file(str(Path(directory) / "tokenizer.json"))
    tokenizer.enable_truncation(256)
    tokenizer.no_padding()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            text = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["input"]
            ids = np.array([tokenizer.encode(text).ids], np.int64)
            feeds = dict(zip(names, (ids, np.ones_like(ids), np.zeros_like(ids)), strict=True))
            (states,) = session.run(["states"], feeds)
            vectors = states.mean(1)
            vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
            body = json.dumps(vectors.tolist()).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = Server(("127.0.0.1", 0), Handler)
    print(f"port {server.server_port}", file=sys.stderr, flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main(sys.argv[1])
