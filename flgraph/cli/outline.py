"""What classes of the package take, read from their source: help and typos need not wait until torch is imported."""

from __future__ import annotations

import ast
import re
import typing
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from docstring_parser import google

_ROOT = Path(__file__).parents[1]
_NEUTRAL = {"ABC", "Protocol", "object", "Generic"}
"""Base classes that take nothing."""
_NAMES: dict[str, Any] = {
    **{name: getattr(typing, name) for name in ("Any", "Literal", "Optional", "Union")},
    **{kind.__name__: kind for kind in (int, float, str, bool, list, dict, tuple)},
    **{"Callable": Callable, "Collection": Collection, "Mapping": Mapping, "Sequence": Sequence},
}


@dataclass(frozen=True)
class Field:
    """An argument of a class.

    Args:
        name: its name.
        annotation: its type as written; empty where there is none.
        default: its default as written; ``None`` where it must be given.
        help: what the docstring says of it.
        module: where it is written, and names of its annotation are known.
    """

    name: str
    annotation: str
    default: str | None
    help: str
    module: str

    @property
    def type(self) -> Any:
        """Its type where that is made of Python's own; ``Any`` where it is a class of the package or elsewhere."""
        try:
            return eval(self.annotation or "Any", _Names(self.module))
        except Exception:  # whatever an annotation may be made of
            return Any


@dataclass(frozen=True)
class Outline:
    """A class, as far as its source tells.

    Args:
        path: import path of the class where it is defined.
        summary: the first line of its docstring.
        fields: its arguments by name, those handed on to base classes included.
        complete: whether these are all; not so where a base class is none of the package's.
        bases: names of all classes that it derives from, as far as they are the package's.
        abstract: methods that it leaves to classes that derive from it.
    """

    path: str
    summary: str
    fields: Mapping[str, Field]
    complete: bool
    bases: frozenset[str]
    abstract: frozenset[str]


@cache
def outline(path: str) -> Outline | None:
    """The class of this import path; ``None`` if the package has none.

    >>> outline("flgraph.callbacks.FedProx").fields["mu"].default
    '0.01'
    """
    found = _find(path)
    if found is None:
        return None
    module, node = found
    fields, complete = _fields(module, node)
    summary = plain((ast.get_docstring(node) or "").partition("\n\n")[0])
    return Outline(f"{module}.{node.name}", summary, fields, complete, *_bases(module, node))


@cache
def exported(module: str) -> tuple[str, ...]:
    """Names in ``__all__`` of a module of the package that are classes."""
    tree = _tree(module)
    lists = (
        [part.value for part in tree.body if isinstance(part, ast.Assign) and _target(part) == "__all__"]
        if tree
        else []
    )
    names = [name for value in lists for name in ast.literal_eval(value)]
    return tuple(name for name in names if _find(f"{module}.{name}"))


@cache
def _tree(module: str) -> ast.Module | None:
    first, *parts = module.split(".")
    if first != _ROOT.name:
        return None
    folder = _ROOT.joinpath(*parts)
    file = next((file for file in (folder / "__init__.py", folder.with_suffix(".py")) if file.is_file()), None)
    return None if file is None else ast.parse(file.read_text(encoding="utf-8"))


def _find(path: str) -> tuple[str, ast.ClassDef] | None:
    """The class's definition and its module, imports followed."""
    module, _, name = path.rpartition(".")
    for part in tree.body if (tree := _tree(module)) else ():
        if isinstance(part, ast.ClassDef) and part.name == name:
            return module, part
    origin = _imported(module, name)
    return None if origin is None else _find(origin)


def _imported(module: str, name: str) -> str | None:
    """Where a module has a name from."""
    tree = _tree(module)
    for part in ast.walk(tree) if tree else ():
        if isinstance(part, ast.ImportFrom) and part.module and not part.level:
            for alias in part.names:
                if (alias.asname or alias.name) == name:
                    return f"{part.module}.{alias.name}"
    return None


def _fields(module: str, node: ast.ClassDef) -> tuple[dict[str, Field], bool]:
    init = next((part for part in node.body if isinstance(part, ast.FunctionDef) and part.name == "__init__"), None)
    told = _told(node) | (_told(init) if init else {})
    own: dict[str, Field] = {}

    def add(name: str, annotation: ast.expr | None, default: ast.expr | None) -> None:
        written = "" if annotation is None else ast.unparse(annotation)
        given = None if default is None else ast.unparse(default)
        own[name] = Field(name, written, given, told.get(name, ""), module)

    if init is not None:
        args = init.args
        named = args.args[1:]
        defaults = [None] * (len(named) - len(args.defaults)) + list(args.defaults)
        for argument, default in [
            *zip(named, defaults, strict=True),
            *zip(args.kwonlyargs, args.kw_defaults, strict=True),
        ]:
            add(argument.arg, argument.annotation, default)
        if args.kwarg is None:
            return own, True
    elif any(ast.unparse(decorator).startswith("dataclass") for decorator in node.decorator_list):
        for part in node.body:
            if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name):
                add(part.target.id, part.annotation, part.value)
    complete = True
    for name, found in _direct_bases(module, node):
        if found is None:
            complete = complete and name.rpartition(".")[2] in _NEUTRAL
            continue
        inherited, whole = _fields(*found)
        own = {**inherited, **own}
        complete = complete and whole
    return own, complete


def _direct_bases(module: str, node: ast.ClassDef) -> Iterator[tuple[str, tuple[str, ast.ClassDef] | None]]:
    """As written, and their definitions where the package has them."""
    for base in node.bases:
        name = ast.unparse(base).partition("[")[0]
        yield name, _find(_imported(module, name) or f"{module}.{name}")


def _bases(module: str, node: ast.ClassDef) -> tuple[frozenset[str], frozenset[str]]:
    """See :class:`Outline`."""
    names, abstract = frozenset[str](), frozenset[str]()
    for name, found in _direct_bases(module, node):
        further = _bases(*found) if found else (frozenset[str](), frozenset[str]())
        names, abstract = names | {name} | further[0], abstract | further[1]
    own = {part.name: map(ast.unparse, part.decorator_list) for part in node.body if isinstance(part, ast.FunctionDef)}
    left = {name for name, decorators in own.items() if "abstractmethod" in decorators}
    return names, abstract - own.keys() | left


def _told(node: ast.ClassDef | ast.FunctionDef) -> dict[str, str]:
    """What a docstring says of each argument."""
    parsed = google.parse(ast.get_docstring(node) or "")
    return {argument.arg_name: plain(argument.description or "") for argument in parsed.params}


def plain(text: str) -> str:
    """Without the markup of docstrings.

    >>> plain("see :class:`~flgraph.nn.GCN`, ``None`` for none")
    'see GCN, None for none'
    """
    text = re.sub(r":\w+:`~?(?:[\w.]+\.)?(\w+)`", r"\1", text)
    return " ".join(text.replace("``", "").split())


def _target(part: ast.Assign) -> str:
    return ast.unparse(part.targets[0])


class _Names(dict[str, Any]):
    """Names in annotations of a module: Python's, and aliases such as ``Optimizer = Literal["adam", "sgd"]``."""

    def __init__(self, module: str) -> None:
        super().__init__(_NAMES)
        self.module = module

    def __missing__(self, name: str) -> Any:
        tree = _tree(self.module)
        for part in tree.body if tree else ():
            if isinstance(part, ast.Assign) and _target(part) == name:
                return eval(ast.unparse(part.value), _Names(self.module))
        module, _, origin = (_imported(self.module, name) or "").rpartition(".")
        if not _tree(module):
            raise KeyError(name)
        return _Names(module)[origin]
