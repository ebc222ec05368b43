// The command line, read as a person means it.
#pragma once

namespace CLI {
class App;
}

namespace qkv::cli {

// app.parse, but a text in [brackets] stays a text where CLI11 would see a list, and a name that
// does not exist is answered with the nearest that does. Throws CLI::ParseError.
void parse(CLI::App& app, int argc, const char* const* argv);

}  // namespace qkv::cli
