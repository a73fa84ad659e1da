# kernels/*.cu by nvcc, as objects that the host linker takes: no device linking is needed, and so
# none of CMake's own CUDA language, which wants a whole toolkit. Warnings and register spills are
# errors.
set(CPLM_CUDA_ARCHITECTURES 80 90 100 CACHE STRING "Compute capabilities to build for")

find_program(CPLM_NVCC nvcc REQUIRED HINTS /usr/local/cuda/bin ${torch_dir}/../nvidia/cu13/bin
  DOC "nvcc of CUDA 13; scripts/setup --reference installs one into .venv")
set(nvcc_flags -std=c++20 -O3 -DNDEBUG -I${PROJECT_SOURCE_DIR} -Xcompiler -fPIC
  -Werror all-warnings -Xcompiler -Wall,-Wextra,-Werror
  -Xptxas -v,-warn-spills,-warn-lmem-usage,-Werror)
foreach(architecture ${CPLM_CUDA_ARCHITECTURES})
  list(APPEND nvcc_flags -gencode arch=compute_${architecture},code=sm_${architecture})
endforeach()
list(GET CPLM_CUDA_ARCHITECTURES -1 newest)  # later devices: by PTX
list(APPEND nvcc_flags -gencode arch=compute_${newest},code=compute_${newest})

file(GLOB kernel_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/kernels/*.cu)
foreach(source ${kernel_sources})
  get_filename_component(name ${source} NAME_WE)
  set(object ${PROJECT_BINARY_DIR}/kernels/${name}.o)
  # ptxas's report goes to a file beside the object: read only when it fails.
  add_custom_command(OUTPUT ${object} DEPENDS ${source} DEPFILE ${object}.d
    COMMAND ${CMAKE_COMMAND} -E make_directory ${PROJECT_BINARY_DIR}/kernels
    COMMAND sh -c "\"$@\" >'${object}.log' 2>&1 || { cat '${object}.log'; exit 1; }" nvcc
      ${CPLM_NVCC} ${nvcc_flags} -ccbin ${CMAKE_CXX_COMPILER} -MD -MF ${object}.d -MT ${object} -c ${source} -o ${object}
    COMMENT "nvcc ${name}.cu" VERBATIM)
  list(APPEND kernel_objects ${object})
endforeach()

file(GLOB cublas_library ${torch_dir}/../nvidia/*/lib/libcublas.so.1?)
file(GLOB cudart_library ${torch_dir}/../nvidia/*/lib/libcudart.so.1?)
file(GLOB cuda_include_dir LIST_DIRECTORIES true ${torch_dir}/../nvidia/cu1?/include)
add_custom_target(cplm_kernel_objects DEPENDS ${kernel_objects})
add_library(cplm_kernels STATIC ${kernel_objects})
set_target_properties(cplm_kernels PROPERTIES LINKER_LANGUAGE CXX)
add_dependencies(cplm_kernels cplm_kernel_objects)
target_include_directories(cplm_kernels SYSTEM INTERFACE ${cuda_include_dir})
target_link_libraries(cplm_kernels INTERFACE ${cublas_library} ${cudart_library})
