# One target a folder. A folder states what it uses, once; this file links exactly that and refuses
# to configure when a source includes a header of a folder that it does not state (directly or
# through what it states).

# braid_library(NAME SOURCES a.cc ... USES folder ... [PACKAGES lib ...] [ISA_SOURCES k.cc ...])
function(braid_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;USES;PACKAGES;ISA_SOURCES" ${ARGN})
  if(ARG_SOURCES OR ARG_ISA_SOURCES)
    add_library(braid_${name} STATIC ${ARG_SOURCES})
    set(scope PUBLIC)
  else()
    add_library(braid_${name} INTERFACE)
    set(scope INTERFACE)
  endif()
  add_library(braid::${name} ALIAS braid_${name})
  target_include_directories(braid_${name} ${scope} ${CMAKE_SOURCE_DIR}/src)
  list(TRANSFORM ARG_USES PREPEND braid_ OUTPUT_VARIABLE uses)
  target_link_libraries(braid_${name} ${scope} ${uses} ${ARG_PACKAGES})

  set(closure ${name} ${ARG_USES})
  foreach(used IN LISTS ARG_USES)
    get_property(inherited GLOBAL PROPERTY BRAID_CLOSURE_${used})
    list(APPEND closure ${inherited})
  endforeach()
  list(REMOVE_DUPLICATES closure)
  set_property(GLOBAL PROPERTY BRAID_CLOSURE_${name} "${closure}")

  if(ARG_ISA_SOURCES)
    _braid_isa_sources(braid_${name} ${ARG_ISA_SOURCES})
  endif()
  _braid_check_includes(${name} "${closure}")
endfunction()

# Each file is compiled once per instruction set, with BRAID_ISA naming the namespace of its contents.
function(_braid_isa_sources target)
  set(flags_portable "")
  set(flags_avx2 -mavx2 -mfma -mf16c -mbmi2)
  set(flags_avx512 ${flags_avx2} -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni -mavx512bf16
                   -mprefer-vector-width=512
                   # GCC 12 warns of the undefined operands inside its own intrinsics.
                   -Wno-maybe-uninitialized)
  foreach(isa portable avx2 avx512)
    set(object ${target}_${isa})
    add_library(${object} OBJECT ${ARGN})
    target_include_directories(${object} PRIVATE ${CMAKE_SOURCE_DIR}/src)
    target_compile_definitions(${object} PRIVATE BRAID_ISA=${isa} BRAID_ISA_${isa}=1)
    # GCC 12 takes the deliberately undefined vectors of its own intrinsics for mistakes.
    target_compile_options(${object} PRIVATE ${flags_${isa}} -Wno-uninitialized -Wno-maybe-uninitialized)
    if(BRAID_SANITIZE MATCHES "undefined")
      # Kernels are unrolled templates: with a check at every step they take minutes to compile.
      target_compile_options(${object} PRIVATE -fno-sanitize=undefined -O1)
    endif()
    target_sources(${target} PRIVATE $<TARGET_OBJECTS:${object}>)
  endforeach()
endfunction()

function(_braid_check_includes name closure)
  file(GLOB_RECURSE files CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.h ${CMAKE_CURRENT_SOURCE_DIR}/*.cc
       ${CMAKE_CURRENT_SOURCE_DIR}/*.cu ${CMAKE_CURRENT_SOURCE_DIR}/*.cuh)
  foreach(file IN LISTS files)
    file(STRINGS ${file} includes REGEX "^#include \"[a-z_]+/")
    foreach(line IN LISTS includes)
      string(REGEX REPLACE "^#include \"([a-z_]+)/.*" "\\1" folder "${line}")
      if(NOT folder IN_LIST closure)
        message(FATAL_ERROR "${file} includes from '${folder}', which src/${name} does not use "
                            "(it may use: ${closure}). See docs/architecture.md.")
      endif()
    endforeach()
  endforeach()
endfunction()

# Seconds after which a test is taken for stuck. Never a judgement of speed: sanitizers and busy machines are slow.
set(BRAID_TEST_TIMEOUT 3600)

# braid_test(NAME SOURCES a_test.cc ... USES folder ... [LABEL unit|model|gpu|ranks])
function(braid_test name)
  cmake_parse_arguments(ARG "" "LABEL" "SOURCES;USES;PACKAGES" ${ARGN})
  if(NOT ARG_LABEL)
    set(ARG_LABEL unit)
  endif()
  add_executable(${name} ${ARG_SOURCES})
  list(TRANSFORM ARG_USES PREPEND braid_ OUTPUT_VARIABLE uses)
  target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR}/tests)
  target_link_libraries(${name} PRIVATE ${uses} ${ARG_PACKAGES} GTest::gtest GTest::gmock GTest::gtest_main)
  # GCC 12 warns of overlap in "text" + std::string (its bug 105651).
  target_compile_options(${name} PRIVATE $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict>)
  target_compile_definitions(${name} PRIVATE BRAID_TEST_DATA="${CMAKE_SOURCE_DIR}/tests/data")
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES LABELS ${ARG_LABEL} TIMEOUT ${BRAID_TEST_TIMEOUT})
endfunction()
