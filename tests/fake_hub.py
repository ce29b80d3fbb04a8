"""A small hub on loopback: two revisions of one repository, ranges, redirects to a second host name, and faults on demand."""

import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

REPO = "org/model"


def commit_of(revision):
    return hashlib.sha1(revision.encode()).hexdigest()


class FakeHub:
    """`revisions` maps a branch to {file: bytes}. `served` counts bytes of files; `fail_next` answers are 503."""

    def __init__(self, revisions):
        self.revisions = dict(revisions)
        self.commits = {commit_of(name): files for name, files in self.revisions.items()}
        self.branches = {name: commit_of(name) for name in self.revisions}
        self.served, self.requests, self.fail_next, self.die_after = 0, [], 0, None
        self.ranges, self.lie = True, False
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def do_GET(self):
                hub.answer(self)

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()
        self.port = self.server.server_port
        self.endpoint = f"http://127.0.0.1:{self.port}"

    def close(self):
        self.server.shutdown()
        self.server.server_close()

    def answer(self, handler):
        path = unquote(urlsplit(handler.path).path)
        self.requests.append((path, handler.headers.get("authorization"), handler.headers.get("range")))
        if self.fail_next > 0:
            self.fail_next -= 1
            return self.send(handler, 503, b"busy")
        api = f"/api/models/{REPO}/"
        if path == f"{api}refs":
            listed = [{"name": n, "ref": f"refs/heads/{n}", "targetCommit": c} for n, c in self.branches.items()]
            return self.send(handler, 200, json.dumps({"branches": listed}).encode())
        if path.startswith(f"{api}revision/"):
            commit = self.branches.get(path.removeprefix(f"{api}revision/"))
            return (
                self.send(handler, 200, json.dumps({"sha": commit}).encode())
                if commit
                else self.send(handler, 404, b"{}")
            )
        if path.startswith(f"{api}tree/"):
            return self.tree(handler, self.commits[path.removeprefix(f"{api}tree/")])
        if path.startswith(f"/{REPO}/resolve/"):
            commit, _, name = path.removeprefix(f"/{REPO}/resolve/").partition("/")
            return self.redirect(handler, f"http://localhost:{self.port}/cdn/{commit}/{name}")
        if path.startswith("/cdn/"):
            commit, _, name = path.removeprefix("/cdn/").partition("/")
            return self.file(handler, self.commits[commit][name])
        return self.send(handler, 404, b"{}")

    def tree(self, handler, files):
        entries = []
        for name, data in files.items():
            entry = {"type": "file", "path": name, "size": len(data)}
            if len(data) > 4096:
                entry["lfs"] = {"oid": hashlib.sha256(data).hexdigest(), "size": len(data)}
            entries.append(entry)
        return self.send(handler, 200, json.dumps(entries).encode())

    def redirect(self, handler, target):
        handler.send_response(302)
        handler.send_header("location", target)
        handler.send_header("content-length", "0")
        handler.end_headers()

    def file(self, handler, data):
        first, last = (int(n) for n in handler.headers["range"].removeprefix("bytes=").split("-"))
        part = data[first : last + 1] if self.ranges else data
        if self.die_after is not None and self.served + len(part) > self.die_after:
            handler.close_connection = True
            return handler.connection.close()
        self.served += len(part)
        return self.send(handler, 206 if self.ranges else 200, part[:-1] if self.lie else part)

    def send(self, handler, status, body):
        handler.send_response(status)
        handler.send_header("content-length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)
