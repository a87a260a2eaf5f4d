# Helpers that make one target a folder. DEPS is the layer table of that folder: a target sees only
# what it lists. Sources are listed by name, never globbed.

add_library(baton_flags INTERFACE)
target_include_directories(baton_flags INTERFACE ${PROJECT_SOURCE_DIR})
# No contraction: a*b+c must round the same way in every translation unit, or the CPU device would
# not be bit-invariant. Fused multiply-adds are written where they are meant.
target_compile_options(
  baton_flags INTERFACE "$<$<COMPILE_LANGUAGE:C,CXX>:-Wall;-Wextra;-Werror;-Wno-unused-parameter;-ffp-contract=off>")
if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  # Abseil comes compiled by g++ 12. Clang 18 and later mangle some of its constrained templates
  # (absl::Cord from std::string) in a newer way, which that library does not have.
  target_compile_options(baton_flags INTERFACE -Wthread-safety -fclang-abi-compat=17)
endif()
if(BATON_SANITIZER STREQUAL "asan")
  target_compile_options(baton_flags INTERFACE -fsanitize=address,undefined
                                               -fno-sanitize-recover=undefined
                                               -fno-omit-frame-pointer)
  target_link_options(baton_flags INTERFACE -fsanitize=address,undefined)
elseif(BATON_SANITIZER STREQUAL "tsan")
  target_compile_options(baton_flags INTERFACE -fsanitize=thread -fno-omit-frame-pointer)
  target_link_options(baton_flags INTERFACE -fsanitize=thread)
elseif(NOT BATON_SANITIZER STREQUAL "")
  message(FATAL_ERROR "BATON_SANITIZER must be '', 'asan' or 'tsan', not '${BATON_SANITIZER}'")
endif()

# baton_library(NAME SRCS a.cc... HDRS a.h... DEPS t...)
function(baton_library name)
  cmake_parse_arguments(ARG "" "" "SRCS;HDRS;DEPS" ${ARGN})
  if(ARG_SRCS)
    add_library(${name} STATIC ${ARG_SRCS} ${ARG_HDRS})
    target_link_libraries(${name} PUBLIC baton_flags ${ARG_DEPS})
  else()
    add_library(${name} INTERFACE)
    target_link_libraries(${name} INTERFACE baton_flags ${ARG_DEPS})
  endif()
endfunction()

# baton_binary(NAME SRCS main.cc DEPS t...)
function(baton_binary name)
  cmake_parse_arguments(ARG "" "" "SRCS;DEPS" ${ARGN})
  add_executable(${name} ${ARG_SRCS})
  target_link_libraries(${name} PRIVATE baton_flags ${ARG_DEPS})
endfunction()

# baton_test(NAME SRCS a_test.cc... DEPS t... LABELS unit|e2e|slow|grpc... [TIMEOUT seconds])
# Label 'grpc' marks tests that start gRPC: they are left out of the TSan build (docs/testing.md).
function(baton_test name)
  cmake_parse_arguments(ARG "" "TIMEOUT" "SRCS;DEPS;LABELS" ${ARGN})
  if(NOT BATON_BUILD_TESTS)
    return()
  endif()
  if(NOT ARG_LABELS)
    set(ARG_LABELS unit)
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  if(BATON_SANITIZER STREQUAL "tsan" AND "grpc" IN_LIST ARG_LABELS)
    return()
  endif()
  add_executable(${name} ${ARG_SRCS})
  set_property(GLOBAL APPEND PROPERTY BATON_TESTS ${name})
  target_link_libraries(${name} PRIVATE baton_flags ${ARG_DEPS} GTest::gtest GTest::gmock
                                        GTest::gtest_main)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  add_test(NAME ${name} COMMAND ${name} WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
  set_tests_properties(${name} PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT ${ARG_TIMEOUT})
endfunction()

# baton_benchmark(NAME SRCS a_bench.cc DEPS t...): Google Benchmark, not run by ctest.
function(baton_benchmark name)
  cmake_parse_arguments(ARG "" "" "SRCS;DEPS" ${ARGN})
  if(NOT BATON_BUILD_BENCHES)
    return()
  endif()
  add_executable(${name} ${ARG_SRCS})
  target_link_libraries(${name} PRIVATE baton_flags ${ARG_DEPS} benchmark::benchmark)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bench)
