"""The rules. Each takes a Tree and yields Findings; tidy_test.py shows a bad sample for each."""
import collections
import os
import re

import cpp_text
import layers

Finding = collections.namedtuple("Finding", "path line rule message")

LINES_MAX = 800
TEST_LINES_MAX = 1200
FUNCTION_LINES_MAX = 75  # 70 and a long signature.
TREE_BYTES_MAX = 24 << 20
FILE_BYTES_MAX = 5 << 19  # 2.5 MiB

CODE = (".h", ".cc", ".cu", ".cuh")
TEXT = (*CODE, ".py", ".proto", ".cmake", ".md", ".txt", ".json", ".yaml", ".yml", ".sh", "")
# Files whose subject is the banned thing.
SELF = "tests/tidy/"


# Besides tests themselves, what only tests include.
TEST_SUFFIXES = ("_test.cc", "_test.py", "_testing.cc", "_testing.h", "_harness.cc", "_harness.h",
                 "_conformance.cc", "_conformance.h")


def is_test(path):
    name = os.path.basename(path)
    return (name.endswith(TEST_SUFFIXES)
            or path.startswith("tests/") or "/testing/" in path or name.startswith("test_"))


def is_development_only(path):
    return is_test(path) or path.endswith(("_bench.cc", "_fuzz.cc")) or path.startswith("bench/")


def within(path, folders):
    return any(path == f or path.startswith(f + "/") for f in folders)


def layer_of(path, table):
    """The longest folder of `table` that holds `path`; None when there is none."""
    best = None
    for folder in table:
        if within(path, (folder,)) and (best is None or len(folder) > len(best)):
            best = folder
    return best


INCLUDE = re.compile(r'^\s*#\s*include\s+[<"]([^>"]+)[>"]')


def includes(tree, path):
    for number, line in enumerate(tree.text(path).splitlines(), 1):
        match = INCLUDE.match(line)
        if match:
            yield number, match.group(1)


def is_generated(include):
    return include.endswith(".pb.h") and within(include, layers.GENERATED_ROOTS)


def include_graph(tree):
    for path in tree.paths(CODE):
        own = layer_of(path, layers.LAYERS)
        if own is None:
            yield Finding(path, 1, "layers", "in no layer of tests/tidy/layers.py")
            continue
        allowed = layers.LAYERS[own]
        for number, include in includes(tree, path):
            if is_generated(include):
                ok = "proto" in allowed or is_test(path)
            elif layer_of(include, layers.LAYERS) is None:
                continue  # The system's or a third party's.
            else:
                ok = within(include, (own, *allowed))
                ok = ok or (is_development_only(path) and within(include, ("tests",)))
            if not ok:
                yield Finding(path, number, "layers", f"{own}/ may not include '{include}'")


def is_test_support(tree, path):
    """A header, or the source of a header, that only tests include."""
    header = os.path.splitext(path)[0] + ".h"
    own = (header, header[:-2] + ".cc")
    users = [p for p in tree.paths(CODE)
             if p not in own and any(include == header for _, include in includes(tree, p))]
    return bool(users) and all(is_test(user) or
                               (user.endswith(".h") and is_test_support(tree, user))
                               for user in users)


def third_parties(tree):
    for path in tree.paths(CODE):
        for number, include in includes(tree, path):
            first = include.split("/")[0]
            name = layers.THIRD_PARTY_ALIASES.get(first, first)
            if name not in layers.THIRD_PARTIES or is_generated(include):
                continue
            rooms = layers.THIRD_PARTIES[name]
            if not within(path, rooms):
                yield Finding(path, number, "third-party",
                              f"'{include}' belongs in {', '.join(rooms)} only")
            elif name in layers.SOURCES_ONLY and path.endswith(".h") and not is_test(path):
                yield Finding(path, number, "third-party", f"'{include}' in a header")
        for number, include in includes(tree, path):
            if include.split("/")[0] in ("gtest", "gmock", "benchmark") and \
                    not is_development_only(path) and not is_test_support(tree, path):
                yield Finding(path, number, "third-party", f"'{include}' outside of tests")


