// the name that a kernel exports: minnow_NAME_ISA, with plain C linkage
//
// A cpu.cpp is compiled once for each instruction set, with MINNOW_ISA defined as its name. Everything but the
// exported functions lives in `namespace MINNOW_ISA`, so that two builds of an inline function stay two functions.
#pragma once

#include <stdint.h>

#define MINNOW_PASTE(name, isa) minnow_##name##_##isa
#define MINNOW_NAME(name, isa) MINNOW_PASTE(name, isa)
#define MINNOW_EXPORT(name) extern "C" __attribute__((visibility("default"))) void MINNOW_NAME(name, MINNOW_ISA)
