"""Checks the sources of the repository against the rules that no compiler knows (rules.py).

    python3 tests/tidy/tidy.py [RULE-PREFIX]

Exit code 1 and one line a finding when a rule is broken. Needs Python 3 and git, nothing else.
"""
import os
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import cpp_text  # noqa: E402
import rules  # noqa: E402


class Tree:
    """The files that git tracks, or would track."""

    def __init__(self, root):
        self._root = pathlib.Path(root)
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=root, check=True, capture_output=True).stdout.decode().split("\0")
        self._paths = sorted(p for p in set(listed) if p and (self._root / p).is_file())
        self._texts = {}
        self._code = {}

    def all_paths(self):
        return self._paths

    def paths(self, extensions):
        return [p for p in self._paths if os.path.splitext(p)[1] in extensions
                and not self._is_binary(p)]

    def has(self, path):
        return path in self._paths

    def size(self, path):
        return (self._root / path).stat().st_size

    def text(self, path):
        if path not in self._texts:
            self._texts[path] = self._read(path)
        return self._texts[path]

    def code(self, path):
        if path not in self._code:
            self._code[path] = cpp_text.strip(self.text(path))
        return self._code[path]

    def _read(self, path):
        return (self._root / path).read_bytes().decode("utf-8", errors="replace")

    def _is_binary(self, path):
        with open(self._root / path, "rb") as file:
            return b"\0" in file.read(4096)


def check(tree, prefix=""):
    findings = [f for rule in rules.ALL for f in rule(tree) if f.rule.startswith(prefix)]
    return sorted(findings)


def main():
    root = pathlib.Path(__file__).resolve().parents[2]
    tree = Tree(root)
    findings = check(tree, sys.argv[1] if len(sys.argv) > 1 else "")
    for finding in findings:
        print(f"{finding.path}:{finding.line}: [{finding.rule}] {finding.message}")
    print(f"tidy: {len(tree.all_paths())} files, {len(findings)} findings")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