def generated_code(tree):
    for path in tree.paths(CODE):
        parts = path.split("/")
        if within(path, layers.GENERATED_OK) or is_test(path):
            continue
        if any(p in layers.GENERATED_OK_PARTS or p.split(".")[0] in layers.GENERATED_OK_PARTS
               for p in parts):
            continue
        for number, include in includes(tree, path):
            if include.endswith(".pb.h"):
                yield Finding(path, number, "generated",
                              f"'{include}': protobuf ends at service/ and convert/")


Ban = collections.namedtuple("Ban", "name pattern instead allowed tests_too")

BANS = [
    Ban("mutex", r"\bstd::(recursive_|shared_|timed_)*mutex\b|\bstd::(lock_guard|unique_lock|"
        r"scoped_lock|shared_lock)\b|\babsl::Mutex(Lock)?\b", "common/base/mutex.h",
        ("common/base/mutex.h",), True),
    Ban("condition-variable", r"\bstd::condition_variable(_any)?\b|\babsl::CondVar\b",
        "CondVar of common/base/mutex.h", ("common/base/mutex.h",), True),
    Ban("device-synchronize", r"\bcudaDeviceSynchronize\b", "stream events", (), True),
    Ban("new", r"\bnew\b(?!\s*\()", "std::make_unique", (), True),
    Ban("delete", r"(?<!=)(?<!= )\bdelete\b(?!\s*;)|\bdelete\s+this\b", "std::unique_ptr", (), True),
    Ban("sleep", r"\bsleep_(for|until)\b|\bu?sleep\s*\(|\bnanosleep\b",
        "a wait with a condition and a deadline", (), False),
    Ban("throw", r"\bthrow\b", "absl::Status", (), True),
    Ban("wall-clock", r"\bsystem_clock\b|\bgettimeofday\b|\bCLOCK_REALTIME\b|\bstd::time\s*\(|"
        r"\babsl::Now\s*\(", "Clock (monotonic)", (), True),
    Ban("std-format", r"\bstd::(format|expected|print)\b", "absl::StrCat, absl::StatusOr", (), True),
    Ban("using-namespace", r"\busing\s+namespace\b", "names", (), True),
    Ban("pragma-once", r"#\s*pragma\s+once\b", "an include guard", (), True),
    Ban("if-0", r"^\s*#\s*if\s+0\b", "deleting it", (), True),
    Ban("assert", r"\bassert\s*\(", "CHECK or DCHECK", (), True),
]
NOLINT = re.compile(r"NOLINT\((?:[\w,-]*\b)?banned-([\w-]+)[^)]*\)(?::\s*(\S.*))?")


def banned_names(tree):
    for path in tree.paths(CODE):
        raw = tree.text(path).splitlines()
        code = tree.code(path).splitlines()
        for number, (line, source) in enumerate(zip(code, raw), 1):
            if INCLUDE.match(line):
                continue
            excused = {m.group(1): m.group(2) for m in NOLINT.finditer(source)}
            for ban in BANS:
                if within(path, ban.allowed) or (is_development_only(path) and not ban.tests_too):
                    continue
                if not re.search(ban.pattern, line):
                    continue
                # One reason serves both halves of an ownership that a library takes over.
                key = "new" if ban.name == "delete" and "new" in excused else ban.name
                if excused.get(key):
                    continue
                yield Finding(path, number, f"banned-{ban.name}",
                              f"use {ban.instead} (or NOLINT(banned-{ban.name}): reason)")


def unfinished(tree):
    pattern = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
    for path in tree.paths((*CODE, ".py", ".proto", ".cmake", ".sh", "")):
        if path.startswith(SELF) or os.path.basename(path) == "LICENSE":
            continue
        for number, line in enumerate(tree.text(path).splitlines(), 1):
            match = pattern.search(line)
            if match:
                yield Finding(path, number, "unfinished", f"{match.group(1)}: do it or file it")


def file_sizes(tree):
    for path in tree.paths((*CODE, ".py", ".proto", ".cmake", ".sh", "")):
        if os.path.basename(path) == "LICENSE":
            continue
        lines = tree.text(path).count("\n")
        limit = TEST_LINES_MAX if is_test(path) else LINES_MAX
        if lines > limit:
            yield Finding(path, 1, "lines", f"{lines} lines, at most {limit}: split it")
    total = 0
    for path in tree.all_paths():
        size = tree.size(path)
        total += size
        if size > FILE_BYTES_MAX:
            yield Finding(path, 1, "bytes", f"{size} bytes, at most {FILE_BYTES_MAX} in a file")
    if total > TREE_BYTES_MAX:
        yield Finding(".", 1, "bytes", f"{total} bytes tracked, at most {TREE_BYTES_MAX}")


