"""The rules of tidy, each shown on a sample that breaks it and on one that does not."""
import os
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import cpp_text  # noqa: E402
import rules  # noqa: E402


class FakeTree:
    """Files from a dictionary; `sizes` overrides the sizes of some."""

    def __init__(self, files, sizes=None):
        self._files = files
        self._sizes = sizes or {}

    def all_paths(self):
        return sorted(self._files)

    def paths(self, extensions):
        return [p for p in sorted(self._files) if os.path.splitext(p)[1] in extensions]

    def has(self, path):
        return path in self._files

    def size(self, path):
        return self._sizes.get(path, len(self._files[path]))

    def text(self, path):
        return self._files[path]

    def code(self, path):
        return cpp_text.strip(self._files[path])


def found(rule, files, sizes=None):
    """(path, line, rule) of what `rule` finds."""
    return [(f.path, f.line, f.rule) for f in rule(FakeTree(files, sizes))]


class CppText(unittest.TestCase):
    def test_comments_and_literals_go_and_lines_stay(self):
        source = 'int a = 1\'000; // throw\n/* new\n new */ f("throw \\" new", \'"\');\nR"(throw)";\n'
        code = cpp_text.strip(source)
        self.assertEqual(code.count("\n"), source.count("\n"))
        self.assertNotIn("throw", code)
        self.assertNotIn("new", code)
        self.assertIn("1'000;", code)
        self.assertIn("f(", code)

    def test_raw_strings_with_delimiters_end_where_they_end(self):
        code = cpp_text.strip('auto x = R"re(a)" throw)re"; throw;\n')
        self.assertEqual(code.count("throw"), 1)


class IncludeGraph(unittest.TestCase):
    def one(self, path, include):
        return found(rules.include_graph, {path: f'#include "{include}"\n'})

    def test_lower_layers_do_not_know_higher_ones(self):
        for path, include in [
                ("common/base/a.h", "kernels/norm/norm.h"), ("kernels/a/a.cc", "device/device.h"),
                ("device/cpu/a.cc", "engine/model/model.h"), ("engine/a/a.cc", "common/rpc/server.h"),
                ("engine/a/a.cc", "kernels/norm/norm.h"), ("engine/a/a.cc", "kvtransfer/transfer.h"),
                ("kvtransfer/a.cc", "engine/kvcache/block_pool.h"),
                ("kvtransfer/a.cc", "kernels/norm/norm.h"),
                ("engine/tokenizer/a.cc", "device/device.h"),
                ("engine/tokenizer/a.cc", "engine/weights/checkpoint.h"),
                ("prefill_worker/a.cc", "decode_worker/decode_worker.h"),
                ("decode_worker/a.cc", "prefill_worker/prefill_worker.h"),
                ("worker/a.cc", "decode_worker/decode_worker.h"),
                ("router/a.cc", "engine/weights/checkpoint.h"), ("router/a.cc", "worker/messages.h"),
                ("router/a.cc", "device/device.h"), ("common/metrics/a.cc", "common/rpc/server.h"),
                ("engine/a/a.cc", "baton/v1/generation.pb.h"),
                ("kvtransfer/a.cc", "baton/worker/v1/transfer.pb.h")]:
            self.assertEqual(self.one(path, include), [(path, 1, "layers")], (path, include))

    def test_higher_layers_know_lower_ones(self):
        for path, include in [
                ("engine/a/a.cc", "engine/tokenizer/tokenizer.h"), ("engine/a/a.cc", "device/ops.h"),
                ("router/a.cc", "engine/tokenizer/tokenizer.h"),
                ("router/a.cc", "baton/v1/generation.pb.h"),
                ("decode_worker/loop/a.cc", "worker/messages.h"),
                ("decode_worker/loop/a.cc", "engine/kvcache/block_pool.h"),
                ("kvtransfer/a.cc", "kernels/kv_copy/kv_copy.h"), ("cli/a.cc", "router/router.h"),
                ("tests/sim/a.cc", "decode_worker/decode_worker.h"),
                ("engine/a/a_test.cc", "tests/testutil/models.h"), ("cli/a.cc", "absl/status/status.h"),
                ("common/base/a.h", "common/base/check.h")]:
            self.assertEqual(self.one(path, include), [], (path, include))

    def test_product_code_does_not_include_tests(self):
        self.assertEqual(self.one("engine/a/a.cc", "tests/testutil/models.h"),
                         [("engine/a/a.cc", 1, "layers")])

    def test_a_new_folder_needs_a_layer(self):
        self.assertEqual(found(rules.include_graph, {"misc/a.cc": "int a;\n"}),
                         [("misc/a.cc", 1, "layers")])


