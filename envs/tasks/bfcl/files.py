"""GorillaFileSystem: a tree of files with a working directory."""

from collections.abc import Iterator, Mapping
from copy import deepcopy
from itertools import zip_longest
from typing import Any, Literal, Union, cast

import msgspec

from agentrl.envs.tasks.bfcl.api import Answer, RefusedError

Tree = dict[str, Union[str, "Tree"]]  # a text is a file's content

MAX_NODES = 1000  # files and directories, so that copies of copies stay small
MAX_DEPTH = 50  # of directories in each other
MAX_CHARACTERS = 1_000_000  # in all files
_UNITS = ("B", "KB", "MB", "GB")
_COUNTED = {"l": "lines", "w": "words", "c": "characters"}


class Node(msgspec.Struct, frozen=True):
    """A file or a directory, as the benchmark writes it."""

    type: Literal["file", "directory"]
    content: str = ""
    contents: dict[str, "Node"] = {}


class Config(msgspec.Struct, frozen=True):
    """`root`: the first entry is the root directory, and where the conversation starts."""

    root: dict[str, Node] = {}


class Files:
    """An Api. The working directory is no part of the state, as published."""

    def __init__(self, config: Config) -> None:
        self._name, top = next(iter(config.root.items()), ("", Node("directory")))
        self._root: Tree = {name: _loaded(node) for name, node in top.contents.items()}
        self._path: list[str] = []

    def state(self) -> Tree:
        return self._root

    def pwd(self) -> Answer:
        """Return the path of the current working directory."""
        return {"current_working_directory": "/" + "/".join([self._name, *self._path])}

    def ls(self, a: bool = False) -> Answer:
        """List the current directory. a: show hidden files and directories too."""
        shown = [name for name in self._here() if a or not name.startswith(".")]
        return {"current_directory_content": shown}

    def cd(self, folder: str) -> Answer:
        """Change to a folder of the current directory, or to '..'; one level at a time."""
        if folder == "..":
            if not self._path:
                raise RefusedError("cd: this is the root directory")
            self._path.pop()
        elif folder != ".":
            self._directory("cd", folder)
            self._path.append(folder)
        return self.pwd()

    def mkdir(self, dir_name: str) -> Answer:
        """Create a directory in the current directory."""
        self._add("mkdir", dir_name, {})
        return {}

    def touch(self, file_name: str) -> Answer:
        """Create an empty file in the current directory. No path is allowed."""
        self._add("touch", file_name, "")
        return {}

    def echo(self, content: str, file_name: str | None = None) -> Answer:
        """Write content to a file of the current directory, or display it without a file name."""
        if file_name is None:
            return {"terminal_output": content}
        if isinstance(self._here().get(file_name), dict):
            raise RefusedError(f"echo: {file_name} is a directory")
        former = self._here().pop(file_name, None)
        try:
            self._add("echo", file_name, content)
        except RefusedError:
            if former is not None:
                self._here()[file_name] = former
            raise
        return {"terminal_output": None}

    def cat(self, file_name: str) -> Answer:
        """Display the content of a file of the current directory. No path is allowed."""
        return {"file_content": self._file("cat", file_name)}

    def grep(self, file_name: str, pattern: str) -> Answer:
        """Find the lines of a file of the current directory that contain the pattern."""
        lines = self._file("grep", file_name).splitlines()
        return {"matching_lines": [line for line in lines if pattern in line]}

    def sort(self, file_name: str) -> Answer:
        """Show the lines of a file of the current directory sorted; the file stays as it is."""
        lines = self._file("sort", file_name).splitlines()
        return {"sorted_content": "\n".join(sorted(lines))}

    def tail(self, file_name: str, lines: int = 10) -> Answer:
        """Show the last lines of a file of the current directory."""
        if lines < 1:
            raise RefusedError("tail: lines is at least 1")
        last = self._file("tail", file_name).splitlines()[-lines:]
        return {"last_lines": "\n".join(last)}

    def wc(self, file_name: str, mode: str = "l") -> Answer:
        """Count the lines (mode l), words (w) or characters (c) of a file."""
        if mode not in _COUNTED:
            raise RefusedError("wc: mode is l, w or c")
        text = self._file("wc", file_name)
        counts = {"l": len(text.splitlines()), "w": len(text.split()), "c": len(text)}
        return {"count": counts[mode], "type": _COUNTED[mode]}

    def diff(self, file_name1: str, file_name2: str) -> Answer:
        """Compare two files of the current directory line by line."""
        first, second = (self._file("diff", name) for name in (file_name1, file_name2))
        told: list[str] = []  # place by place: aligned, an agent's files could take minutes
        for one, other in zip_longest(first.splitlines(), second.splitlines()):
            if one != other:
                told += [] if one is None else [f"- {one}"]
                told += [] if other is None else [f"+ {other}"]
        return {"diff_lines": "\n".join(told)}

    def find(self, path: str = ".", name: str | None = None) -> Answer:
        """Find files and directories under a path, at any depth, whose names contain a name."""
        top = self._here()
        for part in path.split("/"):
            if part not in ("", "."):
                inner = top.get(part)
                if not isinstance(inner, dict):
                    raise RefusedError(f"find: {path}: no such directory")
                top = inner
        found = [each for each in _paths(top) if name is None or name in each.rpartition("/")[2]]
        return {"matches": [f"{path.rstrip('/')}/{each}" for each in found]}

    def du(self, human_readable: bool = False) -> Answer:
        """Tell how much the current directory and all in it hold."""
        size = float(_size(self._here()))
        if not human_readable:
            return {"disk_usage": f"{size:.0f} bytes"}
        unit = 0
        while size >= 1024 and unit < len(_UNITS) - 1:
            size, unit = size / 1024, unit + 1
        return {"disk_usage": f"{size:.2f} {_UNITS[unit]}"}

    def cp(self, source: str, destination: str) -> Answer:
        """Copy a file or directory of the current directory, into a directory or to a new name."""
        node = deepcopy(self._named("cp", source))
        self._put("cp", source, node, destination)
        return {"result": f"{source} copied to {destination}"}

    def mv(self, source: str, destination: str) -> Answer:
        """Move a file or directory of the current directory, into a directory or to a new name."""
        node = self._named("mv", source)
        if source == destination:
            raise RefusedError(f"mv: {source}: is there already")
        del self._here()[source]
        try:
            self._put("mv", source, node, destination)
        except RefusedError:
            self._here()[source] = node
            raise
        return {"result": f"{source} moved to {destination}"}

    def rm(self, file_name: str) -> Answer:
        """Remove a file or directory of the current directory."""
        self._named("rm", file_name)
        del self._here()[file_name]
        return {"result": f"{file_name} removed"}

    def rmdir(self, dir_name: str) -> Answer:
        """Remove an empty directory of the current directory."""
        if self._directory("rmdir", dir_name):
            raise RefusedError(f"rmdir: {dir_name}: directory not empty")
        del self._here()[dir_name]
        return {"result": f"{dir_name} removed"}

    def _full(self) -> bool:
        top = self._root
        return _count(top) > MAX_NODES or _depth(top) > MAX_DEPTH or _size(top) > MAX_CHARACTERS

    def _here(self) -> Tree:
        tree = self._root
        for name in self._path:
            tree = cast(Tree, tree[name])  # the path holds directories alone
        return tree

    def _named(self, verb: str, name: str) -> "str | Tree":
        if name not in self._here():
            raise RefusedError(f"{verb}: {name}: no such file or directory")
        return self._here()[name]

    def _file(self, verb: str, name: str) -> str:
        node = self._named(verb, name)
        if isinstance(node, dict):
            raise RefusedError(f"{verb}: {name}: is a directory")
        return node

    def _directory(self, verb: str, name: str) -> Tree:
        node = self._named(verb, name)
        if isinstance(node, str):
            raise RefusedError(f"{verb}: {name}: not a directory")
        return node

    def _put(self, verb: str, source: str, node: "str | Tree", destination: str) -> None:
        into = self._here().get(destination)
        if isinstance(into, dict):
            self._add(verb, source, node, into)
        else:
            self._add(verb, destination, node)

    def _add(self, verb: str, name: str, node: "str | Tree", into: Tree | None = None) -> None:
        """To a directory, the current one by default. Raises RefusedError."""
        tree = self._here() if into is None else into
        if name in ("", ".", "..") or "/" in name:
            raise RefusedError(f"{verb}: {name!r}: no path is allowed")
        if name in tree:
            raise RefusedError(f"{verb}: {name}: is there already")
        tree[name] = node
        if self._full():
            del tree[name]
            raise RefusedError(f"{verb}: the disk is full")


def read(config: Mapping[str, Any]) -> Files:
    """Raises msgspec.ValidationError. Keys that it does not know are passed over."""
    files = Files(msgspec.convert(config, Config))
    if _depth(files.state()) > MAX_DEPTH:
        raise msgspec.ValidationError(f"more than {MAX_DEPTH} directories in each other")
    return files


def _loaded(node: Node) -> "str | Tree":
    if node.type == "file":
        return node.content
    return {name: _loaded(inner) for name, inner in node.contents.items()}


def _paths(tree: Tree, above: str = "") -> Iterator[str]:
    for name, node in tree.items():
        yield above + name
        if isinstance(node, dict):
            yield from _paths(node, f"{above}{name}/")


def _count(tree: Tree) -> int:
    return sum(1 + (_count(node) if isinstance(node, dict) else 0) for node in tree.values())


def _depth(tree: Tree) -> int:
    return 1 + max((_depth(node) for node in tree.values() if isinstance(node, dict)), default=0)


def _size(tree: Tree) -> int:
    return sum(_size(node) if isinstance(node, dict) else len(node) for node in tree.values())
