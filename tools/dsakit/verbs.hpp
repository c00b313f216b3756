// The verbs of the command line, one source file each.
#pragma once

#include <CLI/CLI.hpp>

// Each adds its subcommand to `app`; the subcommand's callback stores the process exit code.
void add_info(CLI::App& app, int& exit_code);
void add_import(CLI::App& app, int& exit_code);
void add_export(CLI::App& app, int& exit_code);
void add_record(CLI::App& app, int& exit_code);
void add_replay(CLI::App& app, int& exit_code);
void add_compare(CLI::App& app, int& exit_code);
void add_bisect(CLI::App& app, int& exit_code);
void add_shrink(CLI::App& app, int& exit_code);
void add_bench(CLI::App& app, int& exit_code);
void add_bench_diff(CLI::App& app, int& exit_code);
void add_sweep(CLI::App& app, int& exit_code);
void add_golden(CLI::App& app, int& exit_code);
void add_doctor(CLI::App& app, int& exit_code);
