"""Headless Chromium for tests, driven over the pipe of its DevTools protocol.

https://chromedevtools.github.io/devtools-protocol/
"""

import base64
import fcntl
import json
import os
import select
import signal
import time
from pathlib import Path
from typing import Any

from peer_programs import find_peer, why_missing

SECONDS = 30.0  # for one step; a busy machine is slow to start a browser
_KEYS = {"Enter": 13, "Tab": 9, " ": 32, "ArrowRight": 39, "ArrowLeft": 37, "End": 35, "Delete": 46}


class Chromium:
    """A running browser; `close` ends it."""

    def __init__(self, profile: Path) -> None:
        if (command := find_peer("chromium")) is None:
            raise FileNotFoundError(why_missing("chromium"))
        to_browser, from_browser = os.pipe(), os.pipe()
        # The browser's ends get numbers above the 3 and 4 that they will have there.
        commands, answers = (
            fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in (to_browser[0], from_browser[1])
        )
        os.close(to_browser[0])
        os.close(from_browser[1])
        arguments = [
            command,
            "--headless",
            "--remote-debugging-pipe",
            f"--user-data-dir={profile}",
            "--no-sandbox",
            "--no-first-run",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--disable-background-networking",
            "--disable-component-update",
            "--hide-scrollbars",
        ]
        null = (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0)
        ends = [(os.POSIX_SPAWN_DUP2, commands, 3), (os.POSIX_SPAWN_DUP2, answers, 4)]
        self._process = os.posix_spawn(
            command, arguments, os.environ, file_actions=[null, *ends], setpgroup=0
        )
        os.close(commands)
        os.close(answers)
        self._write, self._read = to_browser[1], from_browser[0]
        self._buffer = b""
        self._number = 0
        self.events: list[dict[str, Any]] = []

    def close(self) -> None:
        """Ends the browser."""
        os.close(self._write)  # it ends where the pipe does
        os.close(self._read)
        deadline = time.monotonic() + 5
        while os.waitpid(self._process, os.WNOHANG) == (0, 0):
            if time.monotonic() > deadline:
                os.killpg(self._process, signal.SIGKILL)
            time.sleep(0.02)

    def wait_for(self, method: str, session: str, since: int) -> None:
        """Waits for an event among those after the first `since`."""
        deadline = time.monotonic() + SECONDS
        while not any(
            event.get("method") == method and event.get("sessionId") == session
            for event in self.events[since:]
        ):
            self.events.append(self._receive(deadline))

    def call(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        """Calls a method of the protocol and returns its result."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + SECONDS
        while True:
            answer = self._receive(deadline)
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                return answer["result"]
            self.events.append(answer)

    def _receive(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            wait = max(0.0, deadline - time.monotonic())
            if not select.select([self._read], [], [], wait)[0]:
                raise TimeoutError(f"Chromium has not answered within {SECONDS:.0f} s")
            if not (received := os.read(self._read, 1 << 20)):
                raise RuntimeError("Chromium has ended")
            self._buffer += received
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)


class Page:
    """A tab of its own, without the cookies and settings of others."""

    def __init__(self, browser: Chromium) -> None:
        self._browser = browser
        context = browser.call("Target.createBrowserContext")["browserContextId"]
        target = browser.call("Target.createTarget", url="about:blank", browserContextId=context)
        self._target = target["targetId"]
        self._session = browser.call("Target.attachToTarget", targetId=self._target, flatten=True)[
            "sessionId"
        ]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")
        self.size(1024, 900)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Calls a method of the protocol for this tab."""
        return self._browser.call(method, self._session, **parameters)

    def close(self) -> None:
        """Closes the tab."""
        self._browser.call("Target.closeTarget", targetId=self._target)

    def events(self, method: str) -> list[dict[str, Any]]:
        """The parameters of all events of this name so far."""
        self.evaluate("0")  # receives what is on its way
        return [
            event["params"]
            for event in self._browser.events
            if event.get("sessionId") == self._session and event.get("method") == method
        ]

    def requests(self) -> list[str]:
        """The URLs of all requests so far."""
        return [each["request"]["url"] for each in self.events("Network.requestWillBeSent")]

    def complaints(self) -> list[str]:
        """Uncaught exceptions, and errors of the log such as what the security policy refused."""
        thrown = [
            each["exceptionDetails"].get("exception", {}).get("description", "")
            for each in self.events("Runtime.exceptionThrown")
        ]
        logged = [each["entry"] for each in self.events("Log.entryAdded")]
        errors = [entry for entry in logged if entry["level"] == "error"]
        return thrown + [entry["text"] for entry in errors if entry["source"] != "network"]

    def size(self, width: int, height: int, scale: float = 1.0, *, phone: bool = False) -> None:
        """Sets the size of the view, in CSS pixels."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=scale,
            mobile=phone,
        )

    def dark(self, dark: bool = True) -> None:
        """Sets the preferred color scheme."""
        value = "dark" if dark else "light"
        feature = {"name": "prefers-color-scheme", "value": value}
        self.call("Emulation.setEmulatedMedia", features=[feature])

    def open(self, url: str, ready: str = "true") -> None:
        """Opens a page and waits until the expression is true there."""
        for place in ("about:blank", url):  # from there every URL is another document
            since = len(self._browser.events)
            self.call("Page.navigate", url=place)
            self._browser.wait_for("Page.frameStoppedLoading", self._session, since)
        self.wait(ready)

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression; of a promise, what it resolves to."""
        result = self.call(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        if "exceptionDetails" in result:
            details = result["exceptionDetails"]
            raise RuntimeError(details.get("exception", {}).get("description", details["text"]))
        return result["result"].get("value")

    def wait(self, expression: str) -> Any:
        """Waits until an expression is true, and returns its value."""
        deadline = time.monotonic() + SECONDS
        while not (value := self.evaluate(expression)):
            if time.monotonic() > deadline:
                raise TimeoutError(f"never true: {expression}")
            time.sleep(0.02)
        return value

    def text(self, selector: str) -> str:
        """The visible text of the first such element."""
        return self.evaluate(f"document.querySelector({json.dumps(selector)}).innerText")

    def texts(self, selector: str) -> list[str]:
        """The text contents of all such elements."""
        found = f"document.querySelectorAll({json.dumps(selector)})"
        return self.evaluate(f"Array.from({found}, (each) => each.textContent)")

    def click(self, selector: str, *, across: float = 0.5, down: float = 0.5) -> None:
        """Clicks into the first such element, by default into its middle."""
        x, y = self._place(selector, across, down)
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def hover(self, selector: str) -> None:
        """Moves the mouse into the middle of the first such element."""
        x, y = self._place(selector, 0.5, 0.5)
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def _place(self, selector: str, across: float, down: float) -> tuple[float, float]:
        """A point of an element, in the view."""
        left, top, width, height = self.evaluate(
            "((e) => { e.scrollIntoView({block: 'center'}); const b = e.getBoundingClientRect();"
            "return [b.x, b.y, b.width, b.height]; })"
            f"(document.querySelector({json.dumps(selector)}))"
        )
        return left + across * width, top + down * height

    def select(self, selector: str, value: str) -> None:
        """Chooses an option of a menu."""
        self.evaluate(
            f"((e) => {{ e.value = {json.dumps(value)}; e.dispatchEvent(new Event('change')); }})"
            f"(document.querySelector({json.dumps(selector)}))"
        )

    def insert(self, text: str) -> None:
        """Types a text where the focus is."""
        self.call("Input.insertText", text=text)

    def press(self, key: str, *, control: bool = False, shift: bool = False) -> None:
        """Presses a key."""
        modifiers = 2 * control + 8 * shift
        text = {"Enter": "\r", " ": " "}.get(key, "")
        parameters = {"key": key, "windowsVirtualKeyCode": _KEYS[key], "modifiers": modifiers}
        down = {"type": "keyDown", "text": text} if text and not control else {"type": "rawKeyDown"}
        self.call("Input.dispatchKeyEvent", **parameters, **down)
        self.call("Input.dispatchKeyEvent", **parameters, type="keyUp")

    def screenshot(self) -> bytes:
        """The whole page as PNG."""
        width, height = self.evaluate(
            "[document.documentElement.clientWidth, document.documentElement.scrollHeight]"
        )
        clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
        taken = self.call(
            "Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip
        )
        return base64.b64decode(taken["data"])