class Rooms(unittest.TestCase):
    def one(self, rule, path, include):
        return [f[2] for f in found(rule, {path: f"#include <{include}>\n"})]

    def test_third_parties_stay_in_their_rooms(self):
        for path, include in [
                ("engine/a/a.cc", "hwy/highway.h"), ("router/a.cc", "pcre2.h"),
                ("router/a.cc", "nlohmann/json.hpp"), ("router/a.cc", "prometheus/counter.h"),
                ("router/a.cc", "spdlog/spdlog.h"), ("engine/a/a.cc", "xxhash.h"),
                ("kvtransfer/a.cc", "openssl/evp.h"), ("engine/a/a.cc", "grpcpp/grpcpp.h"),
                ("kvtransfer/a.cc", "grpc/grpc.h"), ("router/a.cc", "CLI/CLI.hpp"),
                ("device/cpu/a.cc", "cuda_runtime.h"), ("device/cuda/a.cc", "nccl.h"),
                ("common/metrics/metrics.h", "prometheus/registry.h"),
                ("engine/a/a.cc", "gtest/gtest.h"), ("engine/a/a.h", "benchmark/benchmark.h"),
                ("kernels/a/a.cc", "google/protobuf/message.h")]:
            self.assertEqual(self.one(rules.third_parties, path, include), ["third-party"],
                             (path, include))

    def test_third_parties_in_their_rooms_are_fine(self):
        for path, include in [
                ("kernels/a/a.cc", "hwy/highway.h"), ("engine/tokenizer/a.cc", "pcre2.h"),
                ("engine/weights/a.cc", "nlohmann/json.hpp"), ("common/base/log.cc", "spdlog/spdlog.h"),
                ("common/metrics/metrics.cc", "prometheus/registry.h"),
                ("engine/a/a_test.cc", "gtest/gtest.h"), ("engine/a/a_bench.cc", "benchmark/benchmark.h"),
                ("router/a.cc", "grpcpp/grpcpp.h")]:
            self.assertEqual(self.one(rules.third_parties, path, include), [], (path, include))

    def test_what_only_tests_include_may_use_googletest(self):
        files = {"a/peer.h": "#include <gtest/gtest.h>\n", "a/peer.cc": '#include "a/peer.h"\n',
                 "a/a_test.cc": '#include "a/peer.h"\n'}
        self.assertEqual(found(rules.third_parties, files), [])
        files["a/a.cc"] = '#include "a/peer.h"\n'
        self.assertEqual(found(rules.third_parties, files), [("a/peer.h", 1, "third-party")])

    def test_generated_code_ends_at_the_border(self):
        pb = "baton/worker/v1/session.pb.h"
        self.assertEqual(self.one(rules.generated_code, "prefill_worker/loop/a.cc", pb), ["generated"])
        self.assertEqual(self.one(rules.generated_code, "decode_worker/a.h", pb), ["generated"])
        for path in ("prefill_worker/service/a.cc", "prefill_worker/convert/a.cc", "router/core/a.cc",
                     "worker/convert.cc", "decode_worker/a_test.cc"):
            self.assertEqual(self.one(rules.generated_code, path, pb), [], path)


class BannedNames(unittest.TestCase):
    def one(self, line, path="engine/a/a.cc"):
        return [f[2] for f in found(rules.banned_names, {path: line + "\n"})]

    def test_every_ban_fires(self):
        samples = {
            "banned-mutex": ["std::mutex m;", "std::shared_mutex m;", "absl::Mutex m;",
                             "std::lock_guard l(m);", "std::unique_lock<M> l(m);"],
            "banned-condition-variable": ["std::condition_variable cv;"],
            "banned-device-synchronize": ["cudaDeviceSynchronize();"],
            "banned-new": ["auto* p = new int;", "p.reset(new Foo(1));"],
            "banned-delete": ["delete p;", "delete[] p;", "delete this;"],
            "banned-sleep": ["std::this_thread::sleep_for(1s);", "usleep(5);"],
            "banned-throw": ["throw 1;"],
            "banned-wall-clock": ["std::chrono::system_clock::now();", "absl::Now();",
                                  "clock_gettime(CLOCK_REALTIME, &t);"],
            "banned-std-format": ["std::format(x);"],
            "banned-using-namespace": ["using namespace std;"],
            "banned-pragma-once": ["#pragma once"],
            "banned-if-0": ["#if 0"],
            "banned-assert": ["assert(x);"],
        }
        self.assertEqual(samples.keys(), {f"banned-{ban.name}" for ban in rules.BANS})
        for rule, lines in samples.items():
            for line in lines:
                self.assertIn(rule, self.one(line), line)

    def test_what_only_looks_alike_does_not(self):
        for line in ["Foo(const Foo&) = delete;", "new (buffer) Foo;", "int new_value = renew;",
                     "// throw new std::mutex", 'Log("delete throw new");', "static_assert(true);",
                     "#include <new>", "int sleep_forever;", "EXPECT_DEATH(x, y);"]:
            self.assertEqual(self.one(line), [], line)

    def test_exceptions_need_a_reason(self):
        self.assertEqual(self.one("auto* p = new F;  // NOLINT(banned-new): private constructor"), [])
        self.assertEqual(self.one("delete this;  // NOLINT(banned-delete): owned by the library"), [])
        self.assertEqual(self.one("auto* p = new F;  // NOLINT(banned-new)"), ["banned-new"])
        self.assertEqual(self.one("auto* p = new F;  // NOLINT"), ["banned-new"])
        self.assertEqual(self.one("throw 1;  // NOLINT(banned-new): reason"), ["banned-throw"])

    def test_rooms(self):
        self.assertEqual(self.one("std::mutex m;", "common/base/mutex.h"), [])
        self.assertEqual(self.one("std::this_thread::sleep_for(1s);", "engine/a/a_test.cc"), [])
        self.assertEqual(self.one("std::mutex m;", "engine/a/a_test.cc"), ["banned-mutex"])


