// Python bindings of packing, quantisation and matmul, for tests and benchmarks.
#pragma once

#include <nanobind/nanobind.h>

void bind_linear(nanobind::module_& module);
