# Compiler flags shared by every target.
find_program(BRAID_CCACHE ccache)
if(BRAID_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${BRAID_CCACHE})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${BRAID_CCACHE})
endif()

add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-Wall>
                    $<$<COMPILE_LANGUAGE:CXX>:-Wextra>
                    $<$<COMPILE_LANGUAGE:CXX>:-Wno-missing-field-initializers>
                    # Contracting a*b+c on its own would make results depend on the compiler;
                    # kernels ask for fused operations where they want them.
                    $<$<COMPILE_LANGUAGE:CXX>:-ffp-contract=off>)
if(BRAID_WERROR)
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-Werror>)
endif()
if(BRAID_SANITIZE)
  add_compile_options(-fsanitize=${BRAID_SANITIZE} -fno-omit-frame-pointer -g)
  add_link_options(-fsanitize=${BRAID_SANITIZE})
endif()