class Files(unittest.TestCase):
    def test_unfinished_work(self):
        self.assertEqual(found(rules.unfinished, {"a/a.cc": "// TODO: x\n", "dev": "# FIXME\n"}),
                         [("a/a.cc", 1, "unfinished"), ("dev", 1, "unfinished")])
        self.assertEqual(found(rules.unfinished, {"a/a.cc": "int to_do;\n"}), [])

    def test_long_files(self):
        self.assertEqual(found(rules.file_sizes, {"a/a.cc": "x\n" * 801}), [("a/a.cc", 1, "lines")])
        self.assertEqual(found(rules.file_sizes, {"a/a_test.cc": "x\n" * 1201}),
                         [("a/a_test.cc", 1, "lines")])
        self.assertEqual(found(rules.file_sizes, {"a/a.cc": "x\n" * 800, "a/a_test.cc": "x\n" * 1200}),
                         [])

    def test_long_functions(self):
        def function(lines, head="int F(int a,\n      int b) {\n"):
            return head + "  x;\n" * lines + "}\n"
        rule = rules.function_lengths
        self.assertEqual(found(rule, {"a/a.cc": "namespace a {\n" + function(80) + "}\n"}),
                         [("a/a.cc", 2, "function-lines")])
        self.assertEqual(found(rule, {"a/a.cc": "int g;\n" + function(40) + function(40)}), [])
        for head in ("class A : public B {\n", "struct A {\n", "template <typename T>\nclass A {\n",
                     "constexpr int kTable[] = {\n"):
            self.assertEqual(found(rule, {"a/a.cc": function(80, head)}), [], head)
        self.assertEqual(found(rule, {"a/a_test.cc": function(80)}), [])

    def test_large_files_and_trees(self):
        files = {f"models/{i}.bin": "" for i in range(12)}
        self.assertEqual(found(rules.file_sizes, files, {p: 2 << 20 for p in files}), [])
        self.assertEqual(found(rules.file_sizes, {"m.bin": ""}, {"m.bin": (5 << 19) + 1}),
                         [("m.bin", 1, "bytes")])
        more = {f"models/{i}.bin": "" for i in range(13)}
        self.assertEqual(found(rules.file_sizes, more, {p: 2 << 20 for p in more}), [(".", 1, "bytes")])

    def test_disabled_tests(self):
        for path, line in [("a/a_test.cc", "TEST(A, DISABLED_B) {}"), ("a/a_test.cc", "GTEST_SKIP();"),
                           ("a/CMakeLists.txt", "# baton_test(a)"),
                           ("a/CMakeLists.txt", "#add_test(NAME a)"),
                           ("tests/x/test_a.py", "@pytest.mark.skip"),
                           ("tests/x/test_a.py", "@pytest.mark.xfail(reason='x')")]:
            self.assertEqual(found(rules.disabled_tests, {path: line + "\n"}),
                             [(path, 1, "disabled-test")], line)
        for path, line in [("a/a_test.cc", 'GTEST_SKIP() << "no model";'),
                           ("a/CMakeLists.txt", "baton_test(a)"),
                           ("tests/x/test_a.py", "pytest.skip('no model')"),
                           ("tests/x/test_a.py", "@pytest.mark.skipif(x, reason='y')")]:
            self.assertEqual(found(rules.disabled_tests, {path: line + "\n"}), [], line)

    def test_header_guards(self):
        good = "#ifndef BATON_A_B_H_\n#define BATON_A_B_H_\n#endif  // BATON_A_B_H_\n"
        self.assertEqual(found(rules.header_guards, {"a/b.h": good}), [])
        self.assertEqual(found(rules.header_guards, {"a/c.h": good}), [("a/c.h", 1, "header-guard")])
        self.assertEqual(found(rules.header_guards, {"a/b.h": ""}), [("a/b.h", 1, "header-guard")])

    def test_paths_of_one_machine(self):
        for text in ("/work/main/x", "cd /root/x", "'/home/me'"):
            self.assertEqual(found(rules.machine_paths, {"a/a.cc": text + "\n"}),
                             [("a/a.cc", 1, "machine-path")], text)
        for text in ("/usr/bin/x", "a/work/b", "router/work", "/proc/self"):
            self.assertEqual(found(rules.machine_paths, {"a/a.cc": text + "\n"}), [], text)

    def test_every_source_is_built(self):
        cmake = "baton_library(a SRCS a.cc sub/c.cc)\n# b.cc\n"
        files = {"a/CMakeLists.txt": cmake, "a/a.cc": "", "a/b.cc": "", "a/sub/c.cc": "",
                 "a/sub/d.cc": "", "a/a.proto": ""}
        self.assertEqual([f[0] for f in found(rules.listed_sources, files)],
                         ["a/a.proto", "a/b.cc", "a/sub/d.cc"])

    def test_cmake(self):
        self.assertEqual(found(rules.cmake_rules, {"a/CMakeLists.txt": "file(GLOB_RECURSE x *.cc)\n"}),
                         [("a/CMakeLists.txt", 1, "banned-glob")])
        self.assertEqual(found(rules.cmake_rules, {"a/CMakeLists.txt": "add_library(a a.cc)\n"}),
                         [("a/CMakeLists.txt", 1, "cmake-helper")])
        self.assertEqual(found(rules.cmake_rules, {"a/CMakeLists.txt": "add_library(a_pb a.cc)\n",
                                                   "cmake/B.cmake": "add_library(x)\n"}), [])

    def test_hygiene(self):
        for text in ("x", "x \n", "\tx\n"):
            self.assertEqual(found(rules.hygiene, {"a/a.cc": text}), [("a/a.cc", 1, "hygiene")])
        self.assertEqual(found(rules.hygiene, {"a/a.cc": "x\n", "a/b.cc": ""}), [])

    def test_file_names(self):
        for path in ("a/FooBar.cc", "a/foo-bar.h", "a/string_utils.h", "a/fast_norm.cc"):
            self.assertEqual([f[2] for f in found(rules.file_names, {path: ""})], ["file-name"], path)
        for path in ("a/foo_bar.cc", "a/vector_math-inl.h", "a/breakfast.cc"):
            self.assertEqual(found(rules.file_names, {path: ""}), [], path)


