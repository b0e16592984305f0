"""The examples of docs/python*.md and of examples/, run as they stand, and the reference beside the built package."""

import contextlib
import importlib.util
import inspect
import io
import operator
import re
import subprocess
import sys

import pytest

from shortlist import _core

BLOCK = re.compile(r"(<!-- needs: (\w+) -->\n)?```python\n(.*?)```\n(?:\n```text\n(.*?)```\n)?", re.DOTALL)


PAGES = {  # examples, at least
    "python.md": 2,
    "python_retrieve.md": 4,
    "python_ivf_pq.md": 3,
    "python_activations.md": 2,
    "python_sampling.md": 2,
}


@pytest.mark.parametrize("page", PAGES)
def test_the_examples_of_a_page(repository, page):
    scope, ran = {}, 0
    for _, module, code, expected in BLOCK.findall((repository / "docs" / page).read_text()):
        if module and importlib.util.find_spec(module) is None:
            continue
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, page, "exec"), scope)
        assert printed.getvalue() == expected, code
        ran += 1
    assert ran >= PAGES[page]


def test_the_reference_says_what_the_package_does(repository):
    spec = importlib.util.spec_from_file_location("api_reference", repository / "tools/api_reference.py")
    reference = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(reference)
    docs = reference.docs_of_bindings()
    for name, docstring in docs.items():
        member = operator.attrgetter(name)(_core)
        assert inspect.cleandoc(docstring) in inspect.getdoc(member), name
    public = {name for name in vars(_core) if not name.startswith("_")}
    for index in (_core.FlatIndex, _core.IvfPqIndex):
        public |= {f"{index.__name__}.{name}" for name in vars(index) if not name.startswith("_")}
    assert public == set(docs)
    assert (repository / "docs/api.md").read_text(encoding="utf-8") == reference.page()


def printed_by(repository, example):
    done = subprocess.run([sys.executable, repository / "examples" / example], cwd=repository, capture_output=True,
                          text=True)  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_example_of_the_readme(repository):
    assert printed_by(repository, "search.py") == "row 2: 0.9899\nrow 0: 0.7071\n"
    assert (repository / "examples/search.py").read_text() in (repository / "README.md").read_text()


def test_sampling_draws_the_words_that_it_draws_from_cpp(repository):
    expected = (repository / "tests/package/sample_logits.txt").read_text()
    assert printed_by(repository, "sample_logits.py") == expected
