# Every third party, in one place. All of them are Debian 12 packages (see ./dev).
find_package(Threads REQUIRED)
find_package(absl REQUIRED)
find_package(Protobuf REQUIRED)  # Debian ships no CONFIG package; must come before gRPC.
find_package(gRPC CONFIG REQUIRED)
find_package(hwy CONFIG REQUIRED)
find_package(spdlog CONFIG REQUIRED)
find_package(nlohmann_json CONFIG REQUIRED)
find_package(CLI11 CONFIG REQUIRED)
find_package(PkgConfig REQUIRED)
pkg_check_modules(PCRE2 REQUIRED IMPORTED_TARGET libpcre2-8)
pkg_check_modules(UTF8PROC REQUIRED IMPORTED_TARGET libutf8proc)
pkg_check_modules(XXHASH REQUIRED IMPORTED_TARGET libxxhash)
pkg_check_modules(OPENSSL_CRYPTO REQUIRED IMPORTED_TARGET libcrypto)
# prometheus-cpp's CONFIG package pulls in civetweb and zlib targets that Debian splits differently;
# pkg-config names exactly what is needed.
pkg_check_modules(PROMETHEUS REQUIRED IMPORTED_TARGET prometheus-cpp-core prometheus-cpp-pull)
if(BATON_BUILD_TESTS)
  find_package(GTest REQUIRED)
endif()
if(BATON_BUILD_BENCHES)
  find_package(benchmark REQUIRED)
endif()
if(BATON_CUDA)
  # The toolkit's own compiler wrapper; machine code for Hopper only (wgmma and setmaxnreg exist in
  # sm_90a alone). Built by hand here, so that no other target sees CUDA.
  set(CMAKE_CUDA_ARCHITECTURES OFF)
  if(NOT CMAKE_CUDA_COMPILER AND EXISTS /usr/local/cuda/bin/nvcc)
    set(CMAKE_CUDA_COMPILER /usr/local/cuda/bin/nvcc)
  endif()
  enable_language(CUDA)
  set(CMAKE_CUDA_STANDARD 20)
  if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake 3.25 knows nvcc up to C++17.
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
    set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
  endif()
  find_package(CUDAToolkit 13.0 REQUIRED)
  # Its header lies beside those of CUDA. Only the NCCL plug-in links it.
  find_library(NCCL_LIBRARY nccl HINTS ${CUDAToolkit_LIBRARY_DIR} REQUIRED)
endif()
