# Finds every library the project uses; each becomes one imported target. Versions and reasons:
# third_party/README.md. LibTorch comes from the PyPI wheel in .venv (scripts/setup), without
# find_package(Torch), which insists on a CUDA toolkit even for the CPU half.
find_package(Threads REQUIRED)
find_package(OpenSSL REQUIRED COMPONENTS Crypto)
find_package(yaml-cpp REQUIRED)
find_package(spdlog REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(CLI11 REQUIRED)
set(HDF5_PREFER_PARALLEL OFF)
find_package(HDF5 REQUIRED COMPONENTS C)
add_library(cplm_hdf5 INTERFACE)
target_include_directories(cplm_hdf5 SYSTEM INTERFACE ${HDF5_INCLUDE_DIRS})
target_link_libraries(cplm_hdf5 INTERFACE ${HDF5_C_LIBRARIES})

set(CPLM_TORCH_DIR "" CACHE PATH "Folder of the torch wheel (holds include/ and lib/); empty: the one in .venv")
set(torch_dir "${CPLM_TORCH_DIR}")
if(NOT torch_dir)  # looked up at every configure: .venv may have been made anew by another Python
  file(GLOB torch_candidates ${PROJECT_SOURCE_DIR}/.venv/lib/python3*/site-packages/torch)
  list(POP_FRONT torch_candidates torch_dir)
endif()
if(NOT EXISTS "${torch_dir}/lib/libtorch_cpu.so")
  message(FATAL_ERROR "LibTorch not found at '${torch_dir}': run scripts/setup, or set CPLM_TORCH_DIR to the torch package's folder")
endif()
set(torch_libraries ${torch_dir}/lib/libtorch_cpu.so ${torch_dir}/lib/libc10.so)
if(CPLM_CUDA)  # nothing refers to it by symbol: its operators register themselves when it is loaded
  if(NOT EXISTS "${torch_dir}/lib/libtorch_cuda.so" OR NOT EXISTS "${torch_dir}/../nvidia/cudnn")
    message(FATAL_ERROR "LibTorch's CUDA half is not installed at '${torch_dir}': run scripts/setup --cuda")
  endif()
  list(APPEND torch_libraries  # one item, so that CMake cannot reorder it
    -Wl,--push-state,--no-as-needed,${torch_dir}/lib/libtorch_cuda.so,${torch_dir}/lib/libc10_cuda.so,--pop-state)
endif()
# The wheel's libraries need the CUDA runtime by name, also on CPU machines.
file(GLOB torch_runtime_dirs ${torch_dir}/../nvidia/*/lib)
set(torch_rpath ${torch_dir}/lib ${torch_runtime_dirs})

add_library(cplm_torch INTERFACE)
target_include_directories(cplm_torch SYSTEM INTERFACE
  ${torch_dir}/include ${torch_dir}/include/torch/csrc/api/include)
target_compile_definitions(cplm_torch INTERFACE AT_PER_OPERATOR_HEADERS)
# -fopenmp: the runtime is torch's own libgomp. g++ 12 sees array bounds where an inlined
# intrusive_ptr ends (a false alarm inside LibTorch's headers).
target_compile_options(cplm_torch INTERFACE -fopenmp -Wno-array-bounds)
target_link_libraries(cplm_torch INTERFACE ${torch_libraries} ${torch_dir}/lib/libgomp.so.1 Threads::Threads)
foreach(dir ${torch_rpath})
  target_link_options(cplm_torch INTERFACE -Wl,-rpath,${dir} -Wl,-rpath-link,${dir})
endforeach()

if(CPLM_BUILD_TESTS)
  find_package(GTest REQUIRED)
endif()
