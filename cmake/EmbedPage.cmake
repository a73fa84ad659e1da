# cplm_embed_page(TARGET PAGE HEADER SYMBOL): a page of several files as one C++ string. Each
# "@include FILE@" of PAGE is replaced by that file, which lies beside it; TARGET may include HEADER,
# made in the build tree, where the page is cplm::SYMBOL.
#
#   cplm_embed_page(cplm_generate explain.html generate/explain_template.h kExplainTemplate)
#
# The work is done at build time by this same file as a script.
set(CPLM_INCLUDE_MARK "@include ([A-Za-z0-9_.]+)@")

if(CMAKE_SCRIPT_MODE_FILE)
  get_filename_component(folder "${PAGE}" DIRECTORY)
  file(READ "${PAGE}" page)
  while("${page}" MATCHES "${CPLM_INCLUDE_MARK}")
    set(mark "${CMAKE_MATCH_0}")
    file(READ "${folder}/${CMAKE_MATCH_1}" part)
    string(REPLACE "${mark}" "${part}" page "${page}")
  endwhile()
  get_filename_component(name "${PAGE}" NAME)
  file(WRITE "${HEADER}" "// Made from ${name} by cmake/EmbedPage.cmake.
#pragma once

namespace cplm {

inline constexpr char ${SYMBOL}[] = R\"cplm_page(${page})cplm_page\";

}  // namespace cplm
")
  return()
endif()

set(CPLM_EMBED_PAGE_SCRIPT ${CMAKE_CURRENT_LIST_FILE})

function(cplm_embed_page target page header symbol)
  set(source ${CMAKE_CURRENT_SOURCE_DIR}/${page})
  set(made ${CMAKE_CURRENT_BINARY_DIR}/embedded/${header})
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${source})
  file(STRINGS ${source} parts REGEX "${CPLM_INCLUDE_MARK}")
  list(TRANSFORM parts REPLACE ".*${CPLM_INCLUDE_MARK}.*" "${CMAKE_CURRENT_SOURCE_DIR}/\\1")
  add_custom_command(OUTPUT ${made}
    COMMAND ${CMAKE_COMMAND} -DPAGE=${source} -DHEADER=${made} -DSYMBOL=${symbol} -P ${CPLM_EMBED_PAGE_SCRIPT}
    DEPENDS ${source} ${parts} ${CPLM_EMBED_PAGE_SCRIPT}
    COMMENT "Embedding ${page}" VERBATIM)
  target_sources(${target} PRIVATE ${made})
  target_include_directories(${target} PRIVATE ${CMAKE_CURRENT_BINARY_DIR}/embedded)
endfunction()
