#include "device/device.h"

namespace baton {

void StepMeta::Clear() {
  token_source.clear();
  positions.clear();
  kv_slots.clear();
  query_starts.clear();
  block_table_starts.clear();
  block_tables.clear();
  sample_rows.clear();
  sampling.clear();
  return_logits = false;
  report_kv_layers = false;
}

}  // namespace baton