endfunction()

# baton_fuzzer(NAME SRCS a_fuzz.cc DEPS t... CORPUS dir): the file defines LLVMFuzzerTestOneInput.
# Built with libFuzzer when BATON_BUILD_FUZZERS is on (clang, asan preset). CORPUS is the folder of the
# seed inputs, relative to the source folder; as a test, each seed is run once.
function(baton_fuzzer name)
  cmake_parse_arguments(ARG "" "CORPUS" "SRCS;DEPS" ${ARGN})
  if(NOT ARG_CORPUS OR NOT IS_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR}/${ARG_CORPUS})
    message(FATAL_ERROR "baton_fuzzer(${name}): CORPUS must be a folder of seed inputs")
  endif()
  if(NOT BATON_BUILD_FUZZERS)
    return()
  endif()
  add_executable(${name} ${ARG_SRCS})
  target_link_libraries(${name} PRIVATE baton_flags ${ARG_DEPS})
  target_compile_options(${name} PRIVATE -fsanitize=fuzzer)
  # A fuzzer is guided only by what is instrumented for it: the library that it feeds.
  foreach(dep ${ARG_DEPS})
    get_target_property(type ${dep} TYPE)
    if(type STREQUAL "STATIC_LIBRARY")
      target_compile_options(${dep} PRIVATE -fsanitize=fuzzer-no-link)
    endif()
  endforeach()
  target_link_options(${name} PRIVATE -fsanitize=fuzzer)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/fuzz)
  set(corpus ${CMAKE_CURRENT_SOURCE_DIR}/${ARG_CORPUS})
  set_property(GLOBAL APPEND PROPERTY BATON_FUZZERS ${name})
  set_property(GLOBAL APPEND_STRING PROPERTY BATON_FUZZ_CORPORA "${name} ${corpus}\n")
  if(BATON_BUILD_TESTS)
    add_test(NAME ${name} COMMAND ${name} -runs=0 -timeout=20 ${corpus})
    set_tests_properties(${name} PROPERTIES LABELS unit TIMEOUT 120)
  endif()
endfunction()

# baton_cuda_library(NAME SRCS a.cu b.cc... HDRS a.h... DEPS t...): nothing when BATON_CUDA is off. The build
# fails when a kernel spills registers or when the assembler ignores register reallocation.
function(baton_cuda_library name)
  cmake_parse_arguments(ARG "" "" "SRCS;HDRS;DEPS" ${ARGN})
  if(NOT BATON_CUDA)
    return()
  endif()
  add_library(${name} STATIC ${ARG_SRCS} ${ARG_HDRS})
  target_include_directories(${name} PUBLIC ${PROJECT_SOURCE_DIR})
  target_include_directories(${name} SYSTEM PUBLIC ${CUDAToolkit_INCLUDE_DIRS})
  target_compile_options(
    ${name}
    PRIVATE "$<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Werror;-Wno-unused-parameter>"
            "$<$<COMPILE_LANGUAGE:CUDA>:-gencode=arch=compute_90a,code=sm_90a;--expt-relaxed-constexpr;--compress-mode=size;$<$<CONFIG:Debug>:-lineinfo>;-Xptxas=--warn-on-spills,--warning-as-error;-Xcompiler=-Wall,-Werror,-Wno-unused-parameter>"
  )
  target_link_libraries(${name} PUBLIC ${ARG_DEPS})
endfunction()

