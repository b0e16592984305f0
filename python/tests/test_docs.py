"""The examples of docs/python.md and of examples/, run as they stand; what they print is what the page says."""

import contextlib
import importlib.util
import io
import re
import subprocess
import sys


BLOCK = re.compile(r"(<!-- needs: (\w+) -->\n)?```python\n(.*?)```\n(?:\n```text\n(.*?)```\n)?", re.DOTALL)


def test_the_page(repository):
    scope, ran = {}, 0
    for _, module, code, expected in BLOCK.findall((repository / "docs/python.md").read_text()):
        if module and importlib.util.find_spec(module) is None:
            continue
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, "docs/python.md", "exec"), scope)
        assert printed.getvalue() == expected, code
        ran += 1
    assert ran >= 7


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
