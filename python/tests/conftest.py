"""Where the tests find each other's helpers, and what they need of the machine."""

import pathlib
import sys

import pytest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))


@pytest.fixture(scope="session")
def repository():
    return HERE.parent.parent