# baton_plugin(NAME SRCS plugin.cc DEPS t...): a shared object that the program loads from its own folder
# (device/device_plugin.h). It shows nothing but its entry point.
function(baton_plugin name)
  cmake_parse_arguments(ARG "" "" "SRCS;DEPS" ${ARGN})
  add_library(${name} MODULE ${ARG_SRCS})
  target_link_libraries(${name} PRIVATE baton_flags ${ARG_DEPS})
  target_link_options(${name} PRIVATE -Wl,--exclude-libs,ALL -Wl,--no-undefined
                                      -Wl,-rpath,$ORIGIN/../lib)
  set_target_properties(${name} PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
endfunction()

# baton_gpu_tests(SRCS a_cuda_test.cc... DEPS t...) and baton_gpu_benches(...): become part of the one program
# gpu_tests (GoogleTest) and of gpu_bench (kernels/launch/gpu_bench_harness.h). Nothing without BATON_CUDA.
function(baton_gpu_tests)
  baton_gpu_part(TESTS ${ARGN})
endfunction()
function(baton_gpu_benches)
  baton_gpu_part(BENCHES ${ARGN})
endfunction()
function(baton_gpu_part kind)
  cmake_parse_arguments(ARG "" "" "SRCS;DEPS" ${ARGN})
  list(TRANSFORM ARG_SRCS PREPEND ${CMAKE_CURRENT_SOURCE_DIR}/)
  set_property(GLOBAL APPEND PROPERTY BATON_GPU_${kind}_SRCS ${ARG_SRCS})
  set_property(GLOBAL APPEND PROPERTY BATON_GPU_${kind}_DEPS ${ARG_DEPS})
endfunction()

# After the last folder: the two programs. They find the CUDA runtime on the machine they run on.
function(baton_gpu_programs)
  if(NOT BATON_CUDA)
    return()
  endif()
  foreach(kind TESTS BENCHES)
    get_property(srcs GLOBAL PROPERTY BATON_GPU_${kind}_SRCS)
    get_property(deps GLOBAL PROPERTY BATON_GPU_${kind}_DEPS)
    if(NOT srcs)
      continue()
    endif()
    list(REMOVE_DUPLICATES deps)
    if(kind STREQUAL "TESTS")
      set(name gpu_tests)
      set(harness GTest::gtest GTest::gmock GTest::gtest_main)
    else()
      set(name gpu_bench)
      set(harness kernels_gpu_bench_harness)
    endif()
    add_executable(${name} ${srcs})
    target_link_libraries(${name} PRIVATE baton_flags ${deps} kernels_cuda_testing ${harness} CUDA::cudart
                                          ${CMAKE_DL_LIBS})
    target_include_directories(${name} SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
    set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/gpu)
  endforeach()
  if(TARGET gpu_tests)
    add_test(NAME gpu_tests COMMAND gpu_tests WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
    set_tests_properties(gpu_tests PROPERTIES LABELS "gpu" TIMEOUT 600)
  endif()
endfunction()

# At the end of the root file: what scripts need. Target `all_tests` (without programs and benchmarks,
# which the sanitizer builds do not need); target `fuzzers` and fuzz/corpora.txt ("name corpus" a line)
# for ./dev fuzz; target `generated_headers` for clang-tidy.
function(baton_script_targets)
  get_property(tests GLOBAL PROPERTY BATON_TESTS)
  add_custom_target(all_tests DEPENDS ${tests})
  get_property(fuzzers GLOBAL PROPERTY BATON_FUZZERS)
  get_property(corpora GLOBAL PROPERTY BATON_FUZZ_CORPORA)
  add_custom_target(fuzzers DEPENDS ${fuzzers})
  file(WRITE ${CMAKE_BINARY_DIR}/fuzz/corpora.txt "${corpora}")
  get_property(generated GLOBAL PROPERTY BATON_PROTO_LIBRARIES)
  if(TARGET engine_tokenizer_pb)
    list(APPEND generated engine_tokenizer_pb)
  endif()
  add_custom_target(generated_headers DEPENDS ${generated})
endfunction()
