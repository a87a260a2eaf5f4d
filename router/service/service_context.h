// What every call needs, in one place. Borrowed; constant while the service lives.
#ifndef BATON_ROUTER_SERVICE_SERVICE_CONTEXT_H_
#define BATON_ROUTER_SERVICE_SERVICE_CONTEXT_H_

#include "common/base/clock.h"
#include "router/core/router_core.h"
#include "router/limits.h"
#include "router/metrics.h"
#include "router/registry/model_catalog.h"
#include "router/service/call_gate.h"
#include "router/service/id_source.h"
#include "router/text/text_pool.h"

namespace baton::router {

struct ServiceContext {
  RouterLimits limits;
  RouterCore* core = nullptr;
  ModelCatalog* catalog = nullptr;
  TextPool* pool = nullptr;
  CallGate* gate = nullptr;
  IdSource* ids = nullptr;
  RouterMetrics* metrics = nullptr;
  const Clock* clock = nullptr;
};

}  // namespace baton::router

#endif  // BATON_ROUTER_SERVICE_SERVICE_CONTEXT_H_
