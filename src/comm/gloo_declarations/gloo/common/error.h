// See context.h in this tree: included by c10d, of which nothing is needed.
#pragma once
