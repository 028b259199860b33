"""Corpora and caches behind an address: an S3 server, and a folder."""

from __future__ import annotations

import json
import os
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from refusals import refused
from samples import make_texts

from distilvec.core.errors import DistilvecError, about
from distilvec.core.storage import INDEX, Pusher, Remote, check_address
from distilvec.data.sources import source_files
from distilvec.pipeline.resolve import resolve
from distilvec.pipeline.run import run
from distilvec.teachers.cache.parts import Share
from distilvec.teachers.cache.store import TeacherCache
from distilvec.verbs.cache.cluster import fill_one_share, merge_shares

SECRET = "secret-of-the-test"


@pytest.fixture(scope="module")
def server():
    """An S3 server in a thread."""
    pytest.importorskip("s3fs")
    threaded = pytest.importorskip("moto.server").ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    threaded.start()
    yield "http://{}:{}".format(*threaded.get_host_and_port())
    threaded.stop()


@pytest.fixture
def bucket(server, loopback, monkeypatch):
    """The address of an empty bucket; the credentials are in the environment alone."""
    import fsspec

    settings = {"AWS_ENDPOINT_URL": server, "AWS_ACCESS_KEY_ID": "key-of-the-test", "AWS_SECRET_ACCESS_KEY": SECRET}
    for name, value in {**settings, "AWS_DEFAULT_REGION": "us-east-1"}.items():
        monkeypatch.setenv(name, value)
    system = fsspec.filesystem("s3", skip_instance_cache=True, use_listings_cache=False)
    system.makedirs("bucket", exist_ok=True)
    yield "s3://bucket"
    system.rm("bucket", recursive=True)


def send(folder: Path, address: str) -> None:
    import fsspec

    system, path = fsspec.url_to_fs(address)
    for file in sorted(folder.rglob("*")):
        if file.is_file():
            system.put_file(str(file), f"{path}/{file.relative_to(folder).as_posix()}")


def files_below(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if visible(path)}


def visible(path: Path) -> bool:
    return path.is_file() and not path.name.startswith(".") and path.suffix != ".lock" and path.name != "lock"


