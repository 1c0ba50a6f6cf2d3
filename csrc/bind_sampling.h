// Python binding of the choice of tokens.
#pragma once

#include <nanobind/nanobind.h>

void bind_sampling(nanobind::module_& module);
