# Included by llama-cpp-python's build (CMAKE_PROJECT_INCLUDE) to make it quick: only the tokenizer is wanted.
# Leaves out llama.cpp's command-line library and compiles many files at a time, except where names clash.
if(NOT CMAKE_CURRENT_SOURCE_DIR STREQUAL CMAKE_SOURCE_DIR)
  return()
endif()
set(LLAMA_BUILD_COMMON OFF)
set(CMAKE_UNITY_BUILD ON)
set(CMAKE_UNITY_BUILD_BATCH_SIZE 40)
cmake_language(DEFER CALL set_target_properties ggml-cpu PROPERTIES UNITY_BUILD OFF)
