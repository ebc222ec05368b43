// The subcommands of `qkv study` that have files of their own.
#pragma once

#include "command.h"

namespace qkv::cli {

void add_study_runs(CLI::App& study, Job& job);
void add_study_train(CLI::App& study, Job& job);

}  // namespace qkv::cli
