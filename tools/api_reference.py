#!/usr/bin/env python3
"""Writes docs/api.md, the reference of the Python package, from its docstrings and stubs.

Signatures come from python/shortlist/*.py and _core.pyi, docstrings from there and from the bindings in python/src, so
that nothing has to be built. `--check` writes nothing and fails where something would change.
"""

import argparse
import ast
import inspect
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/api.md"
PACKAGE = ROOT / "python/shortlist"
MODULES = ["torch", "compat/faiss", "compat/numpy", "compat/langchain"]
HEAD = """# API reference

Written by `./run docs` from the docstrings of the Python package. [python.md](python.md) has examples.
"""
RAW_DOC = re.compile(r'constexpr const char\* (k\w+Doc) =\s*R"\((.*?)\)";', re.DOTALL)
LITERALS = r'((?:"(?:[^"\\]|\\.)*"\s*)+)'
BINDING = re.compile(r'^  (module|c)\.def\w*\(\s*"(\w+)"(.*?)\);\n\n?(?=  \w|\})', re.DOTALL | re.MULTILINE)
CLASS = re.compile(r'nb::class_<\w+> c\(module, "(\w+)", (k\w+Doc)')
ERROR = re.compile(r"make_class\(\s*module, \"(\w+)\",\s*" + LITERALS, re.DOTALL)
SECTION = re.compile(r"(Args|Returns|Raises):$")
ENTRY = re.compile(r"([\w, ]+): (.*)")


def joined(literals):
    return "".join(ast.literal_eval(part) for part in re.findall(r'"(?:[^"\\]|\\.)*"', literals))


def docs_of_bindings():
    """{"top_k": docstring, "FlatIndex.add": docstring, ...} of what C++ binds."""
    found = {}
    for path in sorted((ROOT / "python/src").glob("*.cpp")):
        text = path.read_text(encoding="utf-8")
        raw = dict(RAW_DOC.findall(text))
        owner = CLASS.search(text)
        if owner:
            found[owner[1]] = raw[owner[2]]
        for scope, name, body in BINDING.findall(text):
            last = re.search(r"(?:(k\w+Doc)|" + LITERALS + r")$", body)
            if last and not name.startswith("_"):
                full_name = f"{owner[1]}.{name}" if scope == "c" else name
                found[full_name] = raw[last[1]] if last[1] else joined(last[2])
        found.update({name: joined(literals) for name, literals in ERROR.findall(text)})
    return found


def signature(node, skip_self=False):
    """A function's arguments and result as they are written, on one line."""
    arguments = node.args
    if skip_self and arguments.args:
        arguments.args = arguments.args[1:]
    elif skip_self:
        arguments.posonlyargs = arguments.posonlyargs[1:]
    result = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    return f"({ast.unparse(arguments)}){result}"


def is_decorated(node, name):
    return any(isinstance(d, ast.Name) and d.id == name for d in node.decorator_list)


def prose(docstring):
    """Google's sections as lists; all else as it is."""
    out, section = [], None
    for line in inspect.cleandoc(docstring).splitlines():
        header = SECTION.match(line)
        starts = line.startswith("    ") and not line.startswith("     ")
        argument = ENTRY.match(line.strip()) if section == "Args" and starts else None
        if header:
            section = header[1]
            out += [f"**{section}**", ""]
        elif not line.startswith("    "):
            section = section if not line else None
            out.append(line)
        elif argument:
            out.append(f"- `{argument[1]}`: {argument[2]}")
        else:
            out.append(("- " if section and starts and out[-1] == "" else "  ") + line.strip())
    return out


def entry(level, name, shown, docstring):
    lines = ["#" * level + f" {name}", ""]
    if shown:
        lines += ["```python", shown, "```", ""]
    return [*lines, *prose(docstring or ""), ""]


def chosen_overloads(nodes):
    """{name: node}: of several overloads the first that is not for NumPy's arrays alone."""
    chosen = {}
    for node in nodes:
        before = chosen.get(node.name)
        if before is None or "NDArray" in ast.unparse(before.returns or ast.Constant(None)):
            chosen[node.name] = node
    return chosen


def class_entries(node, docs):
    """A class, its constructor's signature and its public members."""
    members = [member for member in node.body if isinstance(member, ast.FunctionDef)]
    init = next((member for member in members if member.name == "__init__"), None)
    shown = f"{node.name}{signature(init, skip_self=True).removesuffix(' -> None')}" if init else ""
    out = entry(3, node.name, shown, docs.get(node.name) or ast.get_docstring(node))
    fields = [member for member in node.body if isinstance(member, ast.AnnAssign)]
    notes = {
        id(before): ast.literal_eval(after.value)
        for before, after in zip(node.body, node.body[1:])
        if isinstance(before, ast.AnnAssign) and isinstance(after, ast.Expr)
    }
    for field in fields:
        note = notes.get(id(field))
        out.append(f"- `{ast.unparse(field)}`" + (f": {' '.join(note.split())}" if note else ""))
    if fields:
        out.append("")
    for member in chosen_overloads(members).values():
        docstring = docs.get(f"{node.name}.{member.name}") or ast.get_docstring(member)
        if member.name.startswith("_") or member.name == "forward" or not docstring:
            continue
        if is_decorated(member, "property"):
            shown = f"{member.name}: {ast.unparse(member.returns)}" if member.returns else member.name
        else:
            shown = member.name + signature(member, skip_self=not is_decorated(member, "staticmethod"))
        out += entry(4, f"{node.name}.{member.name}", shown, docstring)
    return out


def entries_of(path, docs, names):
    """What `names` lists of a module, in its order."""
    nodes = ast.parse(path.read_text(encoding="utf-8")).body
    found = {node.name: node for node in nodes if isinstance(node, ast.ClassDef)}
    found |= chosen_overloads(node for node in nodes if isinstance(node, ast.FunctionDef))
    out = []
    for name in names:
        node = found.get(name)
        if isinstance(node, ast.ClassDef):
            out += class_entries(node, docs)
        elif node:
            out += entry(3, name, name + signature(node), docs.get(name) or ast.get_docstring(node))
    return out


def public_names(path):
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and node.targets[0].id == "__all__":
            return ast.literal_eval(node.value)
    raise SystemExit(f"{path} has no __all__")


def page():
    docs = docs_of_bindings()
    names = public_names(PACKAGE / "__init__.py")
    lines = [HEAD, "## shortlist", ""]
    lines += entries_of(PACKAGE / "_core.pyi", docs, names) + entries_of(PACKAGE / "_results.py", docs, names)
    for module in MODULES:
        path = PACKAGE / f"{module}.py"
        lines += [f"## shortlist.{module.replace('/', '.')}", ""]
        lines += prose(ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))) + [""]
        lines += entries_of(path, docs, public_names(path))
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).rstrip() + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; fail where something would change")
    made = page()
    if parser.parse_args().check:
        if not PAGE.exists() or PAGE.read_text(encoding="utf-8") != made:
            sys.exit(f"{PAGE.relative_to(ROOT)} is not what the docstrings say")
    else:
        PAGE.write_text(made, encoding="utf-8")


if __name__ == "__main__":
    main()
