#pragma once

#include <nanobind/nanobind.h>

// Limits of the machine and timed kernels, for `octavo bench kernels`.
void bind_bench(nanobind::module_& module);
