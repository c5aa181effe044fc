# Turns a file into a C source that defines
#     const unsigned char SYMBOL[];  const size_t SYMBOL_size;
# by CMake alone. As a script: cmake -DINPUT=file -DOUTPUT=file.c -DSYMBOL=name -P embed.cmake

if(CMAKE_SCRIPT_MODE_FILE)
  file(READ "${INPUT}" hex HEX)
  string(LENGTH "${hex}" digits)
  math(EXPR size "${digits} / 2")
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${hex}")
  string(REPEAT "0x..," 16 row)
  string(REGEX REPLACE "(${row})" "\\1\n" bytes "${bytes}")
  file(WRITE "${OUTPUT}" "#include <stddef.h>
extern const unsigned char ${SYMBOL}[];
extern const size_t ${SYMBOL}_size;
const unsigned char ${SYMBOL}[] = {
${bytes}0};
const size_t ${SYMBOL}_size = ${size};
")
  return()
endif()

set(CLATTN_EMBED_SCRIPT "${CMAKE_CURRENT_LIST_FILE}")

# Appends the generated source to the list variable OUT.
function(clattn_embed out symbol input)
  get_filename_component(input "${input}" ABSOLUTE)
  set(output "${CMAKE_CURRENT_BINARY_DIR}/${symbol}.c")
  add_custom_command(
    OUTPUT "${output}"
    COMMAND "${CMAKE_COMMAND}" -DINPUT=${input} -DOUTPUT=${output} -DSYMBOL=${symbol}
            -P "${CLATTN_EMBED_SCRIPT}"
    DEPENDS "${input}" "${CLATTN_EMBED_SCRIPT}"
    VERBATIM)
  set(${out} ${${out}} "${output}" PARENT_SCOPE)
endfunction()
