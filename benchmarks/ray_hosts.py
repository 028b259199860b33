"""A Ray cluster of three hosts that loses a host: the cache has to have the bytes of one process.

    python -m benchmarks.ray_hosts --json results/ray_hosts.json [--texts 1000] [--teacher MODEL]       Linux, as root

The hosts are network namespaces (`ip netns`) behind a switch: a head without teachers and two others, with room for all
four teachers each. The two see neither the shared memory nor the caches and files of Ray of another host. When a
quarter of the shards is stored, the cable of a host is cut: its processes go on, and nobody reaches them. The machine's
own network stays as it is.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import yaml

from distilvec.core.files import write_json
from distilvec.core.model_name import BUILTIN

HEAD, *OTHERS = HOSTS = {f"distilvec{number}": f"10.77.0.{number + 1}" for number in range(3)}
CLUSTER = f"{HOSTS[HEAD]}:6379"
SHARD, TEACHERS = 16, 4
RAY = [sys.executable, "-m", "ray.scripts.scripts", "start", "--disable-usage-stats", "--object-store-memory=100000000"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--texts", type=int, default=1000)
    parser.add_argument("--teacher", default=BUILTIN)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rh", dir="/tmp") as scratch:  # paths of sockets have 107 bytes at most
        result = measure(Path(scratch), arguments.teacher, arguments.texts)
    write_json(arguments.json, result)
    print(hosts_sentence(result))


def measure(folder: Path, teacher: str, texts: int) -> dict[str, Any]:
    """Fill a cache by one process, then another by the cluster, which loses a host; compare their files."""
    corpus = {"sources": [{"builtin": "python-docstrings", "limit": texts}], "validation_rows": 16}
    recipe = {"name": "hosts", "teacher": {"model": teacher}, "student": {"model": "teacher", "layers": 2}}
    recipe |= {"corpus": corpus, "cache": {"shard_rows": SHARD}, "method": {"name": "redact"}}
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe | {"train": {"device": "cpu"}}), encoding="utf-8")
    fill = [sys.executable, "-m", "distilvec", "cache", "fill", str(folder / "recipe.yaml")]
    alone = subprocess.run(fill, env=variables(folder / "one"), check=True, stdout=subprocess.PIPE, text=True)
    whole = content(Path(alone.stdout.strip()))
    shared = folder / "two" / "teachers" / Path(alone.stdout.strip()).name
    shards = sum(name.endswith(".embedding.npy") for name in whole)
    with ExitStack() as undo:
        lay_cables(undo)
        start_ray(folder)
        command = [*on(HEAD), *fill, "--ray", CLUSTER, "--workers", str(TEACHERS)]
        filling = subprocess.Popen(command, env=variables(folder / "two"))
        while (before := stored(shared)) < shards // 4:
            if filling.poll() is not None:
                raise SystemExit(f"the command ended with status {filling.returncode} before a host was lost")
            time.sleep(0.02)
        began = time.perf_counter()
        ip("-n", OTHERS[1], "link", "set", "eth0", "down")
        if status := filling.wait():
            raise SystemExit(f"the command ended with status {status} after a host was lost")
        seconds = time.perf_counter() - began
    result = {"texts": texts, "shards": shards, "stored_before_the_cut": before}
    return result | {"seconds_after_the_cut": round(seconds, 1), "same_bytes": content(shared) == whole}


def lay_cables(undo: ExitStack) -> None:
    """Make the hosts, with a switch that stands in the first one; `undo` ends all that runs on them."""
    for host in HOSTS:
        ip("netns", "add", host)
        undo.callback(ip, "netns", "delete", host)
        undo.callback(end_processes, host)
        ip("-n", host, "link", "set", "lo", "up")
    ip("-n", HEAD, "link", "add", "switch", "type", "bridge")
    ip("-n", HEAD, "address", "add", f"{HOSTS[HEAD]}/24", "dev", "switch")
    ip("-n", HEAD, "link", "set", "switch", "up")
    for host in OTHERS:
        ip("-n", host, "link", "add", "eth0", "type", "veth", "peer", "name", host, "netns", HEAD)
        ip("-n", HEAD, "link", "set", host, "master", "switch", "up")
        ip("-n", host, "address", "add", f"{HOSTS[host]}/24", "dev", "eth0")
        ip("-n", host, "link", "set", "eth0", "up")


def end_processes(host: str) -> None:
    """Kill every process of a host."""
    pids = subprocess.run(["ip", "netns", "pids", host], stdout=subprocess.PIPE, text=True, check=True)
    for number in pids.stdout.split():
        with suppress(ProcessLookupError):
            os.kill(int(number), 9)


def start_ray(folder: Path) -> None:
    """Start Ray on each host; an empty disk in memory hides the folders that a host of its own would not have."""
    hidden = [folder / "ray", folder / "one", folder / "two"]
    for path in hidden:
        path.mkdir(exist_ok=True)
    mounts = "".join(f"mount -t tmpfs tmpfs {shlex.quote(str(path))} && " for path in (*hidden, "/dev/shm"))
    head = ["--head", "--port=6379", "--num-cpus=0", "--include-dashboard=false", f"--temp-dir={folder / 'ray'}"]
    for host, address in HOSTS.items():
        command = [*RAY, f"--node-ip-address={address}"]
        if host == HEAD:
            command += head
        else:
            command += [f"--address={CLUSTER}", f"--num-cpus={TEACHERS}"]
            command = ["unshare", "--mount", "sh", "-c", f"{mounts}exec {shlex.join(command)}"]
        subprocess.run([*on(host), *command], env=variables(folder / "two"), stdout=subprocess.DEVNULL, check=True)


def ip(*words: str) -> None:
    """Run `ip`."""
    subprocess.run(["ip", *words], check=True)


def on(host: str) -> list[str]:
    """Return the words before a command that runs on a host."""
    return ["ip", "netns", "exec", host]


def variables(cache: Path) -> dict[str, str]:
    """Return this process's variables with a cache folder, one thread for each process, and no token of Ray.

    Ray 2.60 makes a head ask for a token if the user ever had one, and the other hosts join without it and are refused
    (findings/ray_head_token.sh). Nobody else reaches this network.
    """
    return os.environ | {"DISTILVEC_CACHE": str(cache), "OMP_NUM_THREADS": "1", "RAY_AUTH_MODE": "disabled"}


def stored(cache: Path) -> int:
    """Return the number of shards in a cache."""
    return len(list(cache.glob("*.embedding.npy")))


def content(cache: Path) -> dict[str, bytes]:
    """Return the files of a cache."""
    return {path.name: path.read_bytes() for path in cache.iterdir() if path.name != "lock"}


def hosts_sentence(result: Mapping[str, Any]) -> str:
    """What was seen, in a sentence."""
    same = "has the bytes of one process" if result["same_bytes"] else "differs from that of one process"
    return (
        "Of three hosts (a head and two with teachers, network namespaces of one machine), a host was cut off after "
        f"{result['stored_before_the_cut']} of {result['shards']} shards. The command ended well "
        f"{result['seconds_after_the_cut']:.0f} s later, and the cache {same} "
        "(`python -m benchmarks.ray_hosts --json FILE`)."
    )


if __name__ == "__main__":
    main()