TYPE = re.compile(r"\b(class|struct|enum|union)\b[^()]*$")


def top_level(code):
    """(first line number, lines) of what stands at namespace level, as clang-format lays it out: from
    a line in column 0 to the next that closes a brace or ends a declaration there."""
    start, lines = 0, []
    for number, line in enumerate(code.splitlines(), 1):
        at_margin = bool(line[:1].strip())
        if not lines:
            if not at_margin or line.startswith(("}", "#", "namespace", "extern")):
                continue
            start = number
        lines.append(line)
        if at_margin and (line.startswith("}") or line.rstrip().endswith(";")):
            yield start, lines
            lines = []


def function_lengths(tree):
    for path in tree.paths((".cc", ".cu")):
        if is_development_only(path):
            continue
        for start, lines in top_level(tree.code(path)):
            head = "\n".join(lines).split("{")[0]
            is_function = "(" in head and not any(TYPE.search(line) for line in head.split("\n"))
            if is_function and len(lines) > FUNCTION_LINES_MAX:
                yield Finding(path, start, "function-lines",
                              f"{len(lines)} lines, at most {FUNCTION_LINES_MAX}")


def disabled_tests(tree):
    cpp = re.compile(r"\bDISABLED_\w+|\bGTEST_SKIP\(\)\s*;")
    cmake = re.compile(r"^\s*#\s*(baton_test|add_test|baton_fuzzer|add_subdirectory)\s*\(")
    python = re.compile(r"@pytest\.mark\.(skip\b|xfail\b)|@unittest\.skip\b")
    for path in tree.paths((*CODE, ".txt", ".cmake", ".py")):
        if path.startswith((SELF, "cmake/")):
            continue
        name = os.path.basename(path)
        if path.endswith(CODE):
            pattern, lines = cpp, tree.code(path).splitlines()
        elif name == "CMakeLists.txt" or path.endswith(".cmake"):
            pattern, lines = cmake, tree.text(path).splitlines()
        elif path.endswith(".py"):
            pattern, lines = python, tree.text(path).splitlines()
        else:
            continue
        for number, line in enumerate(lines, 1):
            if pattern.search(line):
                yield Finding(path, number, "disabled-test",
                              "a test that does not run is worse than none: fix it, delete it, or "
                              "skip at run time with a reason")


def header_guards(tree):
    for path in tree.paths((".h", ".cuh")):
        if path.endswith("-inl.h"):
            continue  # Highway's own toggling guards (foreach_target.h).
        guard = "BATON_" + re.sub(r"[/.\-]", "_", path).upper() + "_"
        text = tree.text(path)
        if f"#ifndef {guard}\n#define {guard}\n" not in text or f"#endif  // {guard}\n" not in text:
            yield Finding(path, 1, "header-guard", f"needs #ifndef, #define and #endif  // {guard}")


def machine_paths(tree):
    pattern = re.compile(r"(?<![\w.])/(work|root|home|Users|opt)/\w")
    for path in tree.paths(TEXT):
        if path.startswith(SELF) or path.endswith((".json",)):
            continue
        for number, line in enumerate(tree.text(path).splitlines(), 1):
            if pattern.search(line):
                yield Finding(path, number, "machine-path", "a path of one machine")


def listed_sources(tree):
    """Every source is named in the CMakeLists.txt of its folder or of one above it."""
    for path in tree.paths((".cc", ".cu", ".proto")):
        folder = os.path.dirname(path)
        up = folder
        while True:
            cmake = f"{up}/CMakeLists.txt".lstrip("/")
            if tree.has(cmake):
                name = os.path.relpath(path, up or ".")
                words = re.findall(r"[\w./+-]+", re.sub(r"#.*", "", tree.text(cmake)))
                if name in words:
                    break
            if not up:
                yield Finding(path, 1, "not-built", "no CMakeLists.txt lists this file")
                break
            up = os.path.dirname(up)


