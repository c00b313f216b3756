// What goes to standard error.
#pragma once

#include <string>
#include <string_view>

/// "dsakit VERB: what" as one line: control characters of files and their names are escaped.
void complain(const std::string& what, std::string_view verb = {});