def write_corpus(folder: Path) -> Path:
    folder.mkdir()
    texts = make_texts(150)
    (folder / "first.txt").write_text("\n".join(texts[:80]), encoding="utf-8")
    (folder / "second.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts[80:]))
    (folder / "notes.md").write_text("not read")
    return folder


def test_a_run_from_s3_has_the_bytes_of_a_local_one(bucket, tiny_recipe, tmp_path, monkeypatch, capsys):
    texts = write_corpus(tmp_path / "corpus")
    send(texts, f"{bucket}/corpus")
    local = resolve(tiny_recipe(corpus__sources=[{"path": str(texts)}]), tmp_path / "unused")
    recipe = tiny_recipe(
        corpus__sources=[{"url": f"{bucket}/corpus", "name": "corpus"}],
        cache__remote=f"{bucket}/cache",
    )
    first = run(recipe, tmp_path / "a" / "tiny")
    cache = next((tmp_path / "cache" / "teachers").iterdir())
    other = local.corpus.folder
    assert [(other / name).read_bytes() for name in ("texts.bin", "keys.npy", "holdout_rows.npy")] == [
        (first_corpus(tmp_path / "cache", other) / name).read_bytes()
        for name in ("texts.bin", "keys.npy", "holdout_rows.npy")
    ]
    monkeypatch.setenv("DISTILVEC_CACHE", str(tmp_path / "another machine"))
    pulled = tmp_path / "another machine" / "teachers" / cache.name
    assert Remote(f"{bucket}/cache/{cache.name}").pull(pulled) == len(files_below(cache))
    assert files_below(pulled) == files_below(cache) and not TeacherCache.open(pulled).verify()
    second = run(recipe, tmp_path / "b" / "tiny")  # from the corpus and the vectors there
    assert (tmp_path / "b" / "tiny" / "student" / "model.safetensors").read_bytes() == (
        tmp_path / "a" / "tiny" / "student" / "model.safetensors"
    ).read_bytes()
    assert first is not None and second is not None
    written = {**files_below(tmp_path / "a"), **files_below(tmp_path / "cache")}
    assert not [name for name, data in written.items() if SECRET.encode() in data]
    assert SECRET not in capsys.readouterr().err


def first_corpus(root: Path, other: Path) -> Path:
    return next(path for path in (root / "corpora").iterdir() if path != other and path.is_dir())


def test_shares_meet_in_the_bucket(bucket, tiny_recipe, tmp_path, monkeypatch):
    recipe, whole = tiny_recipe(cache__remote=f"{bucket}/cache"), tiny_recipe()
    from jobs import filled

    one = filled(whole, tmp_path / "unused")
    for number in (1, 2):
        monkeypatch.setenv("DISTILVEC_CACHE", str(tmp_path / f"machine {number}"))
        job = resolve(recipe, tmp_path / "unused")
        fill_one_share(job, job.teacher, Share(number, 2))
    monkeypatch.setenv("DISTILVEC_CACHE", str(tmp_path / "machine 3"))
    job = resolve(recipe, tmp_path / "unused")
    merged = merge_shares(job, job.teacher)
    assert files_below(merged.folder) == files_below(one.folder)
    assert Remote(f"{bucket}/cache").folders() == [merged.folder.name]


# -- folders by address ------------------------------------------------------------------------------------------------


@pytest.fixture
def remote(tmp_path):
    return Remote(f"file://{tmp_path}/remote")


def write(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def test_only_what_changed_is_sent_and_fetched(remote, tmp_path):
    here, there = write(tmp_path / "here", a="1", b="2", **{"c/d": "3"}), tmp_path / "there"
    write(here, lock="7", **{".hidden": "x", "own.lock": ""})
    assert remote.pull(there) == 0 and not (tmp_path / "remote").exists()
    assert remote.push(here) == 3 and remote.push(here) == 0
    assert remote.pull(there) == 3 and remote.pull(there) == 0
    assert files_below(there) == files_below(here) == {"a": b"1", "b": b"2", "c/d": b"3"}
    write(here, a="11", e="4")
    (here / "b").unlink()
    assert remote.push(here) == 2
    assert not (tmp_path / "remote" / "b").exists()
    before = (there / "c" / "d").stat().st_mtime_ns
    assert remote.pull(there) == 3
    assert files_below(there) == files_below(here) and (there / "c" / "d").stat().st_mtime_ns == before
    write(there, a="111")
    assert remote.pull(there) == 0 and (there / "a").read_text() == "111"  # it may hold more than was pushed


def test_a_push_that_ends_early_leaves_old_or_new_files(remote, tmp_path, monkeypatch):
    """Whatever was sent last: another machine reads whole files, and the sender can go on."""
    import fsspec

    here = write(tmp_path / "here", a="1", journal="one")
    remote.push(here)
    write(here, b="2", journal="two", notes="new")
    system, _ = fsspec.url_to_fs(remote.address, auto_mkdir=True)
    count = 0

    def failing(act):
        def sent(self, *arguments, **options):
            nonlocal count
            count += 1
            if count > most:
                raise OSError("the network is gone")
            return act(self, *arguments, **options)

        return sent

    # in order: b, notes, the index with both versions, journal, the index; then again the last three
    few, every = {"a", "journal"}, {"a", "b", "journal", "notes"}
    for most, names, journal in (
        (0, few, b"one"),
        (1, few, b"one"),
        (2, few, b"one"),
        (3, every, b"one"),
        (2, every, b"two"),
    ):
        count = 0
        with monkeypatch.context() as patched, pytest.raises(DistilvecError, match=r"^\[cache.remote\].*network"):
            for name in ("put_file", "pipe_file"):
                patched.setattr(type(system), name, failing(getattr(type(system), name)))
            remote.push(here)
        there = tmp_path / f"there-{most}-{len(names)}"
        remote.pull(there)
        assert (files_below(there).keys(), files_below(there)["journal"]) == (names, journal)
        assert remote.pull(here) == 0
    assert remote.push(here) == 1 and remote.pull(there) == 0 and files_below(there) == files_below(here)


def test_damage_and_two_writers_are_refused(remote, tmp_path):
    first, second = write(tmp_path / "first", a="1"), tmp_path / "second"
    remote.push(first)
    remote.pull(second)
    write(first, a="2")
    remote.push(first)
    write(second, a="3")
    for act in (remote.push, remote.pull):
        with pytest.raises(DistilvecError, match=r"^\[cache.remote\].*have both changed"):
            act(second)
    with pytest.raises(DistilvecError, match=r"^\[cache.remote\].*have both changed"):
        remote.pull(write(tmp_path / "third", a="own"))
    (tmp_path / "remote" / "a").write_text("9")
    with refused("cache.remote", INDEX):
        remote.pull(tmp_path / "fourth")
    assert not files_below(tmp_path / "fourth")


def test_names_outside_of_the_folder_are_refused(remote, tmp_path):
    content = {"format": 1, "pending": False, "files": {"../escaped": [[1, "0"]]}}
    write(tmp_path / "remote", **{INDEX: json.dumps(content), "../escaped": "1"})
    with pytest.raises(DistilvecError, match=r"^\[cache.remote\].*outside of the folder"):
        remote.pull(tmp_path / "there")


def test_a_pusher_waits_and_goes_on_after_failures(remote, tmp_path, capsys):
    here = write(tmp_path / "here", a="1")
    Pusher(remote, here)(1, {})
    assert not (tmp_path / "remote").exists()
    Pusher(remote, here, seconds=0)(1, {})
    assert (tmp_path / "remote" / INDEX).exists()
    (tmp_path / "remote" / INDEX).write_text("no JSON")
    Pusher(remote, here, seconds=0)(1, {})
    assert "warning: [cache.remote]" in capsys.readouterr().err


@pytest.mark.parametrize(
    "address",
    ["s3://key:secret@bucket/x", "https://me:secret#x@host/x.txt", "https://me:secret/x@host/x.txt",
     "https://me@host:secret[@host/x", "s3:/key:secret@bucket", "https://host/x?signature=secret", "folder/x",
     "s3:/bucket"],
)  # fmt: skip
def test_addresses_hold_no_secrets(address):
    with refused("corpus.url") as error, about("corpus.url"):
        check_address(address)
    assert "folder" in address or "bucket" in address or "secret" not in str(error.value)
    assert "secret" not in str(error.value)


def test_errors_name_the_address_and_the_key(bucket, tmp_path, tiny_recipe):
    source = tiny_recipe(corpus__sources=[{"url": f"{bucket}/absent"}]).corpus.sources[0]
    with refused("corpus.sources.0.url", "s3://bucket/absent"):
        source_files(source, 0)
    with refused("cache.remote", "nothing://x"):
        Remote("nothing://x").folders()
    with refused("cache.remote", "s3://no-bucket/x") as error:
        Remote("s3://no-bucket/x").push(write(tmp_path / "here", a="1"))
    assert SECRET not in str(error.value)


def test_a_changed_remote_file_is_fetched_again(bucket, tiny_recipe, tmp_path):
    recipe = tiny_recipe(corpus__sources=[{"url": f"{bucket}/corpus/one.txt"}])
    for text in ("first", "second!"):
        (tmp_path / "corpus").mkdir(exist_ok=True)
        (tmp_path / "corpus" / "one.txt").write_text(text)
        send(tmp_path / "corpus", f"{bucket}/corpus")
        (file,) = source_files(recipe.corpus.sources[0], 0)
        assert (file.name, file.read_text()) == ("one.txt", text)
        assert source_files(recipe.corpus.sources[0], 0) == [file]
    assert recipe.corpus.sources[0].label == "one"


def test_a_cache_whose_last_push_was_killed_is_sent_by_the_next_command(tiny_recipe, tmp_path):
    """The list of files is written last: a kill before it leaves shards that no command would read."""
    place = tmp_path / "remote"
    root = str(tmp_path / "cache")
    recipe = tiny_recipe(cache__remote=f"file://{place}", cache__root=root, train__max_steps=2)
    run(recipe, tmp_path / "run")
    (list_of_files,) = place.rglob(INDEX)
    whole = files_below(place)
    list_of_files.unlink()
    next(path for path in list_of_files.parent.iterdir() if path.suffix == ".npy").unlink()
    run(recipe, tmp_path / "again")
    assert files_below(place).keys() == whole.keys()


def test_a_listed_file_that_is_not_there_is_named(remote, tmp_path):
    """A store may list an object before others can read it."""
    write(tmp_path / "here", a="1", b="2")
    remote.push(tmp_path / "here")
    Path(remote.address.removeprefix("file://"), "b").unlink()
    with refused("cache.remote", "b is listed"):
        remote.pull(tmp_path / "there")


def test_a_download_that_is_cut_is_fetched_again(tmp_path):
    path = tmp_path / "texts.txt"
    path.write_text("one\ntwo\n")
    remote = Remote(f"file://{path}")
    (copy,) = remote.download(lambda name: True)
    copy.write_text("one\n")
    assert remote.download(lambda name: True) == [copy] and copy.read_text() == "one\ntwo\n"


@pytest.mark.parametrize("marks", [{"ETag": '"{content}"'}, {"Last-Modified": "{content}"}, {}], ids=str)
@pytest.mark.parametrize("length", [True, False], ids=["length", "no length"])
def test_a_changed_file_of_a_web_server_is_fetched_again(marks, length, loopback):
    """Its size is the same; without a mark of its version it is fetched each time."""
    fetched = []

    class Handler(BaseHTTPRequestHandler):
        content = "first one"

        def log_message(self, *_):
            pass

        def do_HEAD(self):
            self.send_response(200)
            self.send_header("Content-Type", "text/plain")
            for name, value in marks.items():
                self.send_header(name, value.format(content=self.content))
            if length:
                self.send_header("Content-Length", str(len(self.content)))
            self.end_headers()

        def do_GET(self):
            fetched.append(self.path)
            self.do_HEAD()
            self.wfile.write(self.content.encode())

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    remote = Remote(f"http://127.0.0.1:{server.server_address[1]}/texts.txt")
    requests = []
    try:
        for content in ("first one", "first one", "other one"):
            Handler.content = content
            (copy,) = remote.download(lambda name: True)
            assert copy.name == "texts.txt" and copy.read_text() == content
            requests.append(len(fetched))
    finally:
        server.shutdown()
        server.server_close()
    first, second, third = requests[0], requests[1] - requests[0], requests[2] - requests[1]
    assert first == third and (second < first) == bool(marks)


def test_a_file_that_changes_with_its_time_kept_is_sent(remote, tmp_path):
    folder = write(tmp_path / "here", a="one")
    remote.push(folder)
    about = (folder / "a").stat()
    time.sleep(0.05)
    (folder / "a").write_text("two")
    os.utime(folder / "a", ns=(about.st_atime_ns, about.st_mtime_ns))
    assert remote.push(folder) == 1
