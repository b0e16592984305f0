"""The package as it is installed: what it holds, what it says of itself, and how it ends."""

import ast
import importlib.metadata
import importlib.util
import inspect
import pathlib
import re
import shutil
import subprocess
import sys
import zipfile

import pytest

import shortlist as sl
from shortlist import _core

FOLDER = pathlib.Path(sl.__file__).parent


def test_it_is_the_installed_one(repository):
    assert not FOLDER.is_relative_to(repository / "python")


def test_version_and_devices(repository):
    version = re.search(r"project\(shortlist VERSION ([\d.]+)", (repository / "CMakeLists.txt").read_text())[1]
    assert sl.__version__ == version
    assert sl.devices()[0].name == "cpu" and "core" in sl.devices()[0].description
    assert all(sl.FlatIndex(2, device=device).device == device.name for device in sl.devices())


def test_it_brings_its_libraries_and_nothing_twice():
    libraries = sorted(path.name for path in FOLDER.glob("*.so*"))
    assert "libshortlist.so.0" in libraries and len(libraries) == len({name.split(".")[0] for name in libraries})
    assert (FOLDER / "py.typed").exists() and not any(path.is_symlink() for path in FOLDER.rglob("*"))


@pytest.fixture
def wheel_tag(repository):
    if not shutil.which("readelf"):
        pytest.skip("there is no readelf")
    spec = importlib.util.spec_from_file_location("wheel_tag", repository / "tools/wheel_tag.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_wheel_is_named_after_the_systems_that_it_runs_on(wheel_tag):
    tags = re.findall(r"Tag: (\S+)", importlib.metadata.distribution("shortlist").read_text("WHEEL"))
    major, minor = wheel_tag.glibc_for(FOLDER.glob("*.so*"))
    assert tags and all(f"-manylinux_{major}_{minor}_" in tag for tag in tags)


def test_what_a_library_needs_decides(wheel_tag, monkeypatch):
    for needed, glibc in (
        ({"GLIBC": (2, 14)}, (2, 28)),
        ({"GLIBC": (2, 36), "GLIBCXX": (3, 4, 29)}, (2, 36)),
        ({"GLIBC": (2, 34), "GLIBCXX": (3, 4, 30)}, (2, 35)),
    ):
        monkeypatch.setattr(wheel_tag, "needs", lambda library: needed)
        assert wheel_tag.glibc_for(["one"]) == glibc
    monkeypatch.setattr(wheel_tag, "needs", lambda library: {"GLIBCXX": (3, 4, 99)})
    with pytest.raises(SystemExit, match="one needs a newer libstdc"):
        wheel_tag.glibc_for(["one"])


def test_a_renamed_wheel_says_the_same_inside(wheel_tag, tmp_path):
    wheel = tmp_path / "a-1-cp312-abi3-linux_x86_64.whl"
    with zipfile.ZipFile(wheel, "w") as made:
        made.writestr("a-1.dist-info/WHEEL", "Tag: cp312-abi3-linux_x86_64\n")
        made.writestr("a-1.dist-info/RECORD", "a-1.dist-info/WHEEL,sha256=x,1\na-1.dist-info/RECORD,,\n")
    target = wheel_tag.retagged(wheel, (2, 34))
    assert target.name == "a-1-cp312-abi3-manylinux_2_34_x86_64.whl"
    with zipfile.ZipFile(target) as archive:
        assert archive.namelist() == ["a-1.dist-info/WHEEL", "a-1.dist-info/RECORD"]
        assert archive.read("a-1.dist-info/WHEEL") == b"Tag: cp312-abi3-manylinux_2_34_x86_64\n"
        assert re.search(rb"WHEEL,sha256=[\w-]{43},38\n", archive.read("a-1.dist-info/RECORD"))


@pytest.mark.skipif(len(sl.devices()) > 1, reason="there is a GPU")
def test_without_a_gpu_the_message_says_so():
    with pytest.raises(sl.Unsupported, match="device cuda:0 is not there: ") as raised:
        sl.FlatIndex(4, device="cuda")
    assert isinstance(raised.value, RuntimeError) and sl.FlatIndex(4).device == "cpu"


def test_importing_needs_numpy_alone():
    script = "import shortlist, sys; print({'torch', 'cupy', 'jax', 'ml_dtypes'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()" and done.stderr == ""


def test_the_interpreter_ends_in_silence_with_objects_alive():
    script = """
import threading, shortlist as sl, numpy as np
index = sl.FlatIndex(64); index.add(np.ones((20000, 64), np.float32))
result = index.search(np.ones((1, 64), np.float32))
threading.Thread(target=lambda: [index.search(np.ones((50, 64), np.float32)) for _ in range(200)], daemon=True).start()
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")


def stub_signatures():
    """{name: [signature, ...]} of _core.pyi, without annotations."""
    found = {}
    for node in ast.parse((FOLDER / "_core.pyi").read_text()).body:
        members = node.body if isinstance(node, ast.ClassDef) else [node]
        prefix = f"{node.name}." if isinstance(node, ast.ClassDef) else ""
        for member in members:
            if isinstance(member, ast.FunctionDef):
                found.setdefault(prefix + member.name, []).append(bare_signature(member.args))
    return found


def bare_signature(arguments):
    for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
        each.annotation = None
    return ast.unparse(arguments)


def runtime_signature(function):
    text, _, defaults = function.__nb_signature__[0]
    for i, value in reversed(list(enumerate(defaults or ()))):
        text = text.replace(f"\\{i}", repr(value))
    return bare_signature(ast.parse(text + ": ...").body[0].args)


def test_stubs_say_what_the_module_has():
    stubs = stub_signatures()
    checked = 0
    for name, signatures in stubs.items():
        owner = _core
        for part in name.split("."):
            owner = getattr(owner, part)
        if not hasattr(owner, "__nb_signature__") or name.endswith(("__init__", "__len__")):
            continue
        if name == "sample":  # half of its overloads have no default of `details`, which is True there
            signatures = [text for text in signatures if "details=False" in text]
        assert set(signatures) == {runtime_signature(owner)}, name
        checked += 1
    assert checked >= 10
    public = {name for name in vars(_core) if not name.startswith("_")}
    assert public <= {name.split(".")[0] for name in stubs} | {n for n in public if inspect.isclass(getattr(_core, n))}


def test_everything_public_is_documented():
    for name in sl.__all__:
        if name != "__version__":
            assert inspect.getdoc(getattr(sl, name)), name
    for name, member in vars(sl.FlatIndex).items():
        if not name.startswith("_"):
            assert member.__doc__, name
