"""A LangChain vector store over FlatIndex; needs langchain-core (pip install shortlist[langchain])."""

import uuid

import numpy as np
from langchain_core.documents import Document
from langchain_core.vectorstores import VectorStore

from .. import _core

__all__ = ["Shortlist"]


class Shortlist(VectorStore):
    """Documents, found by the cosine of their embeddings, exactly.

    Args:
        embedding: LangChain's Embeddings, asked for documents and queries.
        device, storage: as shortlist.FlatIndex takes them.

    Documents are added, and never removed or replaced. Any number of threads may search; add from one at a time.
    """

    def __init__(self, embedding, device=None, storage="full"):
        self._embedding, self._device, self._storage = embedding, device, storage
        self._index = None  # the first document tells how many elements an embedding has
        self._documents = []
        self._positions = {}

    @property
    def embeddings(self):
        """The Embeddings that it was made with."""
        return self._embedding

    def add_texts(self, texts, metadatas=None, *, ids=None, **kwargs):
        """Embeds and adds texts; returns their ids, made up where none are given. Raises InvalidArgument (ValueError)."""
        texts = list(texts)
        metadatas = [{} for _ in texts] if metadatas is None else list(metadatas)
        ids = [str(uuid.uuid4()) for _ in texts] if ids is None else list(ids)
        for argument, values in (("metadatas", metadatas), ("ids", ids)):
            if len(values) != len(texts):
                raise _core.InvalidArgument(f"{argument} has {len(values)} entries; allowed is {len(texts)}, one a text")
        if len(set(ids)) != len(ids) or not self._positions.keys().isdisjoint(ids):
            raise _core.InvalidArgument("ids has one twice or one that is in use; allowed is a new one for every text")
        if texts:
            vectors = np.asarray(self._embedding.embed_documents(texts), np.float32)
            if self._index is None:
                self._index = _core.FlatIndex(vectors.shape[-1], "cosine", self._device, storage=self._storage)
            self._index.add(vectors)
        for text, metadata, name in zip(texts, metadatas, ids):
            self._positions[name] = len(self._documents)
            self._documents.append(Document(page_content=text, metadata=metadata, id=name))
        return ids

    @classmethod
    def from_texts(cls, texts, embedding, metadatas=None, *, ids=None, **kwargs):
        """A new store of these texts; device and storage as in Shortlist()."""
        store = cls(embedding, **kwargs)
        store.add_texts(texts, metadatas, ids=ids)
        return store

    def get_by_ids(self, ids, /):
        """The documents of those ids that are there."""
        return [self._documents[self._positions[name]] for name in ids if name in self._positions]

    def similarity_search(self, query, k=4, **kwargs):
        """The k documents nearest to a text, best first."""
        return [document for document, _ in self.similarity_search_with_score(query, k)]

    def similarity_search_by_vector(self, embedding, k=4, **kwargs):
        """The k documents nearest to an embedding, best first."""
        return [document for document, _ in self._search(embedding, k)]

    def similarity_search_with_score(self, query, k=4, **kwargs):
        """[(document, cosine), ...] of the k nearest to a text, best first."""
        return self._search(self._embedding.embed_query(query), k)

    def _search(self, embedding, k):
        if self._index is None:
            return []
        scores, rows = self._index.search(np.asarray(embedding, np.float32), min(k, len(self._documents)))
        return [(self._documents[row], float(score)) for row, score in zip(rows, scores)]

    def _select_relevance_score_fn(self):
        return lambda cosine: (1 + cosine) / 2
