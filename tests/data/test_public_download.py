"""`distilvec data get` against a real HTTP server: broken connections, errors, wrong content, archives, licences."""

from __future__ import annotations

import gzip
import hashlib
import http.server
import io
import json
import socket
import tarfile
import threading
import zipfile

import pytest
from published import publish
from refusals import refused

from distilvec.__main__ import run_command
from distilvec.core.errors import DistilvecError
from distilvec.data import public_download, public_table
from distilvec.data.public_download import get

REPOSITORY = "someone/texts@" + "0" * 40
COMMIT = "0" * 40
CONNECT, CREATE = socket.socket.connect, socket.create_connection


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    """Instead of the suite's fixture: this machine alone may be reached."""

    def connect(self, address):
        assert address[0] == "127.0.0.1", address
        return CONNECT(self, address)

    monkeypatch.setattr(socket.socket, "connect", connect)
    monkeypatch.setattr(socket, "create_connection", CREATE)


class Server(http.server.ThreadingHTTPServer):
    """Serves `files` by path. `faults` by path are what the next answers do instead, in order.

    `etag` gives the ETag of a content, None for none. `compares`: it heeds If-Range.
    """

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.files, self.faults, self.ranges = {}, {}, True
        self.seen = []
        self.etag = lambda content: f'"{hashlib.md5(content).hexdigest()}"'
        self.compares = True


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        server, path = self.server, self.path
        begin = int(self.headers.get("Range", "bytes=0-")[6:-1]) if server.ranges else 0
        etag = server.etag(server.files.get(path, b""))
        if server.compares and self.headers.get("If-Range", etag) != etag:
            begin = 0
        server.seen.append((path, begin))
        fault = server.faults.get(path, []).pop(0) if server.faults.get(path) else None
        if isinstance(fault, int):
            self.send_error(fault)
            return
        if path not in server.files:
            self.send_error(404)
            return
        content = server.files[path]
        if begin and begin >= len(content):
            self.send_error(416)
            return
        self.send_response(206 if begin else 200)
        self.send_header("Content-Length", str(len(content) - begin))
        if begin:
            self.send_header("Content-Range", f"bytes {begin}-{len(content) - 1}/{len(content)}")
        if etag is not None:
            self.send_header("ETag", etag)
        self.end_headers()
        self.wfile.write(content[begin : begin + fault[0]] if fault else content[begin:])  # then the connection ends

    def log_message(self, *args):
        pass