class Metrics(unittest.TestCase):
    HEADER = ('inline constexpr absl::string_view kModel[] = {"model", "code"};\n'
              'inline constexpr MetricDefinition kRequests{\n    .type = MetricType::kCounter,\n'
              '    .name = "baton_requests_total",\n    .help = "Requests.",\n'
              '    .labels = kModel};\n')
    ROW = "| `baton_requests_total` | counter | model, code | requests | Requests |\n"

    def messages(self, page, source="registry.AddCounter(metrics::kRequests);\n"):
        tree = FakeTree({"common/metrics/canonical.h": self.HEADER, "docs/metrics.md": page,
                         "router/a.cc": source})
        return " ".join(f.message for f in rules.metrics_documented(tree))

    def test_code_and_page_agree(self):
        self.assertEqual(self.messages(self.ROW), "")

    def test_differences_are_found(self):
        self.assertIn("not documented", self.messages(""))
        self.assertIn("is a counter", self.messages(self.ROW.replace("counter", "gauge")))
        self.assertIn("with labels", self.messages(self.ROW.replace("model, code", "model")))
        self.assertIn("documented but not in",
                      self.messages(self.ROW + self.ROW.replace("requests", "replies")))
        self.assertIn("registered nowhere", self.messages(self.ROW, "int x;\n"))
        self.assertIn("define metrics in",
                      self.messages(self.ROW, 'f({.name = "baton_x_total"}, kRequests);\n'))


class Coverage(unittest.TestCase):
    def test_every_rule_is_tested_here(self):
        source = pathlib.Path(__file__).read_text()
        for rule in rules.ALL:
            self.assertIn(f"rules.{rule.__name__}", source)


if __name__ == "__main__":
    unittest.main()
