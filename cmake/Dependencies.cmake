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

if(NOT CPLM_TORCH_DIR)
  file(GLOB torch_candidates ${PROJECT_SOURCE_DIR}/.venv/lib/python3*/site-packages/torch)
  list(POP_FRONT torch_candidates torch_first)
  set(CPLM_TORCH_DIR "${torch_first}" CACHE PATH "Folder of the torch wheel (holds include/ and lib/)")
endif()
if(NOT EXISTS ${CPLM_TORCH_DIR}/lib/libtorch_cpu.so)
  message(FATAL_ERROR "LibTorch not found at '${CPLM_TORCH_DIR}': run scripts/setup, or set CPLM_TORCH_DIR to the torch package's folder")
endif()
set(torch_libraries ${CPLM_TORCH_DIR}/lib/libtorch_cpu.so ${CPLM_TORCH_DIR}/lib/libc10.so)
# The wheel's libraries need the CUDA runtime by name, also on CPU machines.
file(GLOB torch_runtime_dirs ${CPLM_TORCH_DIR}/../nvidia/*/lib)
set(torch_rpath ${CPLM_TORCH_DIR}/lib ${torch_runtime_dirs})

add_library(cplm_torch INTERFACE)
target_include_directories(cplm_torch SYSTEM INTERFACE
  ${CPLM_TORCH_DIR}/include ${CPLM_TORCH_DIR}/include/torch/csrc/api/include)
target_compile_definitions(cplm_torch INTERFACE AT_PER_OPERATOR_HEADERS)
target_compile_options(cplm_torch INTERFACE -fopenmp)  # the runtime is torch's own libgomp
target_link_libraries(cplm_torch INTERFACE ${torch_libraries} ${CPLM_TORCH_DIR}/lib/libgomp.so.1 Threads::Threads)
foreach(dir ${torch_rpath})
  target_link_options(cplm_torch INTERFACE -Wl,-rpath,${dir} -Wl,-rpath-link,${dir})
endforeach()

if(CPLM_BUILD_TESTS)
  find_package(GTest REQUIRED)
endif()
