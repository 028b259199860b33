"""A hub on this machine: the part of the Hugging Face hub's HTTP API that uploads use, with its rules for model cards.

One token may write, repositories have an owner, large files go through LFS, and commits are applied as a whole.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import yaml

TOKEN, OWNER = "hf_writes", "me"
LICENSES = {"apache-2.0", "mit", "cc-by-nc-4.0", "cc-by-4.0", "other"}
_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_METADATA = re.compile(r"^---\n(.*?)\n---(\n|$)", re.DOTALL)


class Hub(ThreadingHTTPServer):
    """The server; `with Hub() as hub` runs it. `repos` holds {"private", "branches": {name: {path: bytes}}}."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.repos: dict[str, dict[str, Any]] = {}
        self.commits: list[dict[str, Any]] = []
        self.stored: dict[str, bytes] = {}  # LFS objects
        self.requests: list[tuple[str, str]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def __enter__(self) -> Hub:
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self.shutdown()
        self.server_close()


def card_problems(content: str) -> list[str]:
    """What the hub refuses in a model card."""
    found = _METADATA.match(content)
    front = yaml.safe_load(found[1]) if found else None
    if not isinstance(front, dict):
        return ["empty or missing yaml metadata"]
    bases, languages = (
        [one] if isinstance(one, str) else one for one in (front.get("base_model", []), front.get("language", []))
    )
    problems = [f'"base_model[{n}]" is not valid' for n, base in enumerate(bases) if not _ID.fullmatch(str(base))]
    problems += [
        f'"language[{n}]" is not valid' for n, one in enumerate(languages) if not re.fullmatch("[a-z]{2,3}", one)
    ]
    problems += ['"datasets" must be ids' for one in front.get("datasets", []) if not _ID.fullmatch(str(one))]
    if "license" in front and front["license"] not in LICENSES:
        problems.append(f'"license" must be one of {sorted(LICENSES)}')
    for n, entry in enumerate(front.get("model-index", [])):
        for result in entry["results"]:
            complete = result["task"].get("type") and result["dataset"].get("type") and result["dataset"].get("name")
            metrics = [one.get("type") and isinstance(one.get("value"), (int, float)) for one in result["metrics"]]
            if not (entry.get("name") and complete and metrics and all(metrics)):
                problems.append(f'"model-index[{n}]" is not complete')
    return problems


class _Handler(BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *arguments: object) -> None:
        pass

    def do_GET(self) -> None:
        self._route("GET")

    def do_POST(self) -> None:
        self._route("POST")

    def do_PUT(self) -> None:
        self._route("PUT")

    def _route(self, verb: str) -> None:
        path = self.path.partition("?")[0]
        self.server.requests.append((verb, path))
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if verb == "POST" and path == "/api/validate-yaml":
            problems = card_problems(json.loads(body)["content"])
            self._send(400 if problems else 200, {"errors": [{"message": text} for text in problems], "warnings": []})
        elif verb == "PUT" and (found := re.fullmatch("/lfs/([0-9a-f]{64})", path)):
            right = hashlib.sha256(body).hexdigest() == found[1]
            self.server.stored[found[1]] = body
            self._send(200 if right else 400, {})
        elif self.headers.get("Authorization") != f"Bearer {TOKEN}":
            self._send(401, {"error": "Invalid username or password."})
        elif verb == "POST" and path == "/api/repos/create":
            self._create(json.loads(body))
        elif found := re.fullmatch(r"/api/models/([\w.-]+/[\w.-]+)(?:/(branch|preupload|commit)/([^/]+))?", path):
            self._repo(found[1], found[2], found[3], body)
        elif found := re.fullmatch(r"/([\w.-]+/[\w.-]+)\.git/info/lfs/objects/batch", path):
            self._send(
                200, {"transfer": "basic", "objects": [self._action(one) for one in json.loads(body)["objects"]]}
            )
        else:
            self._send(404, {"error": f"not in the stub: {verb} {path}"})

    def _create(self, asked: dict[str, Any]) -> None:
        name = f"{asked.get('organization') or OWNER}/{asked['name']}"
        if asked.get("organization") not in (None, OWNER):
            return self._send(403, {"error": "You don't have the rights to create a model under the namespace"})
        if name in self.server.repos:
            return self._send(409, {"error": "You already created this model repo", "url": f"{self.server.url}/{name}"})
        private = asked.get("visibility") == "private" or asked.get("private") is True
        self.server.repos[name] = {"private": private, "branches": {"main": {}}}
        return self._send(200, {"url": f"{self.server.url}/{name}", "name": name, "id": name})

    def _repo(self, name: str, part: str | None, revision: str | None, body: bytes) -> None:
        repo = self.server.repos.get(name)
        if repo is None:
            return self._send(404, {"error": "Repository not found"}, {"X-Error-Code": "RepoNotFound"})
        if part is None:
            return self._send(
                200,
                {
                    "id": name,
                    "modelId": name,
                    "private": repo["private"],
                    "sha": "0" * 40,
                    "siblings": [],
                    "tags": [],
                    "downloads": 0,
                    "likes": 0,
                },
            )
        if part == "branch":
            known = revision in repo["branches"]
            repo["branches"].setdefault(revision, dict(repo["branches"]["main"]))
            return self._send(409 if known else 200, {"error": "exists"} if known else {})
        if revision not in repo["branches"]:
            return self._send(404, {"error": "Invalid rev id"}, {"X-Error-Code": "RevisionNotFound"})
        if part == "preupload":
            files = [
                {
                    "path": one["path"],
                    "uploadMode": "lfs" if one["path"].endswith(".safetensors") else "regular",
                    "shouldIgnore": False,
                    "oid": None,
                }
                for one in json.loads(body)["files"]
            ]
            return self._send(200, {"files": files})
        return self._commit(
            name, repo["branches"][revision], revision, [json.loads(line) for line in body.splitlines()]
        )

    def _commit(self, name: str, files: dict[str, bytes], revision: str, lines: list[dict[str, Any]]) -> None:
        added = {}
        for line in lines:
            value = line["value"]
            if line["key"] == "file":
                added[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                added[value["path"]] = self.server.stored[value["oid"]]
        files |= added
        self.server.commits.append({"repo": name, "revision": revision, "files": sorted(added), **lines[0]["value"]})
        number = f"{len(self.server.commits):040x}"
        self._send(200, {"commitUrl": f"{self.server.url}/{name}/commit/{number}", "commitOid": number})

    def _action(self, one: dict[str, Any]) -> dict[str, Any]:
        return {**one, "actions": {"upload": {"href": f"{self.server.url}/lfs/{one['oid']}", "header": {}}}}

    def _send(self, status: int, content: dict[str, Any], headers: dict[str, str] | None = None) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        for key, value in {
            "Content-Type": "application/json",
            "Content-Length": str(len(body)),
            **(headers or {}),
        }.items():
            self.send_header(key, value)
        self.end_headers()
        self.wfile.write(body)
