"""A page in headless Chromium, driven over a pipe by its own protocol: no package is needed."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path
from select import select

#: Debian's name, and those of other systems.
PROGRAM = next((p for p in map(shutil.which, ("chromium", "chromium-browser", "google-chrome")) if p), None)
AXE = Path(__file__).parent / "browser" / "node_modules" / "axe-core" / "axe.min.js"
PATIENCE = 60.0


class Chromium:
    """One browser with one page."""

    def __init__(self, profile: str) -> None:
        theirs_in, self.out = os.pipe()
        self.into, theirs_out = os.pipe()
        flags = "--headless=new --no-sandbox --disable-gpu --disable-dev-shm-usage --no-first-run --hide-scrollbars"
        quiet = "--disable-background-networking --disable-component-update --disable-sync --remote-debugging-pipe"
        start = f'exec "$0" {flags} {quiet} --user-data-dir="$1" about:blank 3<&{theirs_in} 4>&{theirs_out}'
        self.process = subprocess.Popen(
            ["bash", "-c", start, PROGRAM, profile],
            pass_fds=(theirs_in, theirs_out),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self.number, self.buffer, self.events, self.session = 0, b"", [], None
        page = next(t for t in self.send("Target.getTargets")["targetInfos"] if t["type"] == "page")
        answer = self.send("Target.attachToTarget", targetId=page["targetId"], flatten=True)
        self.session = answer["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def send(self, method, **parameters):
        """Send a command and return its answer; events that come meanwhile are kept."""
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.out, json.dumps(message).encode() + b"\0")
        while True:
            got = self.receive()
            if got.get("id") == self.number:
                if "error" in got:
                    raise RuntimeError(f"{method}: {got['error']}")
                return got["result"]
            self.events.append(got)

    def receive(self):
        """Return the next message."""
        while b"\0" not in self.buffer:
            ready, _, _ = select([self.into], [], [], PATIENCE)
            part = os.read(self.into, 1 << 16) if ready else b""
            if not part:
                raise RuntimeError("Chromium does not answer.")
            self.buffer += part
        message, _, self.buffer = self.buffer.partition(b"\0")
        return json.loads(message)

    def open(self, path, scheme="light", width=1200, height=900):
        """Open a file and wait until it is loaded."""
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.events.clear()
        self.send("Page.navigate", url=Path(path).resolve().as_uri())
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self.receive())

    def run(self, expression):
        """Evaluate an expression (a promise is awaited) and return its value."""
        result = self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise RuntimeError(str(result["exceptionDetails"]))
        return result["result"].get("value")

    def press(self, key, text=None, code=0):
        """Press a key."""
        named = {"key": key, "code": key, "windowsVirtualKeyCode": code, **({"text": text} if text else {})}
        self.send("Input.dispatchKeyEvent", type="keyDown", **named)
        self.send("Input.dispatchKeyEvent", type="keyUp", **named)

    def type(self, text):
        """Write text where the focus is."""
        self.send("Input.insertText", text=text)

    def click(self, selector):
        """Click the middle of an element with the mouse."""
        find = f"const e = document.querySelector({json.dumps(selector)}); e.scrollIntoView({{block: 'center'}});"
        box = "const r = e.getBoundingClientRect(); return [r.x + r.width / 2, r.y + r.height / 2];"
        x, y = self.run(f"(() => {{ {find} {box} }})()")
        for kind in ("mousePressed", "mouseReleased"):
            self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def troubles(self):
        """Return errors and warnings of the console, exceptions, dialogs, and whatever was loaded beside the page."""
        self.run("1")
        found = []
        for event in self.events:
            method, given = event.get("method"), event.get("params", {})
            if method in ("Runtime.exceptionThrown", "Page.javascriptDialogOpening"):
                found.append((method, given))
            if method == "Runtime.consoleAPICalled" and given["type"] in ("error", "warning", "assert"):
                found.append((method, given))
            if method == "Log.entryAdded" and given["entry"]["level"] in ("error", "warning"):
                found.append((method, given))
            if method == "Network.requestWillBeSent" and given.get("type") != "Document":
                found.append((method, given["request"]["url"]))
        return found

    def axe(self):
        """Return the serious and critical barriers that axe-core finds."""
        self.run(AXE.read_text(encoding="utf-8") + ";1")
        found = self.run("axe.run(document, {resultTypes: ['violations']}).then(r => JSON.stringify(r.violations))")
        return [
            (one["id"], one["impact"], one["nodes"][0]["html"][:200], one["nodes"][0]["failureSummary"])
            for one in json.loads(found)
            if one["impact"] in ("serious", "critical")
        ]

    def screenshot(self, path, full=True):
        """Save a picture of the page."""
        got = self.send("Page.captureScreenshot", format="png", captureBeyondViewport=full)
        Path(path).write_bytes(base64.b64decode(got["data"]))

    def pdf(self, path):
        """Print the page."""
        got = self.send("Page.printToPDF", preferCSSPageSize=True, printBackground=False)
        Path(path).write_bytes(base64.b64decode(got["data"]))

    def close(self):
        """End the browser."""
        try:
            self.session = None
            self.send("Browser.close")
            self.process.wait(10)
        except (RuntimeError, OSError, subprocess.TimeoutExpired):
            self.process.kill()
            self.process.wait()
        os.close(self.out)
        os.close(self.into)


@contextmanager
def chromium():
    """Start a browser, and end it."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        browser = Chromium(profile)
        try:
            yield browser
        finally:
            browser.close()
