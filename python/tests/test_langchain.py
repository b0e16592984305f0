"""The LangChain vector store, with embeddings that a test can read: how often each letter occurs."""

import importlib.util
import string

import pytest

import shortlist as sl

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("langchain_core") is None, reason="langchain-core is not installed"
)

TEXTS = ["aaa", "aab", "abb", "zzz"]


@pytest.fixture(params=["full", "int8_and_full"])
def store(request):
    from langchain_core.embeddings import Embeddings

    from shortlist.compat.langchain import Shortlist

    class Letters(Embeddings):
        def embed_query(self, text):
            return [float(text.count(letter)) for letter in string.ascii_lowercase]

        def embed_documents(self, texts):
            return [self.embed_query(text) for text in texts]

    metadatas = [{"length": len(text)} for text in TEXTS]
    return Shortlist.from_texts(
        TEXTS, Letters(), metadatas, ids=[f"id {text}" for text in TEXTS], device="cpu", storage=request.param
    )


def test_the_nearest_come_first(store):
    assert [d.page_content for d in store.similarity_search("ab", k=3)] == ["aab", "abb", "aaa"]
    found, score = store.similarity_search_with_score("z", k=1)[0]
    assert (found.page_content, found.metadata, found.id, score) == ("zzz", {"length": 3}, "id zzz", 1.0)
    by_vector = store.similarity_search_by_vector(store.embeddings.embed_query("zz"), k=9)
    assert len(by_vector) == len(TEXTS) and by_vector[0].page_content == "zzz"
    assert store.similarity_search_with_relevance_scores("z", k=4)[-1][1] == 0.5


def test_more_can_be_added_and_found_by_id(store):
    (name,) = store.add_texts(["zzb"])
    assert store.get_by_ids([name, "id aab", "none"])[0].page_content == "zzb"
    assert store.as_retriever(search_kwargs={"k": 1}).invoke("zb")[0].page_content == "zzb"
    assert store.add_texts([]) == []


def test_bad_input_changes_nothing(store):
    for texts, options in ((["b"], {"ids": ["id aaa"]}), (["b", "c"], {"ids": ["x", "x"]}), (["b"], {"metadatas": []})):
        with pytest.raises(sl.InvalidArgument, match="ids|metadatas"):
            store.add_texts(texts, **options)
    assert len(store.similarity_search("b", k=9)) == len(TEXTS)
    assert type(store)(store.embeddings).similarity_search("a") == []
