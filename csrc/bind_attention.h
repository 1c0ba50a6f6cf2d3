// Python binding of attention alone, for tests and benchmarks.
#pragma once

#include <nanobind/nanobind.h>

void bind_attention(nanobind::module_& module);
