"""Folders of LlamaIndex, written by LlamaIndex in a process of its own."""

from __future__ import annotations

import json

import numpy as np
import pytest
from refusals import refused
from store_packages import needed

from benchmarks.indexes import run_apart
from distilvec.config.schema import TeacherSection
from distilvec.teachers.indexes.copy import local_table
from distilvec.teachers.indexes.stores import is_index
from distilvec.teachers.table_embedder import TableEmbedder

WRITE = """
import json, sys
import numpy as np
from llama_index.core import Document, VectorStoreIndex
from llama_index.core.embeddings import BaseEmbedding
from llama_index.core.node_parser import SentenceSplitter

embedded = {}


class Recorder(BaseEmbedding):
    def _get_text_embedding(self, text):
        return embedded.setdefault(text, np.random.default_rng(len(embedded)).standard_normal(8).tolist())

    _get_query_embedding = _get_text_embedding

    async def _aget_query_embedding(self, text):
        return self._get_text_embedding(text)


documents = []
for number in range(12):
    metadata = {} if number == 3 else {"file_name": f"f{number}.txt", "page": number, "draft": number % 2 == 0}
    text = " ".join(f"Sentence {line} of document {number} says {number * line}." for line in range(30))
    documents.append(Document(text=text, metadata=metadata, id_=f"d{number}"))
documents[1].excluded_embed_metadata_keys = ["file_name"]
documents[2].text_template = "{metadata_str} -> {content}"
documents[2].metadata_template = "{key}={value}"
documents[2].metadata_separator = "; "
documents[4].excluded_embed_metadata_keys = ["file_name", "page", "draft"]
splitter = SentenceSplitter(chunk_size=120, chunk_overlap=10)
index = VectorStoreIndex.from_documents(documents[:11], embed_model=Recorder(), transformations=[splitter])
index.delete_ref_doc("d5", delete_from_docstore=False)
index.insert(documents[11])
index.storage_context.persist(sys.argv[1])
print(json.dumps(embedded))
"""


@pytest.fixture(scope="module")
def persisted(tmp_path_factory):
    """A folder, and each text that the package embedded for it, with its vector."""
    needed("llamaindex")
    folder = tmp_path_factory.mktemp("llama") / "storage"
    return folder, json.loads(run_apart(WRITE, folder))


def test_texts_are_those_that_were_embedded(persisted, tmp_path):
    """With metadata, by the node's own templates; without the document that was deleted."""
    folder, embedded = persisted
    expected = {text: vector for text, vector in embedded.items() if "of document 5 " not in text}
    assert len(expected) < len(embedded) and any(text.startswith("file_name: f0.txt\npage: 0") for text in expected)
    for address in (folder, folder / "default__vector_store.json"):
        assert is_index(address)
        section = local_table(TeacherSection(vectors=address), tmp_path / "cache")
        rows = dict(zip(*TableEmbedder(section).documents(), strict=True))
        assert rows.keys() == expected.keys() and section.similarity == "cosine"
        for text, vector in rows.items():
            np.testing.assert_allclose(vector, np.array(expected[text]) / np.linalg.norm(expected[text]), atol=1e-6)


@pytest.mark.parametrize("template", ["{content.__class__}", "{content:>9}", "{other}", "{content}}"])
def test_templates_that_are_not_plain_are_refused(template, persisted, tmp_path):
    folder = tmp_path / "copy"
    folder.mkdir()
    for path in persisted[0].iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    docstore = json.loads((folder / "docstore.json").read_text())
    vectors = json.loads((folder / "default__vector_store.json").read_text())["embedding_dict"]
    docstore["docstore/data"][next(iter(vectors))]["__data__"]["text_template"] = template
    (folder / "docstore.json").write_text(json.dumps(docstore))
    with refused("teacher.vectors", "template"):
        local_table(TeacherSection(vectors=folder), tmp_path / "cache")
    (folder / "docstore.json").unlink()
    with refused("teacher.vectors", "no docstore.json"):
        local_table(TeacherSection(vectors=folder), tmp_path / "cache")
