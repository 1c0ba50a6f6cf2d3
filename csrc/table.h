// The kernel tables that this machine can run, by name.
#pragma once

#include <string>
#include <vector>

#include "kernel_table.h"

namespace octavo {

// Narrowest first.
std::vector<std::string> available_isas();

// Throws std::invalid_argument, with the names that work, for an ISA that is unknown or that this CPU lacks.
const KernelTable& table_named(const std::string& isa);

// The table that OCTAVO_ISA names, else the widest. Read once; throws as table_named does.
const KernelTable& default_table();

}  // namespace octavo
