"""Sends the server hostile and expensive requests: it must refuse or answer them, and stay up.

    python benchmarks/serving_fuzz.py --models saved_models --requests 10000

Starts `bert-tf serve` on a free port of 127.0.0.1 and sends it requests drawn from a seed: bad
JSON, wrong types, deep nesting, huge strings, invalid UTF-8, bad base64, unknown places, bytes that
are not HTTP; clients that send slowly or hang up half-way; then, for at most `--seconds`, small
requests that are expensive to answer (serving_expensive.py). Prints the answers by
kind and status; fails if a hostile one is not a 4xx, if small questions wait long beside the
expensive ones, if the server writes a traceback, or if its memory grows.
"""

import http.client
import json
import random
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from serving_expensive import expensive
from serving_load import parsed_arguments, served

_PATIENCE = 120  # seconds for an answer
# A signature: the name of a model, of the signature, its inputs and their types.
Signature = tuple[str, str, Mapping[str, str]]


class Hostile:
    """Draws requests that have to be refused.

    Args:
        seed: seed of the requests.
        signatures: what the server has.
    """

    def __init__(self, seed: int, signatures: Sequence[Signature]) -> None:
        self._random = random.Random(seed)
        self._signatures = signatures

    def request(self) -> tuple[str, str, str, bytes]:
        """Draws the kind of a request, its verb, path and body."""
        draw = self._random
        model, name, inputs = draw.choice(self._signatures)
        verb, path = "POST", f"/v1/models/{model}:predict"
        kinds: dict[str, Callable[[], bytes]] = {
            "cut JSON": lambda: self._cut(name, inputs),
            "no JSON": lambda: b"\x01" + draw.randbytes(draw.randrange(200)),
            "wrong types": lambda: self._wrong(name, inputs),
            "deep nesting": self._deep,
            "huge string": lambda: self._body(name, dict.fromkeys(inputs, "x" * 10**6)) + b"!",
            "invalid UTF-8": lambda: self._spoiled(name, inputs),
            "lone surrogate": lambda: b'{"instances": ["\\ud8%02x"]}' % draw.randrange(256),
            "bad base64": lambda: self._body(name, {key: {"b64": "a!" * 9} for key in inputs}),
            "huge number": lambda: b'{"instances": [%s]}' % (b"9" * draw.randrange(400, 9000)),
            "ragged": lambda: self._body(name, {key: [[1, 2], [3]] for key in inputs}),
            "other keys": lambda: self._body(name, {f"{key}?": "a" for key in inputs}),
            "duplicate keys": lambda: b'{"inputs": [1], "inputs": [2]}',
            "unknown signature": lambda: self._body(self._letters(), dict.fromkeys(inputs, "a")),
            "unknown place": lambda: b"{}",
            "too large": lambda: b"[" * (3 * 2**20),
        }
        kind = draw.choice(list(kinds))
        if kind == "too large" and draw.random() < 0.9:
            kind = "other keys"
        if kind == "unknown place":
            verb = draw.choice(["GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
            path = "/v1/" + draw.choice(["", "models/", f"models/{model}/versions/0:predict/"])
            path += "".join(draw.choices("abc%/:{}~", k=draw.randrange(1, 30)))
        return kind, verb, path, kinds[kind]()

    def _letters(self) -> str:
        return "".join(
            self._random.choices("aß日\U0001f600\0\"'<>", k=self._random.randrange(1, 9))
        )

    def _body(self, name: str, row: Mapping[str, object]) -> bytes:
        rows: dict[str, object] = {"instances": [row]}
        if self._random.random() < 0.5:
            rows = {"inputs": {key: [value] for key, value in row.items()}}
        return json.dumps({"signature_name": name, **rows}, ensure_ascii=False).encode()

    def _cut(self, name: str, inputs: Mapping[str, str]) -> bytes:
        whole = self._body(name, {key: self._letters() for key in inputs})
        return whole[: self._random.randrange(len(whole))]

    def _wrong(self, name: str, inputs: Mapping[str, str]) -> bytes:
        wrong = {
            key: self._random.choice(
                [1, -1.5, float("nan"), True, [], {}, None]
                if dtype == "DT_STRING"
                else ["1", None, {}, [[[["a"]]]], {"b64": "aGk="}]
            )
            for key, dtype in inputs.items()
        }
        return self._body(name, {key: [value] for key, value in wrong.items()})

    def _deep(self) -> bytes:
        depth = self._random.choice([40, 500, 5000, 200_000])
        opened, closed = self._random.choice([(b"[", b"]"), (b'{"a":', b"}")])
        body = b'{"instances": [' + opened * depth + b"1" + closed * depth + b"]}"
        return body[: self._random.randrange(len(body))] if self._random.random() < 0.5 else body

    def _spoiled(self, name: str, inputs: Mapping[str, str]) -> bytes:
        body = bytearray(self._body(name, dict.fromkeys(inputs, "some text")))
        body[body.rindex(b"some")] = self._random.randrange(128, 256)
        return bytes(body)

    def raw(self) -> tuple[str, bytes]:
        """Draws bytes that are no whole request."""
        draw = self._random
        head = b"POST /v1/models/x:predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n"
        kinds = {
            "not HTTP": draw.randbytes(draw.randrange(1, 300)) + b"\r\n\r\n",
            "head cut off": head[: draw.randrange(len(head))],
            "body cut off": head + b"\r\n" + b"{" * draw.randrange(99),
            "endless head": head + b"X-A: b\r\n" * 20_000,
            "bad chunks": head.replace(b"Content-Length: 100", b"Transfer-Encoding: chunked")
            + b"\r\nxyz\r\n",
        }
        kind = draw.choice(list(kinds))
        return kind, kinds[kind]


def fuzz(port: int, requests: int, seed: int, signatures: Sequence[Signature]) -> Counter:
    """Sends the requests one after the other; counts the answers by kind and status.

    One in ten is raw bytes, after most of which the client hangs up; these have status 0.
    """
    hostile, seen = Hostile(seed, signatures), Counter()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_PATIENCE)
    for number in range(requests):
        if number % 10 == 9:
            kind, data = hostile.raw()
            seen[kind, _send(port, data, kind.endswith("cut off"))] += 1
            continue
        kind, verb, path, body = hostile.request()
        connection.request(verb, path, body)
        answer = connection.getresponse()
        text = answer.read()
        if verb != "HEAD" and path.startswith("/v1/"):
            assert isinstance(json.loads(text)["error"], str), text
        seen[kind, answer.status] += 1
    connection.close()
    return seen


def _send(port: int, data: bytes, hangs_up: bool) -> int:
    with socket.create_connection(("127.0.0.1", port), timeout=_PATIENCE) as connection:
        try:
            connection.sendall(data)
            answer = b"" if hangs_up else connection.recv(65536)
        except (ConnectionResetError, BrokenPipeError):
            answer = b""
    return int(answer[9:12]) if answer.startswith(b"HTTP/1.1 ") else 0


def send_slowly(port: int, seconds: float, answers: list[int]) -> None:
    """Sends a body byte by byte until the server has had enough; notes its status."""
    head = b"POST /v1/models/x:predict HTTP/1.1\r\nHost: localhost\r\n"
    head += b"Content-Length: 100000\r\n\r\n"
    with socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
        connection.sendall(head)
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            try:
                connection.sendall(b"{")
                if answer := connection.recv(65536):
                    answers.append(int(answer[9:12]))
                return
            except TimeoutError:
                continue
            except OSError:
                return


def signatures_of(port: int) -> list[Signature]:
    """All signatures of the server's models."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.request("GET", "/playground/models")
    return [
        (model["name"], name, {key: each["dtype"] for key, each in signature["inputs"].items()})
        for model in json.load(connection.getresponse())["models"]
        for name, signature in model["versions"][0]["signatures"].items()
        if signature["method"].endswith("/predict")
    ]


def refusals(seen: Counter) -> list[str]:
    """The answers that are no refusal."""
    return [
        f"{count} x {kind}: {status}"
        for (kind, status), count in seen.items()
        if not (400 <= status < 500 or (status == 0 and kind.endswith(("cut off", "head"))))
    ]


def main() -> None:
    """Runs the command line."""
    arguments = parsed_arguments(__doc__, requests=10_000, seed=0, times=2, seconds=300.0, slow=16)
    with served(arguments.models, "--max_request_mb=2") as server:
        signatures, slow = signatures_of(server.rest_port), []
        senders = [
            threading.Thread(target=send_slowly, args=(server.rest_port, 120, slow), daemon=True)
            for _ in range(arguments.slow)
        ]
        for sender in senders:
            sender.start()
        # The first requests fill caches and pools of memory.
        seen = fuzz(server.rest_port, arguments.requests // 5, arguments.seed, signatures)
        before = server.resident_megabytes()
        rest = arguments.requests - arguments.requests // 5
        seen += fuzz(server.rest_port, rest, arguments.seed + 1, signatures)
        for sender in senders:
            sender.join()
        after = server.resident_megabytes()
        costly, problems = expensive(server, 2 * 2**20, arguments.times, arguments.seconds)
        last, errors = server.resident_megabytes(), server.errors.read_text()
    problems += refusals(seen)
    if slow != [408] * len(senders):
        problems.append(f"slow senders were answered {dict(Counter(slow))}")
    if "Traceback" in errors:
        problems.append(errors)
    if after > before + 50:
        problems.append("memory grew")
    for (kind, status), count in sorted((seen + costly).items(), key=str):
        print(f"{kind}: {count:,} x {status or 'no answer'}")
    print(f"slow senders: {dict(Counter(slow))}")
    print(
        f"memory: {before:.0f} MB after a fifth, {after:.0f} MB after the hostile requests, "
        f"{last:.0f} MB after the expensive ones"
    )
    for problem in problems:
        print(f"PROBLEM: {problem}")
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
