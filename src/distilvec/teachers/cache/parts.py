"""A cache filled by several processes that know nothing of each other: each computes a share of the shards.

    FOLDER.2-of-4    a cache of its own next to FOLDER: the shards of FOLDER whose number is 1, 5, 9, ...

The planned shards and their numbers depend on the corpus and on what FOLDER holds. Merged, the files are those of one
process.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from distilvec.core.errors import DistilvecError
from distilvec.core.files import remove, remove_scratch, scratch
from distilvec.data.corpus import Corpus
from distilvec.teachers.cache.fill import Compute, FillStep, FillSteps, in_text_order, plan_shards
from distilvec.teachers.cache.journal import KEY_NAME, Shard, damaged, read_journal
from distilvec.teachers.cache.store import MANIFEST, TeacherCache


@dataclass(frozen=True)
class Share:
    """One of `count` shares of the shards, numbered from 1."""

    number: int
    count: int

    @classmethod
    def parse(cls, text: str) -> Share:
        """Read "2/4". DistilvecError for anything else."""
        match = re.fullmatch(r"([1-9][0-9]{0,5})/([1-9][0-9]{0,5})", text.strip())
        if match is None or int(match[1]) > int(match[2]):
            raise DistilvecError(
                f"found '{text}'; expected i/n, share i of n from 1.", "Give for example 2/4.", key="--shard"
            )
        return cls(int(match[1]), int(match[2]))

    def folder(self, cache: Path) -> Path:
        """The folder of the share."""
        return cache.with_name(f"{cache.name}.{self.number}-of-{self.count}")

    def open(self, cache: TeacherCache) -> TeacherCache:
        """The cache of the share, new if there is none."""
        return TeacherCache.create_or_open(self.folder(cache.folder), cache.manifest, cache.shard_rows)

    def includes(self, number: int) -> bool:
        """Whether the shard with this number belongs to the share."""
        return number % self.count == self.number - 1


def fill_share(
    cache: TeacherCache,
    part: TeacherCache,
    share: Share,
    corpus: Corpus,
    compute: Compute,
) -> FillSteps:
    """Compute those shards that the cache lacks and that belong to the share, into `part`; resumed after a kill.

    Errors: DistilvecError for vectors that must not be stored, or a full disk.
    """
    planned = [(number, rows) for number, rows in plan_shards(cache, corpus) if share.includes(number)]
    total = sum(len(rows) for _, rows in planned)
    done = 0
    with part.writing():
        for number, rows in planned:
            keys = np.asarray(corpus.keys[rows])
            if (part.positions(keys) < 0).any():
                computed = []
                texts = done
                work = float(done)
                for batch in compute(rows):
                    computed.append(batch)
                    texts += len(batch.rows)
                    work += batch.work * len(rows)
                    yield FillStep(texts, total, work)
                part.append(keys, in_text_order(computed), corpus.stored(rows).__getitem__, number)
            done += len(rows)
            yield FillStep(done, total, done)


def part_folders(cache: Path) -> list[Path]:
    """The folders of shares next to a cache, of any count, in order."""
    return sorted(path.parent for path in cache.parent.glob(f"*/{MANIFEST}") if is_part(path.parent.name, cache))


def is_part(name: str, cache: Path) -> bool:
    """Whether a folder's name is that of a share of a cache."""
    return re.fullmatch(re.escape(cache.name) + r"\.[0-9]+-of-[0-9]+", name) is not None


def merge(cache: TeacherCache, folders: Sequence[Path]) -> int:
    """Move the shards of these folders into the cache and remove the folders; the number of shards.

    Shards are compared with their checksums, then linked (on one file system) or copied. Killed at any moment and run
    again, the result is the same. Errors: DistilvecError for a cache of other settings, for damage, for a full disk.
    """
    count = 0
    remove_scratch(cache.folder.parent)  # of a merge that was killed while it removed the folders
    with cache.writing():
        for folder, shard in _shards_of(cache, folders):
            problems = shard.problems(folder, shard.files, None)
            if problems:
                raise damaged(folder, problems[0])
            keys = np.load(shard.verify(folder, "keys"), allow_pickle=False)
            is_stored = cache.positions(keys) >= 0
            if is_stored.all():  # by a merge that was killed
                continue
            if is_stored.any():
                raise DistilvecError(
                    f"{int(is_stored.sum()):,} of the {len(keys):,} texts of shard {shard.number} in {folder} are in "
                    f"{cache.folder} already.",
                    f"Remove {folder} and fill the cache.",
                    key=KEY_NAME,
                )
            cache.adopt(shard, folder)
            count += 1
        cache.sort_shards()
    # Only now, when the journal has every shard: a kill before this line leaves the folders to merge again. Each is
    # renamed first, at once: a folder that has lost some of its files would be a damaged share.
    for folder in folders:
        merged = scratch(folder)
        folder.rename(merged)
        remove(merged)
    return count


def _shards_of(cache: TeacherCache, folders: Sequence[Path]) -> list[tuple[Path, Shard]]:
    """Every shard with its folder, by number. DistilvecError for a folder that is no share of this cache."""
    shards = []
    for folder in folders:
        part = TeacherCache.create_or_open(folder, cache.manifest)
        for shard in read_journal(part.folder).shards:
            shards.append((folder, shard))
    return sorted(shards, key=lambda pair: pair[1].number)
