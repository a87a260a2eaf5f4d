// The order in which a persistent grid takes the units of a large product: down a group of rows,
// then to the next column, so that what runs at one time shares rows and columns in the L2.
#ifndef BATON_KERNELS_LAUNCH_GROUPED_UNITS_H_
#define BATON_KERNELS_LAUNCH_GROUPED_UNITS_H_

#include <cstdint>

#include "kernels/launch/host_device.h"

namespace baton::kernels {

struct GroupedUnit {
  int32_t row;
  int32_t column;
};

// Of `unit`, 0 to num_rows * num_columns - 1. REQUIRES: 0 < group_rows.
BATON_HOST_DEVICE constexpr GroupedUnit GroupedUnitAt(int32_t unit, int32_t num_rows,
                                                      int32_t num_columns, int32_t group_rows) {
  const int32_t group = unit / (group_rows * num_columns);
  const int32_t in_group = unit - group * group_rows * num_columns;
  const int32_t left = num_rows - group * group_rows;
  const int32_t rows = left < group_rows ? left : group_rows;
  return {group * group_rows + in_group % rows, in_group / rows};
}

}  // namespace baton::kernels

#endif  // BATON_KERNELS_LAUNCH_GROUPED_UNITS_H_