def cmake_rules(tree):
    for path in tree.all_paths():
        if os.path.basename(path) != "CMakeLists.txt" and not path.endswith(".cmake"):
            continue
        for number, line in enumerate(tree.text(path).splitlines(), 1):
            code = line.split("#")[0]
            if re.search(r"\bGLOB(_RECURSE)?\b", code):
                yield Finding(path, number, "banned-glob", "list the sources by name")
            own = not path.startswith(("cmake/", "proto/"))
            # Generated code (name_pb) is not held to our warnings.
            if own and re.search(r"\badd_(library|executable)\s*\((?!\w+_pb\b)", code):
                yield Finding(path, number, "cmake-helper", "use the helpers of cmake/")


def hygiene(tree):
    for path in tree.paths((*CODE, ".py", ".proto", ".cmake", ".md", ".yaml", ".yml", ".sh", "")):
        if "corpus" in path or "testdata" in path:
            continue
        text = tree.text(path)
        if text and not text.endswith("\n"):
            yield Finding(path, text.count("\n") + 1, "hygiene", "no newline at the end")
        for number, line in enumerate(text.split("\n"), 1):
            if line != line.rstrip():
                yield Finding(path, number, "hygiene", "white space at the end of the line")
            if "\t" in line and not path.startswith("LICENSE"):
                yield Finding(path, number, "hygiene", "a tab")


def file_names(tree):
    for path in tree.paths(CODE):
        name = os.path.basename(path)
        if not re.fullmatch(r"[a-z0-9_]+(-inl)?\.(h|cc|cu|cuh)", name):
            yield Finding(path, 1, "file-name", "file names are lower snake case")
        if re.search(r"(^|_)(utils?|helpers?|misc|fast|new|v2|manager2)(_|\.)", name):
            yield Finding(path, 1, "file-name", "names say what is inside, not that it is useful")


METRIC = re.compile(r"constexpr MetricDefinition (k\w+)\s*\{(.*?)\};", re.S)
ROW = re.compile(r"^\| `([a-z0-9_]+)` \| (\w+) \|([^|]*)\|", re.M)


def metric_definitions(text):
    """name -> (constant, type, labels) of canonical.h."""
    arrays = dict(re.findall(r"constexpr absl::string_view (k\w+)\[\] = \{([^}]*)\};", text))
    found = {}
    for constant, body in METRIC.findall(text):
        name = re.search(r'\.name = "([^"]+)"', body)
        kind = re.search(r"MetricType::k(\w+)", body)
        label_array = re.search(r"\.labels = (k\w+)", body)
        labels = re.findall(r'"([^"]+)"', arrays.get(label_array.group(1), "")) \
            if label_array else []
        if name and kind:
            found[name.group(1)] = (constant, kind.group(1).lower(), labels)
    return found


def metrics_documented(tree):
    header, page = "common/metrics/canonical.h", "docs/metrics.md"
    if not tree.has(header) or not tree.has(page):
        return
    defined = metric_definitions(tree.text(header))
    rows = {name: (kind, [label.strip() for label in labels.split(",") if label.strip()])
            for name, kind, labels in ROW.findall(tree.text(page))}
    for name, (constant, kind, labels) in defined.items():
        if name not in rows:
            yield Finding(page, 1, "metrics", f"{name} ({header}) is not documented")
        elif rows[name] != (kind, labels):
            yield Finding(page, 1, "metrics", f"{name} is a {kind} with labels {labels}, not "
                          f"a {rows[name][0]} with {rows[name][1]}")
    for name in rows.keys() - defined.keys():
        yield Finding(page, 1, "metrics", f"{name} is documented but not in {header}")
    sources = [p for p in tree.paths((".cc", ".h")) if p != header and not is_test(p)]
    used = set()
    for path in sources:
        used |= set(re.findall(r"\b(k[A-Z]\w+)\b", tree.code(path)))
        if not within(path, ("common/metrics",)):
            for number, line in enumerate(tree.text(path).splitlines(), 1):
                if re.search(r'\.name = "(baton|process)_', line):
                    yield Finding(path, number, "metrics", f"define metrics in {header}")
    for name, (constant, _, _) in defined.items():
        if constant not in used:
            yield Finding(header, 1, "metrics", f"{name} ({constant}) is registered nowhere")


ALL = [include_graph, third_parties, generated_code, banned_names, unfinished, file_sizes,
       function_lengths, disabled_tests, header_guards, machine_paths, listed_sources, cmake_rules, hygiene,
       file_names, metrics_documented]