@pytest.fixture
def server(monkeypatch):
    with Server() as found:
        thread = threading.Thread(target=found.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        address = f"http://127.0.0.1:{found.server_port}"
        monkeypatch.setattr(public_download, "RAW", address)
        monkeypatch.setattr(public_download, "ARCHIVES", f"{address}/archives")
        monkeypatch.setattr(public_download, "PAUSE", 0.001)
        yield found
        found.shutdown()
        thread.join()


@pytest.fixture
def lines(monkeypatch, server):
    """A set of one file of lines, published at the server; its path there."""
    path = f"/someone/texts/{COMMIT}/a%20b.txt"
    server.files[path] = "".join(f"line {n}\n" for n in range(20_000)).encode()
    publish(monkeypatch, lines={"texts/lines.jsonl.gz": [{"format": "lines", "files": ["a b.txt"]}]})
    return path


def visible(folder):
    """The files of the data folder, without what is kept for the next try."""
    return sorted(
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if path.is_file() and public_download.DOWNLOADS not in path.relative_to(folder).parts
    )


def texts(path):
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [json.loads(line)["text"] for line in file]


def test_a_set_is_fetched_converted_and_its_licence_noted(server, lines, tmp_path):
    (path,) = get("lines", tmp_path)
    assert texts(path) == [f"line {n}" for n in range(20_000)]
    assert visible(tmp_path) == [public_download.NOTES, "texts/lines.jsonl.gz"]
    note = json.loads((tmp_path / public_download.NOTES).read_text())["lines"]
    assert note == {"licence": "of the test", "sources": [REPOSITORY], "files": ["texts/lines.jsonl.gz"]}
    assert not (tmp_path / public_download.DOWNLOADS / "lines").exists(), "downloads are removed at the end"
    get("lines", tmp_path)
    assert len(server.seen) == 1, "what is there is not fetched again"
    path.write_bytes(b"")
    get("lines", tmp_path, again=True)
    assert len(texts(path)) == 20_000


def test_a_broken_connection_is_resumed_where_it_broke(server, lines, tmp_path):
    server.faults[lines] = [(100_000,), 503, (50_000,)]
    (path,) = get("lines", tmp_path)
    assert len(texts(path)) == 20_000
    first, second, third, fourth = (begin for _, begin in server.seen)
    assert first == 0 and 90_000 < second == third <= 100_000 and 140_000 < fourth <= 150_000, server.seen


HOSTS = {
    "right": {},
    "without If-Range": {"compares": False},
    "without ETag": {"etag": lambda content: None},
    "with weak ETags": {"etag": lambda content: 'W/"same"'},
    "without ETag, with If-Range": {"etag": lambda content: None, "compares": False},
}


@pytest.mark.parametrize("host", HOSTS)
def test_another_file_is_not_continued(server, lines, tmp_path, host):
    """The content changes while the connection is broken: nothing of the first one is in the result."""
    for name, value in HOSTS[host].items():
        setattr(server, name, value)
    path, address = tmp_path / "file", f"{public_download.RAW}{lines}"
    server.faults[lines] = [(100_000,), *[500] * public_download.TRIES]
    with refused("data", "after 5 tries"):
        public_download.download(address, path)
    server.files[lines] = server.files[lines].upper()
    public_download.download(address, path)
    assert path.read_bytes() == server.files[lines]
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_without_ranges_the_download_begins_again(server, lines, tmp_path):
    server.faults[lines], server.ranges = [(100_000,)], False
    assert len(texts(get("lines", tmp_path)[0])) == 20_000


def test_a_host_that_stays_down_leaves_no_file_and_the_next_call_goes_on(server, lines, tmp_path):
    server.faults[lines] = [(100_000,), *[500] * public_download.TRIES]
    with refused("data", "after 5 tries"):
        get("lines", tmp_path)
    assert visible(tmp_path) == []
    assert len(texts(get("lines", tmp_path)[0])) == 20_000
    assert server.seen[-1][1] > 90_000


def test_short_bodies_are_not_taken_for_files(server, lines, tmp_path):
    server.faults[lines] = [(10,)] + [(0,)] * public_download.TRIES
    with refused("data", "5 tries"):
        get("lines", tmp_path)
    assert visible(tmp_path) == []


def test_a_file_that_is_not_there_is_not_tried_again(server, lines, tmp_path):
    del server.files[lines]
    with refused("data", "status 404"):
        get("lines", tmp_path)
    assert len(server.seen) == 1 and visible(tmp_path) == []


def test_more_bytes_than_allowed_are_refused(server, lines, tmp_path):
    with pytest.raises(DistilvecError, match=r"more than the 1,000 allowed"):
        public_download.download(f"{public_download.RAW}{lines}", tmp_path / "file", max_bytes=1000)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("expected", [{"sha256": "0" * 64}, {"rows": 7}])
def test_other_content_than_expected_is_thrown_away(server, lines, tmp_path, monkeypatch, expected):
    publish(monkeypatch, lines={"texts/lines.jsonl.gz": [{"format": "lines", "files": ["a b.txt"]}]}, **expected)
    with refused("data", "lines.jsonl.gz"):
        get("lines", tmp_path)
    assert visible(tmp_path) == [] and not (tmp_path / public_download.DOWNLOADS / "lines").exists()
    right = hashlib.sha256(b"".join(b'{"text": "line %d"}\n' % n for n in range(20_000))).hexdigest()
    publish(
        monkeypatch,
        lines={"texts/lines.jsonl.gz": [{"format": "lines", "files": ["a b.txt"]}]},
        sha256=right,
        rows=20_000,
    )
    assert len(texts(get("lines", tmp_path)[0])) == 20_000


def test_no_host(lines, tmp_path, monkeypatch):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        monkeypatch.setattr(public_download, "RAW", f"http://127.0.0.1:{free.getsockname()[1]}")
    with refused("data", "texts/lines.jsonl.gz"):
        get("lines", tmp_path)
    assert visible(tmp_path) == []


# -- archives ----------------------------------------------------------------------------------------------------------


def tar(members):
    """A .tar.gz with one folder around everything, as GitHub packs them; a member may be a TarInfo without content."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w:gz") as file:
        for name, content in members.items():
            one = content if isinstance(content, tarfile.TarInfo) else tarfile.TarInfo(name)
            data = b"" if one is content else content
            one.size = len(data)
            file.addfile(one, io.BytesIO(data))
    return raw.getvalue()


def test_members_of_a_repository_in_the_order_of_numbers(server, tmp_path, monkeypatch):
    link = tarfile.TarInfo("texts-000/a/3.txt")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
    members = {f"texts-000/a/{n}.txt": f"text {n}".encode() for n in (10, 2, 1)} | {
        "texts-000/b.txt": b"no",
        "link": link,
    }
    server.files[f"/archives/someone/texts/tar.gz/{COMMIT}"] = tar(members)
    part = {"format": "documents", "archive": "repository", "files": ["a/*.txt"], "columns": {"text": "text"}}
    publish(monkeypatch, reviews={"reviews.jsonl.gz": [part | {"natural": True}]})
    (path,) = get("reviews", tmp_path)
    assert texts(path) == ["text 1", "text 2", "text 10"]


@pytest.mark.parametrize("name", ["../../escaped.txt", "/tmp/escaped.txt", "x/../../escaped.txt"])
def test_no_member_leaves_the_folder(server, tmp_path, monkeypatch, name):
    raw = io.BytesIO()
    with zipfile.ZipFile(raw, "w") as file:
        file.writestr(name, "outside")
        file.writestr("in/a.txt", "inside")
    server.files[f"/someone/texts/{COMMIT}/all.zip"] = raw.getvalue()
    part = {"format": "documents", "archive": "all.zip", "files": ["*.txt"], "columns": {"text": "text"}}
    publish(monkeypatch, files={"files.jsonl.gz": [part]})
    (path,) = get("files", tmp_path / "data")
    assert sorted(texts(path)) == ["inside", "outside"]
    assert not any(tmp_path.rglob("*escaped*"))


@pytest.mark.parametrize(
    "content", [b"no archive", tar({"texts-000/a/1.txt": b"x" * 5000})[:-40]], ids=["no archive", "cut short"]
)
def test_damaged_archives(server, tmp_path, monkeypatch, content):
    server.files[f"/archives/someone/texts/tar.gz/{COMMIT}"] = content
    part = {"format": "documents", "archive": "repository", "files": ["a/*.txt"], "columns": {"text": "text"}}
    publish(monkeypatch, reviews={"reviews.jsonl.gz": [part]})
    with pytest.raises(DistilvecError, match=r"\[data\] .*damaged"):
        get("reviews", tmp_path)
    assert visible(tmp_path) == [] and not (tmp_path / public_download.DOWNLOADS / "reviews").exists()


def test_an_archive_that_unpacks_to_very_much(server, tmp_path, monkeypatch):
    server.files[f"/archives/someone/texts/tar.gz/{COMMIT}"] = tar({"texts-000/a/1.txt": b"x" * 5000})
    part = {"format": "documents", "archive": "repository", "files": ["a/*.txt"], "columns": {"text": "text"}}
    publish(monkeypatch, reviews={"reviews.jsonl.gz": [part]})
    monkeypatch.setattr(public_download, "MAX_UNPACKED", 4999)
    with pytest.raises(DistilvecError, match=r"\[data\] .*unpacks to more than 4,999"):
        get("reviews", tmp_path)


# -- the command -------------------------------------------------------------------------------------------------------


def test_the_command_fetches_into_the_data_folder(server, lines, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("DISTILVEC_DATA", str(tmp_path / "mine"))
    assert run_command(["data", "get", "lines"]) == 0
    out = capsys.readouterr()
    assert out.out.strip() == str(tmp_path / "mine/texts/lines.jsonl.gz") and "Licence: of the test" in out.err
    assert run_command(["data", "list"]) == 0
    assert "present" in capsys.readouterr().out
    assert run_command(["data", "get", "lines", "lnies"]) == 2
    assert "[data] no data set 'lnies'; did you mean 'lines'?" in capsys.readouterr().err


def test_a_missing_file_of_a_recipe_names_the_command(tmp_path, monkeypatch, tiny_recipe):
    from distilvec.config import recipe as recipes
    from distilvec.pipeline.resolve import resolve

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DISTILVEC_DATA", str(tmp_path / "none"))
    tree = tiny_recipe().model_dump(mode="json")
    tree["corpus"]["sources"] = [{"path": "$DISTILVEC_DATA/english_text/english_text.jsonl.gz"}]
    path = tmp_path / "recipe.yaml"
    path.write_text(json.dumps(tree))
    problem = (
        r"\[corpus\.sources\.0\.path\] .*none/english_text.*not found\. Get it with: distilvec data get english-text"
    )
    with pytest.raises(DistilvecError, match=problem):
        resolve(recipes.load(path), tmp_path / "run")


def test_a_set_that_a_person_has_to_fetch(monkeypatch, tmp_path):
    entry = public_table.DataSet(about="x", licence="y", manual="Ask its authors.", files={})
    monkeypatch.setattr(public_table, "data_sets", lambda: {"theirs": entry})
    with refused("data", "Ask its authors."):
        get("theirs", tmp_path)


def test_what_another_process_got_meanwhile_is_not_fetched_again(server, lines, tmp_path, monkeypatch):
    acquire_lock = public_download.acquire_lock

    def after_another(path, *about, **named):
        """Wait for the lock while another process gets the same set."""
        monkeypatch.setattr(public_download, "acquire_lock", acquire_lock)
        get("lines", tmp_path)
        return acquire_lock(path, *about, **named)

    monkeypatch.setattr(public_download, "acquire_lock", after_another)
    (path,) = get("lines", tmp_path)
    assert len(texts(path)) == 20_000 and len(server.seen) == 1


def test_a_page_without_a_row_is_no_data_set(server, lines, tmp_path):
    server.files[lines] = b""
    with refused("data", "lines.jsonl.gz"):
        get("lines", tmp_path)
    assert visible(tmp_path) == []
