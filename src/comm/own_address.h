// Under which address the other machines of a run reach this one.
#pragma once

#include <string>

#include "cplm/comm.h"

namespace cplm {

// The loopback when all processes are on one machine; else the address of the interface that leads
// to launch.address; empty when that cannot be told (rank 0 whose own name resolves to a loopback).
std::string own_address(const Launch& launch);

}  // namespace cplm
